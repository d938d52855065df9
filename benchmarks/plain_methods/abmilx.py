"""ABMILX as the official code runs it: fused attention of every head, with scores padded to the width of the keys."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil import MILModel
from asmil.models.abmilx import ABMILX


class PlainABMILX(nn.Module):
    """Built from the weights of our model with default settings, so that both can be compared number for number."""

    def __init__(self, model: ABMILX) -> None:
        super().__init__()
        model = copy.deepcopy(model)
        self.embedding, self.attention, self.similarity = model.embedding, model.attention, model.similarity
        self.projection, self.head, self.heads = model.projection, model.head, model.config.heads

    def forward(self, features: Tensor) -> Tensor:
        assert self.similarity is not None
        slices = self.embedding(features).view(len(features), self.heads, -1).transpose(0, 1).contiguous()
        width = slices.shape[-1]
        raw = self.attention.weight(functional.gelu(self.attention.value(slices)))
        query, key = self.similarity.query_key(self.similarity.norm(slices)).chunk(2, dim=-1)
        values = functional.pad(self.similarity.strength(raw), (0, width - 1))
        refined = functional.scaled_dot_product_attention(query[None], key[None], values[None])[0, :, :, :1]
        attention = torch.softmax((raw + refined).transpose(1, 2), dim=-1)
        logits: Tensor = self.head(self.projection((attention @ slices).flatten()))
        return logits


def plain_form(model: MILModel) -> PlainABMILX:
    """The plain form of an ABMILX with default settings."""
    assert isinstance(model, ABMILX)
    return PlainABMILX(model)
