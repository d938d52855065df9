"""R2T written plainly, for comparison: EPEG convolves the attention logits, every slot of CR-MSA copies the tiles."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.base import MILModel
from asmil.models.r2t import R2T
from asmil.models.r2t_regional import CrossRegionAttention, RegionalLayer, RegionAttention, SelfAttention


def partition(x: Tensor, per_side: int) -> tuple[Tensor, int]:
    """All windows of the padded square, W x n x C, and its side."""
    side = math.ceil(math.sqrt(len(x)))
    side += -side % per_side
    size = side // per_side
    padded = torch.cat([x, x.new_zeros(side * side - len(x), x.shape[1])])
    square = padded.view(per_side, size, per_side, size, -1)
    return square.permute(0, 2, 1, 3, 4).reshape(per_side**2, size * size, -1), side


def merge(windows: Tensor, per_side: int, side: int, tokens: int) -> Tensor:
    size = side // per_side
    square = windows.view(per_side, per_side, size, size, -1).permute(0, 2, 1, 3, 4)
    return square.reshape(side * side, -1)[:tokens]


class PlainSelfAttention(nn.Module):
    def __init__(self, source: SelfAttention) -> None:
        super().__init__()
        self.heads, self.qkv, self.out, self.dropout = source.heads, source.qkv, source.out, source.dropout
        self.epeg: nn.Conv2d | None = None
        if source.epeg is not None:
            kernel = source.epeg.weight.shape[2]
            self.epeg = nn.Conv2d(self.heads, self.heads, (kernel, 1), padding=(kernel // 2, 0), groups=self.heads)
            self.epeg.to(source.epeg.weight).load_state_dict(source.epeg.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
        if self.epeg is not None:
            logits = logits + self.epeg(logits)
        attended = torch.softmax(logits, dim=-1) @ v
        out: Tensor = self.dropout(self.out(attended.transpose(1, 2).reshape(batch, tokens, width)))
        return out


class PlainRegion(nn.Module):
    def __init__(self, source: RegionAttention) -> None:
        super().__init__()
        self.per_side = source.folding.per_side
        self.attention = PlainSelfAttention(source.attention)

    def forward(self, x: Tensor) -> Tensor:
        windows, side = partition(x, self.per_side)
        return merge(self.attention(windows), self.per_side, side, len(x))


class PlainCrossRegion(nn.Module):
    def __init__(self, source: CrossRegionAttention) -> None:
        super().__init__()
        self.per_side = source.folding.per_side
        self.attention = PlainSelfAttention(source.attention)
        self.phi = source.phi

    def forward(self, x: Tensor) -> Tensor:
        windows, side = partition(x, self.per_side)
        slots = windows @ self.phi if isinstance(self.phi, nn.Parameter) else self.phi(windows)
        slots = slots.transpose(1, 2)
        combined = torch.einsum("wpc,wkp->wkpc", windows, slots.softmax(dim=-1)).sum(dim=-2)
        attended = self.attention(combined.transpose(0, 1)).transpose(0, 1)
        lowest, highest = slots.min(dim=-1, keepdim=True)[0], slots.max(dim=-1, keepdim=True)[0]
        spread = torch.einsum("wkc,wkp->wkpc", attended, (slots - lowest) / (highest - lowest + 1e-8))
        dispatched = torch.einsum("wkpc,wkp->wkpc", spread, slots.softmax(dim=1)).sum(dim=1)
        return merge(dispatched, self.per_side, side, len(x))


class PlainLayer(nn.Module):
    def __init__(self, source: RegionalLayer) -> None:
        super().__init__()
        self.norm, self.norm_feed, self.feed = source.norm, source.norm_feed, source.feed
        self.attention: nn.Module
        if isinstance(source.attention, RegionAttention):
            self.attention = PlainRegion(source.attention)
        else:
            assert isinstance(source.attention, CrossRegionAttention)
            self.attention = PlainCrossRegion(source.attention)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        if self.feed is not None and self.norm_feed is not None:
            x = x + self.feed(self.norm_feed(x))
        return x


class PlainR2T(nn.Module):
    def __init__(self, model: R2T) -> None:
        super().__init__()
        model = copy.deepcopy(model)
        self.embedding, self.norm, self.pooling, self.head = model.embedding, model.norm, model.attention, model.head
        regional = [layer for layer in model.regional if isinstance(layer, RegionalLayer)]
        self.layers = nn.Sequential(*(PlainLayer(layer) for layer in [*regional, model.cross]))
        self.all_shortcut = model.config.all_shortcut

    def reembed(self, features: Tensor) -> Tensor:
        embedded = self.embedding(features)
        x = self.layers(embedded)
        normed: Tensor = self.norm(x + embedded if self.all_shortcut else x)
        return normed

    def forward(self, features: Tensor) -> Tensor:
        tiles = self.reembed(features)
        logits: Tensor = self.head(functional.softmax(self.pooling(tiles), dim=-1) @ tiles)[0]
        return logits


def plain_form(model: MILModel) -> PlainR2T:
    assert isinstance(model, R2T)
    return PlainR2T(model)
