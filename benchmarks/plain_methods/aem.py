"""AEM's bases as its official code has them: with multi-head attention every tile gets a key and a value."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil import MILModel
from asmil.models.aem import AEM, QueryPool
from asmil.models.dsmil import DSMIL
from plain_methods.dsmil import PlainDSMIL


class PlainQueryPool(nn.Module):
    """One learned query with several heads over all tiles; built from our model's weights."""

    def __init__(self, model: QueryPool) -> None:
        super().__init__()
        width = model.embedding.width
        self.heads = model.config.heads
        self.embedding = nn.Linear(model.in_features, width, bias=False)
        self.embedding.load_state_dict(model.embedding.layers[0].state_dict())
        self.query = nn.Parameter(model.query.detach().clone())
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.dropout = nn.Dropout(model.config.dropout)
        self.head = nn.Linear(width, model.n_outputs)
        self.head.load_state_dict(model.head.state_dict())
        with torch.no_grad():
            for name in ("q", "k", "v", "out", "norm"):
                for leaf in ("weight", "bias"):
                    getattr(getattr(self, name), leaf).copy_(getattr(model.block, f"{name}_{leaf}")[0])

    def forward(self, features: Tensor) -> Tensor:
        return self.read(features)[0]

    def read(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (C) and scores (H x N)."""
        tiles = functional.relu(self.embedding(features))
        q, k, v = self._split(self.q(self.query)), self._split(self.k(tiles)), self._split(self.v(tiles))
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        joined = (torch.softmax(scores, dim=-1) @ v).transpose(0, 1).reshape(1, -1)
        logits: Tensor = self.head(self.norm(self.dropout(self.out(joined))))
        return logits[0], scores[:, 0]

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.heads, -1).transpose(0, 1)


def plain_form(model: MILModel) -> nn.Module | None:
    """The plain form of the base; ABMIL is computed here as it is there."""
    assert isinstance(model, AEM)
    if isinstance(model.base, QueryPool):
        return PlainQueryPool(model.base)
    return PlainDSMIL(model.base) if isinstance(model.base, DSMIL) else None
