"""HDMIL's LIPN alone: scores and mask of drawn images."""

from __future__ import annotations

import math

import torch

from asmil import Bag, MILModel
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """The rows of the drawn bag, as bytes around 128, are the pixels of the tiles."""
    drawn = problem.bag()
    pixels = math.isqrt(drawn.width // 3)
    tiles = (128 + 40 * drawn.features).round().clamp(0, 255).to(torch.uint8)
    bag = Bag(drawn.features, extras={"lowres": {"tiles": tiles.view(len(drawn), pixels, pixels, 3)}})
    output = model(bag)
    assert output.scores is not None
    return common(problem, model, bag, output) | {"scores": output.scores.t(), "mask": output.extras["mask"].t()}
