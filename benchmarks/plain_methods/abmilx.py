"""ABMILX with an N x N matrix for every head, as its formulas and the official code without fused kernels have it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asmil import MILModel
from asmil.models.abmilx import ABMILX


class PlainABMILX(nn.Module):
    """Shares the weights of our model, without its optional parts."""

    def __init__(self, model: ABMILX) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor) -> Tensor:
        model, similarity = self.model, self.model.similarity
        assert similarity is not None
        slices = model.embed(features).view(len(features), model.config.heads, -1).transpose(0, 1)
        raw: Tensor = model.attention.weight(torch.nn.functional.gelu(model.attention.value(slices)))
        queries, keys = similarity.query_key(similarity.norm(slices)).chunk(2, dim=2)
        weights = torch.softmax(queries @ keys.mT * model.head_width**-0.5, dim=2)
        scores = raw + weights @ similarity.strength(raw)
        pooled = torch.softmax(scores, dim=1).mT @ slices
        logits: Tensor = model.head(model.projection(pooled.flatten()))
        return logits


def plain_form(model: MILModel) -> PlainABMILX:
    """The plain form of an ABMILX with default settings."""
    assert isinstance(model, ABMILX)
    return PlainABMILX(model)
