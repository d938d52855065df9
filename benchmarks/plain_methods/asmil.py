"""ASMIL written plainly, for comparison: every token projects every tile to a key and a value.

The same layers in the same order as the released model, with the arithmetic left as it is written in the paper.
`from_folded` gives it the weights of our model, so that both can be compared number for number.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil import MILModel
from asmil.models.asmil import ASMIL


class PlainAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.dropout = nn.Dropout(0.1)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.heads, -1).transpose(0, 1)

    def scores(self, query: Tensor, tiles: Tensor) -> Tensor:
        q, k = self.split(self.q(query)), self.split(self.k(tiles))
        return q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])

    def forward(self, query: Tensor, tiles: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(query, tiles)
        values = torch.softmax(scores, dim=-1) @ self.split(self.v(tiles))
        joined = values.transpose(0, 1).reshape(query.shape[0], -1)
        return self.norm(self.dropout(self.out(joined))), scores


class PlainASMIL(nn.Module):
    def __init__(self, in_features: int, width: int, tokens: int, heads: int, n_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(in_features, width, bias=False)
        self.tokens = nn.Parameter(torch.zeros(tokens, width))
        self.cls = nn.Parameter(torch.zeros(1, width))
        self.blocks = nn.ModuleList(PlainAttention(width, heads) for _ in range(tokens))
        self.bag_block = PlainAttention(width, heads)
        self.head = nn.Linear(width, n_classes)

    def attend(self, features: Tensor) -> Tensor:
        """Scores, heads x tokens x tiles."""
        embedded = functional.relu(self.embedding(features))
        rows = [block.scores(self.tokens[t : t + 1], embedded) for t, block in enumerate(self.blocks)]  # type: ignore[operator]
        return torch.cat(rows, dim=1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        embedded = functional.relu(self.embedding(features))
        read = [block(self.tokens[t : t + 1], embedded) for t, block in enumerate(self.blocks)]
        token_features = torch.cat([feature for feature, _ in read])
        bag_feature, _ = self.bag_block(self.cls, token_features)
        return self.head(bag_feature)[0], torch.cat([scores for _, scores in read], dim=1)

    @classmethod
    def from_folded(cls, model: ASMIL) -> PlainASMIL:
        config = model.config
        plain = cls(model.in_features, model.tokens.shape[1], config.tokens, config.heads, model.n_outputs).to(
            model.tokens.device
        )
        with torch.no_grad():
            plain.embedding.load_state_dict(model.embedding.layers[0].state_dict())
            plain.tokens.copy_(model.tokens)
            plain.cls.copy_(model.cls)
            plain.head.load_state_dict(model.head.state_dict())
            pairs = [(block, model.token_block, t) for t, block in enumerate(plain.blocks)]
            for block, source, index in [*pairs, (plain.bag_block, model.bag_block, 0)]:
                for name in ("q", "k", "v", "out", "norm"):
                    layer = getattr(block, name)
                    layer.weight.copy_(getattr(source, f"{name}_weight")[index])
                    layer.bias.copy_(getattr(source, f"{name}_bias")[index])
        return plain


def plain_form(model: MILModel) -> PlainASMIL:
    assert isinstance(model, ASMIL)
    return PlainASMIL.from_folded(model)
