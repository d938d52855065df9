"""ILRA written plainly, for comparison: every tile is projected to keys and values, twice in a row."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.base import MILModel
from asmil.models.ilra import ILRA, LowRankBlock, ProjectedAttention


class PlainAttention(nn.Module):
    """One attention block around torch's own multi-head attention, with the weights of ours."""

    def __init__(self, source: ProjectedAttention) -> None:
        super().__init__()
        source = copy.deepcopy(source)
        self.query, self.key, self.value = source.query, source.key, source.value
        self.attention = nn.MultiheadAttention(source.out.out_features, source.heads).to(source.in_weight)
        with torch.no_grad():
            self.attention.in_proj_weight.copy_(source.in_weight.flatten(0, 1))
            self.attention.in_proj_bias.copy_(source.in_bias.flatten())
            self.attention.out_proj.load_state_dict(source.out.state_dict())
        self.norm_attention, self.norm_feed = source.norm_attention, source.norm_feed
        self.feed, self.gate = source.feed, source.gate

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        projected = self.query(queries)
        attended, _ = self.attention(projected, self.key(keys), self.value(keys), need_weights=False)
        x = projected + attended
        x = x if self.norm_attention is None else self.norm_attention(x)
        x = x + functional.relu(self.feed(x))
        x = x if self.norm_feed is None else self.norm_feed(x)
        gated: Tensor = x if self.gate is None else x * functional.silu(self.gate(queries))
        return gated

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Heads x keys, of one query."""
        width, heads = self.attention.embed_dim, self.attention.num_heads
        weight, bias = self.attention.in_proj_weight, self.attention.in_proj_bias
        q = functional.linear(self.query(query), weight[:width], bias[:width])
        k = functional.linear(self.key(keys), weight[width : 2 * width], bias[width : 2 * width])
        by_head = q.view(heads, 1, -1) @ k.view(len(keys), heads, -1).permute(1, 2, 0)
        return by_head.squeeze(1) / math.sqrt(width // heads)


class PlainBlock(nn.Module):
    def __init__(self, source: LowRankBlock) -> None:
        super().__init__()
        self.latents = nn.Parameter(source.latents.detach().clone())
        self.read_tiles = PlainAttention(source.read_tiles)
        self.read_latents = PlainAttention(source.read_latents)

    def forward(self, tiles: Tensor) -> Tensor:
        filled: Tensor = self.read_latents(tiles, self.read_tiles(self.latents, tiles))
        return filled


class PlainILRA(nn.Module):
    def __init__(self, model: ILRA) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(PlainBlock(block) for block in model.blocks if isinstance(block, LowRankBlock)))
        self.seed = nn.Parameter(model.seed.detach().clone())
        self.pooling = PlainAttention(model.pooling)
        self.head = copy.deepcopy(model.head)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(self.pooling(self.seed, self.blocks(features)))[0]
        return logits

    def scores(self, features: Tensor) -> Tensor:
        """Heads x tiles, of the pooling."""
        return self.pooling.scores(self.seed, self.blocks(features))


def plain_form(model: MILModel) -> PlainILRA:
    assert isinstance(model, ILRA)
    return PlainILRA(model)
