"""DeepAttnMISL: the common answers on the listed clusters, and its log-risk."""

from __future__ import annotations

from typing import Any

from asmil import MILModel
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """Scores, attention and features of the clusters are extras of the output."""
    given: dict[str, Any] = {"clusters": problem.listed("cluster_ids")} if "cluster_ids" in problem.given else {}
    bag = model.prepare(problem.bag(**given))
    output = model(bag)
    return common(problem, model, bag, output) | {"risk": output.logits.unsqueeze(0)}
