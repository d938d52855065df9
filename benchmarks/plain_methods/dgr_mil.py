"""DGR-MIL written plainly, for comparison: every token reads the keys and values of every tile."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.base import MILModel
from asmil.models.dgr_mil import DGRMIL
from plain_methods.transmil import PlainLayer


class PlainDGRMIL(nn.Module):
    def __init__(self, model: DGRMIL) -> None:
        super().__init__()
        model = copy.deepcopy(model)
        self.lesions, self.class_token, self.projection = model.lesions, model.class_token, model.projection
        self.tile_encoder = nn.Sequential(PlainLayer(model.tile_encoder), model.tile_norm)
        self.token_encoder = nn.Sequential(PlainLayer(model.token_encoder), model.token_norm)
        source = model.attention
        self.query, self.key, self.value, self.out = source.query, source.key, source.value, source.out
        self.heads = source.heads
        self.last = nn.Sequential(model.feed, model.norm)
        self.head = model.head

    def attention(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Weights H x (1 + K) x N, and values H x N x (I / H)."""
        tiles = self.tile_encoder(self._project(features))
        tokens = self.token_encoder(torch.cat([self.class_token, self._project(self.lesions)]))
        q, k, v = (self._split(part) for part in (self.query(tokens), self.key(tiles), self.value(tiles)))
        return (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).softmax(dim=-1), v

    def forward(self, features: Tensor) -> Tensor:
        weights, values = self.attention(features)
        read = self.last(self.out((weights @ values).transpose(0, 1).flatten(1)))
        logits: Tensor = self.head(read[0])
        return logits

    def _project(self, rows: Tensor) -> Tensor:
        for layer in self.projection:
            rows = functional.relu(layer(rows))
        return rows

    def _split(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), self.heads, -1).transpose(0, 1)


def plain_form(model: MILModel) -> PlainDGRMIL:
    assert isinstance(model, DGRMIL)
    return PlainDGRMIL(model)
