"""LIPN, the pre-screening network of HDMIL: it reads low-magnification tiles and decides which to keep.

    s_i = CNN(pixels_i / 255 - 0.5)          C scores per tile, see `TinyMobileNet`
    m_i = 1 if sigmoid(s_i) > 0.5 else 0     straight-through gradient, no noise

HDMIL trains it (`hdmil.py`). Here is the model of an official checkpoint of LIPN alone, which is not a method, since it
predicts nothing of a slide. Load it together with DMIN's tensors, in one state dict, for the whole HDMIL.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.cohort.source import LOWRES
from asmil.errors import AsmilError
from asmil.models.base import MILModel, ModelConfig, Output
from asmil.models.blocks.randomness import RandomModule
from asmil.models.official import Config, Converted, Tensors, converted, register_official, renamed

TILES_AT_ONCE = 8192
"""In inference, tiles go through the network in parts of this size; in training BatchNorm sees the bag whole."""


def harden(soft: Tensor) -> Tensor:
    """1 where `soft` is above 0.5, else 0; its gradient is that of `soft`."""
    hard = (soft > 0.5).to(soft.dtype)
    return hard + (soft - soft.detach())


class GumbelMask(RandomModule):
    """A mask from scores z: 1 where sigmoid((z + g) / T) > 0.5, with the gradient of that sigmoid.

    While training, g is the difference of two Gumbel(0, 1) variables, which is one logistic variable,
    log u - log(1 - u) of a uniform u. In inference there is no noise and no temperature: 1 where sigmoid(z) > 0.5.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, scores: Tensor) -> Tensor:
        if not self.training:
            return harden(torch.sigmoid(scores))
        uniform = self.uniform(scores.shape, scores)
        # the generator may give 0 exactly
        noise = torch.logit(uniform, eps=1e-7)
        return harden(torch.sigmoid((scores + noise) / self.temperature))


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
            # one value per channel has no variance: normalize as in inference
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
        return self.project(self.middle(self.expand(self.start(x))))


class TinyMobileNet(nn.Module):
    """The smallest MobileNetV4: tiles of a few pixels, N x p x p x 3 bytes -> scores, N x C.

        conv 3x3 s2 16, conv 3x3 s2 16, conv 1x1 16, conv 3x3 s2 48, conv 1x1 24      each with BatchNorm and ReLU
        inverted bottleneck 5x5 s2, 24 -> 48; inverted bottleneck 3x3 s2, 48 -> 64
        mean over the pixels; conv 1x1 64 with BatchNorm and ReLU; linear 64 -> C

    An inverted bottleneck is: depthwise conv, 1x1 conv to twice the width, depthwise conv (with the stride), 1x1 conv
    to the new width; each with BatchNorm, and ReLU after the second and third. No step keeps its size, so there are no
    residual connections. Convolutions have no bias and are padded with zeros to (k - 1) / 2.
    """

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
        return self.head(self.neck(pooled).flatten(1))


class LIPN(MILModel):
    """The pre-screening network alone, as its official checkpoints hold it: which tiles to keep, from their pixels.

    It predicts nothing about the bag: its logits are the mean scores of the tiles.
    """

    score_axes = ("class",)

    def __init__(self, in_features: int, n_outputs: int, config: ModelConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.network = TinyMobileNet(n_outputs)

    def refuse_misfit(self, bag: Any) -> None:
        """Features of any width are taken, as they are not read."""
        if not isinstance(bag, Bag):
            super().refuse_misfit(bag)

    def attend(self, bag: Bag) -> Tensor:
        scores: Tensor = self.network(lowres_tiles(bag))
        return scores.t()

    def forward(self, bag: Bag) -> Output:
        scores = self.attend(bag)
        means = scores.mean(dim=1)
        return Output(means, scores, means, extras={"mask": harden(torch.sigmoid(scores))})


def lowres_tiles(bag: Bag) -> Tensor:
    """The low-magnification tiles of a bag, N x p x p x 3 bytes."""
    tiles = bag.extras.get(LOWRES, {}).get("tiles")
    if tiles is None:
        raise AsmilError(
            f"{bag.id}: the pre-screening network needs low-magnification tiles; write them to the group 'lowres' of "
            "the feature file (dataset 'tiles', N x p x p x 3 bytes), or train without model.lipn"
        )
    if tiles.ndim != 4 or len(tiles) != len(bag) or tiles.shape[3] != 3:
        raise AsmilError(
            f"{bag.id}: lowres/tiles has shape {tuple(tiles.shape)}; it must be {len(bag)} x p x p x 3, "
            "one image per tile, in the order of the features"
        )
    assert isinstance(tiles, Tensor)
    return tiles


_PARTS = {"start": "start_dw", "expand": "expand", "middle": "middle_dw", "project": "proj"}
_NORM_LEAVES = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def lipn_state(tensors: Tensors) -> dict[str, Tensor]:
    """The state of a `TinyMobileNet` from the official tensors."""
    convs, norms = {"neck.conv": "extractor.conv.block.0"}, {"neck.norm": "extractor.conv.block.1"}
    for index in range(5):
        convs[f"features.{index}.conv"] = f"extractor.features.{index}.block.0"
        norms[f"features.{index}.norm"] = f"extractor.features.{index}.block.1"
    for index in (5, 6):
        for ours, theirs in _PARTS.items():
            convs[f"features.{index}.{ours}.conv"] = f"extractor.features.{index}.{theirs}_conv"
            norms[f"features.{index}.{ours}.norm"] = f"extractor.features.{index}.{theirs}_norm"
    return {
        **renamed(tensors, convs),
        **renamed(tensors, norms, _NORM_LEAVES),
        **renamed(tensors, {"head": "extractor.classifier"}),
    }


def _convert(tensors: Tensors, config: Config) -> Converted:
    state = {f"network.{name}": value for name, value in lipn_state(tensors).items()}
    pixels = int(config.get("pixels", 16))
    return converted(state, 3 * pixels**2, len(state["network.head.weight"]))


register_official(
    "hdmil_lipn",
    ("extractor.classifier", "extractor.features.0.block.0"),
    _convert,
    build=lambda in_features, n_outputs, options: LIPN(in_features, n_outputs, ModelConfig(**options)),
)
