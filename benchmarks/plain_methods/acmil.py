"""ACMIL with multi-head branches as its official code has it: every branch projects every tile to a key and a value.

The same layers in the same order as the official form, without masking. GA is computed here as it is there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil import MILModel
from asmil.models.acmil import ACMIL, QueryBranches
from asmil.models.blocks.folded import FoldedProjections


class PlainBlock(nn.Module):
    """One attention block: layers q, k, v, out and norm; the slide's block has no q and k."""

    def __init__(self, source: FoldedProjections, index: int) -> None:
        super().__init__()
        self.heads = source.heads
        width = source.v_bias.shape[1]
        names = [name for name in ("q", "k", "v", "out") if hasattr(source, f"{name}_weight")]
        self.layers = nn.ModuleDict({name: nn.Linear(width, width) for name in names})
        self.layers["norm"] = nn.LayerNorm(width, eps=1e-6)
        with torch.no_grad():
            for name, layer in self.layers.items():
                for leaf in ("weight", "bias"):
                    getattr(layer, leaf).copy_(getattr(source, f"{name}_{leaf}")[index])
        self.dropout = nn.Dropout(source.dropout.p)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.heads, -1).transpose(0, 1)

    def scores(self, query: Tensor, tiles: Tensor) -> Tensor:
        q, k = self.split(self.layers["q"](query)), self.split(self.layers["k"](tiles))
        return q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])

    def pool(self, attention: Tensor, tiles: Tensor) -> Tensor:
        """Heads x 1 x N weights -> the block's output, I."""
        values = attention @ self.split(self.layers["v"](tiles))
        feature: Tensor = self.layers["norm"](self.dropout(self.layers["out"](values.transpose(0, 1).reshape(1, -1))))
        return feature[0]


class PlainACMIL(nn.Module):
    """Built from the weights of our model, so that both can be compared number for number."""

    def __init__(self, model: ACMIL) -> None:
        super().__init__()
        source = model.branches
        assert isinstance(source, QueryBranches)
        self.embedding = nn.Linear(model.in_features, model.embedding.width, bias=False)
        self.embedding.load_state_dict(model.embedding.layers[0].state_dict())
        self.queries = nn.Parameter(source.queries.detach().clone())
        self.blocks = nn.ModuleList(PlainBlock(source.block, t) for t in range(len(self.queries)))
        self.slide_block = PlainBlock(source.slide_block, 0)
        self.branch_heads = nn.ModuleList(_copy(head) for head in model.branch_heads)
        self.head = _copy(model.head)

    def forward(self, features: Tensor) -> Tensor:
        return self.read(features)[0]

    def read(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (C), branch logits (T x C) and scores (H x T x N) of N x D features."""
        tiles = functional.relu(self.embedding(features))
        blocks = [block for block in self.blocks if isinstance(block, PlainBlock)]
        rows = [block.scores(self.queries[t : t + 1], tiles) for t, block in enumerate(blocks)]
        pooled = [block.pool(torch.softmax(row, dim=-1), tiles) for block, row in zip(blocks, rows, strict=True)]
        branch_logits = torch.stack([head(f) for head, f in zip(self.branch_heads, pooled, strict=True)])
        scores = torch.cat(rows, dim=1)
        slide_attention = torch.softmax(scores, dim=-1).mean(dim=1, keepdim=True)
        logits: Tensor = self.head(self.slide_block.pool(slide_attention, tiles))
        return logits, branch_logits, scores


def plain_form(model: MILModel) -> PlainACMIL | None:
    """The plain form of an ACMIL with multi-head branches."""
    assert isinstance(model, ACMIL)
    return PlainACMIL(model) if model.config.arch == "mha" else None


def _copy(head: nn.Module) -> nn.Linear:
    assert isinstance(head, nn.Linear)
    copy = nn.Linear(head.in_features, head.out_features)
    copy.load_state_dict(head.state_dict())
    return copy
