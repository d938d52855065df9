"""ABMILX: besides the common answers, the scores before their refinement."""

from __future__ import annotations

from asmil import MILModel
from asmil.models.abmilx import ABMILX
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """The raw scores are those of the embedded tiles."""
    assert isinstance(model, ABMILX)
    bag = problem.bag()
    return common(problem, model, bag) | {"raw_scores": model.raw_scores(model.embed(bag.features))}
