"""Mamba MIL: besides the common answers, rows after the first block, the scores of all cells and survival."""

from __future__ import annotations

import torch

from asmil import MILModel
from asmil.models.mamba_mil import MambaMIL, Sequence1d
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """On a grid, attention is a softmax over all cells, and tiles are read at theirs."""
    assert isinstance(model, MambaMIL)
    bag = problem.bag()
    output = model(bag)
    rows, grids = model.sequence(bag)
    after = model.blocks[0](rows, Sequence1d() if grids is None else grids)
    hazards = torch.sigmoid(output.logits)
    answers = common(problem, model, bag, output) | {
        "hazards": hazards,
        "survival": torch.cumprod(1 - hazards, dim=0),
    }
    if grids is not None:
        (shape,) = grids.shapes
        scores = output.extras["cell_scores"]
        answers["attention"] = model.normalizer(scores)[:, grids.cells]
        answers["grid_scores"] = scores.view(shape)
        answers["block0_last_cell"] = after[-1]
        after = after[grids.cells]
    return answers | {"block0_row0": after[0], "block0_last_row": after[-1]}
