"""CAPRMIL: besides the common answers, the clusters of every block and the tiles that are pooled."""

from __future__ import annotations

from asmil import MILModel
from asmil.models.caprmil import CAPRMIL
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """Shares of the tiles in the clusters, attention between clusters, first and last tile."""
    assert isinstance(model, CAPRMIL)
    bag = problem.bag()
    (tiles,) = model.contextualize([bag.features], None)
    answers = common(problem, model, bag) | {"tiles_row0": tiles[0], "tiles_last_row": tiles[-1]}
    for number, (shares, attention) in enumerate(model.clusters(bag)):
        answers |= {f"cluster_weights_block{number}": shares, f"cluster_attention_block{number}": attention}
    return answers
