"""ResNet-18 and ResNet-50 (He et al., 2016) with torchvision's parameter names.

Entries: the complete networks with ImageNet weights, ResNet-50 truncated after its third stage as in CLAM, and the
ResNet-18 without learned normalization that DSMIL trains with SimCLR. Features are the last stage, averaged over the
tile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from asmil.slides.encoders.base import State
from asmil.slides.encoders.fused import convolved
from asmil.slides.encoders.registry import register

Norm = Callable[[int], nn.Module]


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut."""

    growth = 1

    def __init__(self, inputs: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = norm(channels)
        self.downsample = _shortcut(inputs, channels, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        out = convolved(x, self.conv1, self.bn1, "relu")
        out = convolved(out, self.conv2, self.bn2)
        return functional.relu(out.add_(self.downsample(x)), inplace=True)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut; the stride is in the 3 x 3, as in torchvision."""

    growth = 4

    def __init__(self, inputs: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        outputs = self.growth * channels
        self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
        self.bn1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = norm(channels)
        self.conv3 = nn.Conv2d(channels, outputs, 1, bias=False)
        self.bn3 = norm(outputs)
        self.downsample = _shortcut(inputs, outputs, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        out = convolved(x, self.conv1, self.bn1, "relu")
        out = convolved(out, self.conv2, self.bn2, "relu")
        out = convolved(out, self.conv3, self.bn3)
        return functional.relu(out.add_(self.downsample(x)), inplace=True)


class ResNet(nn.Module):
    """From normalized tiles, n x 3 x h x w, to the mean of the last stage, n x width.

    depths: number of blocks of each stage; fewer than four stages truncate the network
    """

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, ...], norm: Norm = nn.BatchNorm2d
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = norm(64)
        self.stages = len(depths)
        inputs = 64
        for number, depth in enumerate(depths):
            channels, stride = 64 * 2**number, 1 if number == 0 else 2
            blocks = []
            for position in range(depth):
                blocks.append(block(inputs, channels, 1 if position else stride, norm))
                inputs = channels * block.growth
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = convolved(x, self.conv1, self.bn1, "relu")
        x = functional.max_pool2d(x, 3, 2, 1)
        for number in range(self.stages):
            x = self.get_submodule(f"layer{number + 1}")(x)
        return x.mean((2, 3))


def without(published: Mapping[str, Tensor], layers: tuple[str, ...]) -> State:
    """torchvision's state dict without these layers."""
    return {name: tensor for name, tensor in published.items() if not name.startswith(layers)}


def from_simclr(published: Mapping[str, Tensor]) -> State:
    """DSMIL's embedder, from a sequence of stages or from its classifier, without projection and classifier."""
    stages = {"0": "conv1", "1": "bn1"} | {str(number + 3): f"layer{number}" for number in range(1, 5)}
    state = {}
    for name, tensor in published.items():
        if not re.match(r"(l1|l2|fc)\.", name):
            stage = re.sub(r"^features\.(\d+)\.", lambda number: f"{stages.get(number[1], number[1])}.", name)
            state[stage.removeprefix("feature_extractor.")] = tensor
    return state


def _shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))


RESNET18, RESNET50 = (2, 2, 2, 2), (3, 4, 6, 3)


for _name, _summary, _width, _block, _depths in (
    ("resnet18", "ResNet-18, ImageNet (torchvision's first weights)", 512, BasicBlock, RESNET18),
    ("resnet50", "ResNet-50, ImageNet (torchvision's first weights)", 2048, Bottleneck, RESNET50),
    ("resnet50_trunc", "ResNet-50 up to its third stage, ImageNet; CLAM's default", 1024, Bottleneck, RESNET50[:3]),
):
    register(
        _name,
        _summary,
        width=_width,
        tile_px=256,
        input_px=224,
        interpolation="bilinear",
        licence="BSD-3-Clause",
        hub=f"timm/{_name.removesuffix('_trunc')}.tv_in1k",
        build=partial(ResNet, _block, _depths),
        convert=partial(without, layers=("fc.", "layer4.")[: 5 - len(_depths)]),
    )
register(
    "resnet18_simclr",
    "ResNet-18 with instance normalization, trained on tiles by SimCLR; DSMIL's embedder",
    width=512,
    tile_px=224,
    min_px=64,
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
    licence="MIT",
    url="https://github.com/binli123/dsmil-wsi",
    build=partial(ResNet, BasicBlock, RESNET18, nn.InstanceNorm2d),
    convert=from_simclr,
)
