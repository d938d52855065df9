"""TransMIL written plainly, for comparison: all softmax factors are stored, and layer 2 updates every token."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.base import MILModel
from asmil.models.blocks.nystrom import NystromAttention, NystromLayer, TokenConvolution
from asmil.models.transmil import TransMIL


class PlainAttention(nn.Module):
    """`(F1 Z)(F3 v)` plus a convolution of v, of S x width tokens."""

    def __init__(self, source: NystromAttention) -> None:
        super().__init__()
        self.heads, self.landmarks, self.iterations = source.heads, source.landmarks, source.iterations
        self.to_qkv, self.to_out, self.dropout = source.to_qkv, source.to_out, nn.Dropout(source.dropout.p)
        assert isinstance(source.residual, TokenConvolution)
        self.convolution = source.residual

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """F1, Z, F3 and v of the padded tokens."""
        x = functional.pad(x, (0, 0, -len(x) % self.landmarks, 0))
        q, k, v = (part.view(len(x), self.heads, -1).transpose(0, 1) for part in self.to_qkv(x).chunk(3, dim=1))
        q = q * q.shape[-1] ** -0.5
        q_mean, k_mean = (part.reshape(self.heads, self.landmarks, -1, q.shape[-1]).mean(dim=2) for part in (q, k))
        f1 = (q @ k_mean.transpose(1, 2)).softmax(dim=-1)
        f2 = (q_mean @ k_mean.transpose(1, 2)).softmax(dim=-1)
        f3 = (q_mean @ k.transpose(1, 2)).softmax(dim=-1)
        one = torch.eye(self.landmarks, dtype=x.dtype, device=x.device)
        z = f2.transpose(1, 2) / (f2.abs().sum(dim=-1).max() * f2.abs().sum(dim=-2).max())
        for _ in range(self.iterations):
            y = f2 @ z
            z = 0.25 * z @ (13 * one - y @ (15 * one - y @ (7 * one - y)))
        return f1, z, f3, v

    def forward(self, x: Tensor) -> Tensor:
        f1, z, f3, v = self.factors(x)
        weight = self.convolution.weight
        residual = functional.conv2d(v.unsqueeze(0), weight, padding=(weight.shape[2] // 2, 0), groups=self.heads)
        mixed = (f1 @ z) @ (f3 @ v) + residual.squeeze(0)
        out: Tensor = self.dropout(self.to_out(mixed.transpose(0, 1).flatten(1)))
        return out[-len(x) :]


class PlainLayer(nn.Module):
    def __init__(self, source: NystromLayer) -> None:
        super().__init__()
        self.norm, self.attention = source.norm, PlainAttention(source.attention)

    def forward(self, x: Tensor) -> Tensor:
        updated: Tensor = x + self.attention(self.norm(x))
        return updated


class PlainTransMIL(nn.Module):
    def __init__(self, model: TransMIL) -> None:
        super().__init__()
        model = copy.deepcopy(model)
        self.embedding, self.class_token, self.norm, self.head = (
            model.embedding,
            model.class_token,
            model.norm,
            model.head,
        )
        self.layer1, self.layer2 = PlainLayer(model.layer1), PlainLayer(model.layer2)
        self.convolutions = model.position.convolutions

    def tokens(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """What enters layer 1, and what enters layer 2."""
        embedded = self.embedding(features)
        side = math.ceil(math.sqrt(len(embedded)))
        first = torch.cat([self.class_token, embedded, embedded[: side**2 - len(embedded)]])
        x = self.layer1(first)
        grid = x[1:].t().reshape(1, -1, side, side)
        conv7, conv5, conv3 = self.convolutions
        mixed = conv7(grid) + grid + conv5(grid) + conv3(grid)
        return first, torch.cat([x[:1], mixed.flatten(2).squeeze(0).t()])

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.layer2(self.tokens(features)[1]))[0])
        return logits


def plain_form(model: MILModel) -> PlainTransMIL:
    assert isinstance(model, TransMIL)
    return PlainTransMIL(model)
