"""SmABMIL as its source has it: T sparse products of the adjacency matrix, kept step by step for the backward pass."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from asmil import Bag, MILModel
from asmil.models.blocks.smoothing import GRAPH
from asmil.models.sm_abmil import SmABMIL

SPARSE = "sparse_graph"


class PlainSmABMIL(nn.Module):
    """Built from the weights of our model with default settings, so that both can be compared number for number."""

    takes_bags = True

    def __init__(self, model: SmABMIL) -> None:
        super().__init__()
        model = copy.deepcopy(model)
        self.value, self.weight, self.smoothing, self.head = model.value, model.weight, model.smoothing, model.head

    def forward(self, bag: Bag) -> Tensor:
        if SPARSE not in bag.extras:
            cast(dict[str, Any], bag.extras)[SPARSE] = sparse(bag)
        tiles, matrix = bag.features, bag.extras[SPARSE]
        alpha, smoothed = self.smoothing.alpha, tiles
        for _ in range(self.smoothing.steps):
            smoothed = alpha * torch.sparse.mm(matrix, smoothed) + (1 - alpha) * tiles
        attention = torch.softmax(self.weight(torch.tanh(self.value(smoothed))), dim=0)
        logits: Tensor = self.head((attention.t() @ smoothed).squeeze(0))
        return logits


@torch.inference_mode(mode=False)
def sparse(bag: Bag) -> Tensor:
    """A of a prepared bag as a sparse tensor of torch, N x N; its data set builds it once."""
    graph = bag.extras[GRAPH]
    starts, columns = graph["row_starts"], graph["columns"]
    counts = torch.cat([starts, starts.new_tensor([len(columns)])]).diff()
    rows = torch.arange(len(bag), device=columns.device).repeat_interleave(counts)
    size = (len(bag), len(bag))
    return torch.sparse_coo_tensor(
        torch.stack([rows, columns]), graph["values"], size, is_coalesced=True, check_invariants=False
    )


def plain_form(model: MILModel) -> PlainSmABMIL:
    """The plain form of a SmABMIL with default settings."""
    assert isinstance(model, SmABMIL)
    return PlainSmABMIL(model)
