"""CAPRMIL as its source has it: assignments and values of all heads at once, differentiated step by step."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil import MILModel
from asmil.models.caprmil import CAPRMIL, EMPTY_CLUSTER, ClusterBlock


class PlainCAPRMIL(nn.Module):
    """Built from the weights of our model with default settings, so that both can be compared number for number."""

    def __init__(self, model: CAPRMIL) -> None:
        super().__init__()
        model = copy.deepcopy(model)
        self.embedding, self.norm, self.dropout = model.embedding, model.embedding_norm, model.dropout
        self.blocks, self.head = model.blocks, model.head

    def forward(self, features: Tensor) -> Tensor:
        tiles = self.dropout(functional.gelu(self.norm(self.embedding(features))))
        for block in self.blocks:
            assert isinstance(block, ClusterBlock)
            tiles = tiles + block.dropout(self._attention(block, block.attention_norm(tiles)))
            inside = functional.gelu(block.widen(block.mlp_norm(tiles)))
            tiles = tiles + block.dropout(block.dropout(block.narrow(inside)))
        logits: Tensor = self.head(tiles.mean(dim=0))
        return logits

    def _attention(self, block: ClusterBlock, rows: Tensor) -> Tensor:
        assigned, values = (
            layer(rows).view(len(rows), block.heads, -1).transpose(0, 1).contiguous()
            for layer in (block.assigned, block.value)
        )
        shares = torch.softmax(block.assign(assigned) / block.temperature.view(-1, 1, 1), dim=-1)
        sums = torch.einsum("hnd,hnm->hmd", values, shares)
        means = sums / (shares.sum(dim=1) + EMPTY_CLUSTER).unsqueeze(2)
        query, key, value = (layer(means) for layer in (block.cluster_query, block.cluster_key, block.cluster_value))
        weights = block.dropout(torch.softmax(query @ key.transpose(1, 2) * means.shape[-1] ** -0.5, dim=-1))
        spread = torch.einsum("hmd,hnm->hnd", weights @ value, shares)
        out: Tensor = block.dropout(block.out(spread.transpose(0, 1).flatten(1)))
        return out


def plain_form(model: MILModel) -> PlainCAPRMIL:
    """The plain form of a CAPRMIL with default settings."""
    assert isinstance(model, CAPRMIL)
    return PlainCAPRMIL(model)
