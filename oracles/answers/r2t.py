"""R2T: besides the common answers, the tiles as the encoder re-embeds them."""

from __future__ import annotations

from asmil.models.base import MILModel
from asmil.models.r2t import R2T
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """The common answers, and tiles after R-MSA and after the encoder."""
    assert isinstance(model, R2T)
    bag = problem.bag()
    tiles = model.reembed(bag)
    return common(problem, model, bag) | {
        "after_rmsa_row0": model.regional(model.embedding(bag.features))[0],
        "reembedded_row0": tiles[0],
        "reembedded_norms": tiles.norm(dim=1),
    }
