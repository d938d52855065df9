"""Patch-GCN as torch_geometric runs it: a message for every edge, a softmax over edges for every tile and channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asmil import Bag, MILModel
from asmil.models.blocks.graph import GENConv, ResidualGENConv
from asmil.models.patch_gcn import PatchGCN


class PlainPatchGCN(nn.Module):
    """Shares the weights of our model; takes prepared bags."""

    takes_bags = True

    def __init__(self, model: PatchGCN) -> None:
        super().__init__()
        self.model = model

    def forward(self, bag: Bag) -> Tensor:
        model = self.model
        matrix = bag.extras["adjacency"]
        counts = torch.diff(matrix["row_starts"], append=matrix["row_starts"].new_tensor([len(matrix["columns"])]))
        sources, targets = matrix["columns"], torch.arange(len(bag), device=counts.device).repeat_interleave(counts)
        x = model.embedding(bag.features)
        maps = [x, self._convolve(model.first, x, sources, targets)]
        for layer in model.further:
            assert isinstance(layer, ResidualGENConv)
            normed = layer.norm(self._convolve(layer.conv, maps[-1], sources, targets))
            maps.append(layer.dropout(maps[-1] + torch.relu(normed)))
        tiles = model.dropout(torch.relu(model.join(torch.cat(maps, dim=1))))
        pooled = torch.softmax(model.attention(tiles), dim=1) @ tiles
        logits: Tensor = model.head(pooled if model.rho is None else torch.relu(model.rho(pooled)))
        return logits[0]

    @staticmethod
    def _convolve(layer: GENConv, x: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        messages = torch.relu(x[sources]) + 1e-7
        index = targets.unsqueeze(1).expand_as(messages)
        scaled = messages * layer.t
        highest = torch.zeros_like(x).scatter_reduce(0, index, scaled.detach(), "amax", include_self=False)
        exponentials = (scaled - highest[targets]).exp()
        totals = torch.zeros_like(x).scatter_add(0, index, exponentials)
        weighted = messages * exponentials / (totals[targets] + 1e-16)
        aggregate = torch.zeros_like(x).scatter_add(0, index, weighted)
        out: Tensor = layer.narrow(torch.relu(layer.norm(layer.widen(aggregate + x))))
        return out


def plain_form(model: MILModel) -> PlainPatchGCN:
    """The plain form of a Patch-GCN."""
    assert isinstance(model, PatchGCN)
    return PlainPatchGCN(model)
