"""ASMIL: besides the common answers, its anchor."""

from __future__ import annotations

from asmil import Anchor, MILModel
from asmil.attention import nsf
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """Scores and tokens, and the anchor's normalized sigmoid and losses with the same weights."""
    bag = problem.bag()
    output = model(bag)
    assert output.scores is not None
    scores = output.scores
    return common(problem, model, bag, output) | {
        "nsf": nsf(scores),
        "kl_anchor_online_sum_over_tiles": Anchor(model).loss(bag, scores),
        "cross_entropy_sum_over_tiles": Anchor(model, divergence="cross_entropy").loss(bag, scores),
        "match_released_mean": Anchor(model, divergence="cross_entropy", reduction="mean").loss(bag, scores),
    }
