"""ILRA: the pooling's scores by head, and the tiles that it pools."""

from __future__ import annotations

from asmil.models.base import MILModel
from asmil.models.ilra import ILRA
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """The common answers, the pooling attention under its own names, and the first re-embedded tiles."""
    assert isinstance(model, ILRA)
    bag = problem.bag()
    output = model(bag)
    assert output.scores is not None
    return common(problem, model, bag, output) | {
        "pool_scores_per_head": output.scores,
        "pool_attention_per_head": model.normalizer(output.scores),
        "pool_attention_mean": model.tile_map(output),
        "gab_last_rows_0_3": model.reembed(bag)[:3],
    }
