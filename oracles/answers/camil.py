"""CAMIL: besides the common answers, the neighbor attention and first rows of what it passes on."""

from __future__ import annotations

from typing import Any

import torch

from asmil import Bag, MILModel
from asmil.models.camil import CAMIL
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """On the listed neighbors, where the file lists some."""
    assert isinstance(model, CAMIL)
    bag = model.prepare(_bag(problem))
    output = model(bag)
    x, whole = model.tiles(bag.features)
    neighbor_scores = model.neighbor_scores(whole, bag.extras["adjacency"])
    neighbor_attention = torch.softmax(neighbor_scores, dim=0)
    local = model.local_tiles(x, whole, neighbor_attention)
    return common(problem, model, bag, output) | {
        "neighbour_scores": neighbor_scores,
        "neighbour_attention": model.tile_map(output, "neighbors"),
        "global_row0": whole[0],
        "local_row0": local[0],
        "fused_row0": model.fuse(local, whole)[0],
    }


def _bag(problem: Problem) -> Bag:
    """Neighbors are listed as rows of tile indices with their values, or as 2 x E without (the model makes them)."""
    extras: dict[str, Any] = {}
    if "neighbour_value" in problem.given:
        rows = problem.listed("neighbour_index")
        centers = torch.arange(len(rows)).repeat_interleave(rows.shape[1])
        extras["edges"] = torch.stack([centers, rows.flatten()])
        extras["edge_weights"] = problem.listed("neighbour_value", torch.float32).flatten()
    elif "neighbour_index" in problem.given:
        extras["edges"] = problem.listed("neighbour_index")
    return problem.bag(**extras)
