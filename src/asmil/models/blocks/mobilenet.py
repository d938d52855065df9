"""The smallest MobileNetV4 of HDMIL's pre-screening network: tiles of a few pixels -> scores.

    conv 3x3 s2 16, conv 3x3 s2 16, conv 1x1 16, conv 3x3 s2 48, conv 1x1 24      each with BatchNorm and ReLU
    inverted bottleneck 5x5 s2, 24 -> 48; inverted bottleneck 3x3 s2, 48 -> 64
    mean over the pixels; conv 1x1 64 with BatchNorm and ReLU; linear 64 -> C

An inverted bottleneck is: depthwise conv, 1x1 conv to twice the width, depthwise conv (with the stride), 1x1 conv to
the new width; each with BatchNorm, and ReLU after the second and third. No step keeps its size, so there are no
residual connections. Convolutions have no bias and are padded with zeros to (k - 1) / 2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

TILES_AT_ONCE = 8192
"""In inference, tiles go through the network in parts of this size; in training BatchNorm sees the bag whole."""


class ConvNorm(nn.Module):
    """Convolution and BatchNorm, optionally with ReLU."""

    def __init__(
        self, before: int, after: int, kernel: int, stride: int = 1, *, depthwise: bool = False, relu: bool = True
    ) -> None:
        super().__init__()
        groups = before if depthwise else 1
        self.conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.relu = relu
        nn.init.normal_(self.conv.weight, std=math.sqrt(2 / (kernel * kernel * after)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.training and x.numel() == x.shape[1]:
            # one value a channel has no variance: normalize as in inference
            norm = self.norm
            x = functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        else:
            x = self.norm(x)
        return functional.relu(x) if self.relu else x


class InvertedBottleneck(nn.Module):
    """Depthwise, expand, depthwise with stride 2, project."""

    def __init__(self, before: int, after: int, kernel: int) -> None:
        super().__init__()
        wide = 2 * before
        self.start = ConvNorm(before, before, kernel, depthwise=True, relu=False)
        self.expand = ConvNorm(before, wide, 1)
        self.middle = ConvNorm(wide, wide, kernel, stride=2, depthwise=True)
        self.project = ConvNorm(wide, after, 1, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.project(self.middle(self.expand(self.start(x))))
        return projected


class TinyMobileNet(nn.Module):
    """Tiles, N x p x p x 3 bytes -> scores, N x C."""

    def __init__(self, n_outputs: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNorm(3, 16, 3, stride=2),
            ConvNorm(16, 16, 3, stride=2),
            ConvNorm(16, 16, 1),
            ConvNorm(16, 48, 3, stride=2),
            ConvNorm(48, 24, 1),
            InvertedBottleneck(24, 48, 5),
            InvertedBottleneck(48, 64, 3),
        )
        self.neck = ConvNorm(64, 64, 1)
        self.head = nn.Linear(64, n_outputs)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, tiles: Tensor) -> Tensor:
        if self.training:
            return self._score(tiles)
        return torch.cat([self._score(part) for part in tiles.split(TILES_AT_ONCE)])

    def _score(self, tiles: Tensor) -> Tensor:
        pixels = tiles.permute(0, 3, 1, 2).to(self.head.weight.dtype) / 255 - 0.5
        pooled = self.features(pixels).mean(dim=(2, 3), keepdim=True)
        scores: Tensor = self.head(self.neck(pooled).flatten(1))
        return scores
