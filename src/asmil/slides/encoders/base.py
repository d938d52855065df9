"""What an encoder is: its entry in the registry, and a network that is ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.errors import AsmilError

Interpolation = Literal["bilinear", "bicubic"]
Channels = tuple[float, float, float]


@dataclass(frozen=True)
class Transform:
    """Resize to resize_px, take the center of crop_px, scale to 0..1, subtract the mean, divide by std.

    Resizing averages over what a new pixel covers (antialias) and rounds to whole gray values, as Pillow does.
    None leaves the size as it is.
    """

    resize_px: int | None
    crop_px: int | None
    interpolation: Interpolation
    mean: Channels
    std: Channels

    def __call__(self, tiles: Tensor) -> Tensor:
        """Float32 n x 3 x h x w (channels last in memory) of uint8 n x h x w x 3."""
        if self.resize_px is not None and tiles.shape[1:3] != (self.resize_px, self.resize_px):
            tiles = resized(tiles, self.resize_px, self.interpolation)
        if self.crop_px is not None:
            tiles = center_crop(tiles, self.crop_px)
        return normalized(tiles, self.mean, self.std).permute(0, 3, 1, 2)


def resized(tiles: Tensor, side_px: int, interpolation: Interpolation) -> Tensor:
    """Tiles, uint8 n x h x w x c, of another side; whole gray values."""
    images = tiles.permute(0, 3, 1, 2)
    if images.device.type == "cpu":
        # In whole numbers, several times faster than in floats; GPUs have only the latter.
        images = functional.interpolate(images, (side_px, side_px), mode=interpolation, antialias=True)
    else:
        images = resized_in_floats(images, side_px, interpolation)
    return images.permute(0, 2, 3, 1)


def resized_in_floats(images: Tensor, side_px: int, interpolation: Interpolation) -> Tensor:
    """Images, n x c x h x w, of another side; rows and then columns, rounded after each, as whole numbers are.

    A sum that lies halfway between two gray values may be rounded to the other one.
    """
    images = images.float()
    for size in ((images.shape[2], side_px), (side_px, side_px)):
        images = functional.interpolate(images, size, mode=interpolation, antialias=True)
        images = images.add_(0.5).floor_().clamp_(0, 255)
    return images


def center_crop(tiles: Tensor, side_px: int) -> Tensor:
    """The middle square of tiles, n x h x w x c."""
    top, left = ((side - side_px) // 2 for side in tiles.shape[1:3])
    return tiles[:, top : top + side_px, left : left + side_px]


def normalized(tiles: Tensor, mean: Channels, std: Channels) -> Tensor:
    """(tiles / 255 - mean) / std, float32, of tiles n x h x w x 3."""
    n, height, width, _ = tiles.shape
    scale, shift = _row_constants(mean, std, width, tiles.device)
    return (tiles.reshape(n, height, width * 3) * scale).add_(shift).view(n, height, width, 3)


@lru_cache(maxsize=32)
def _row_constants(mean: Channels, std: Channels, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    # A row of pixels long, since three at a time do not vectorize; kept, so that a GPU does not get them every time.
    deviation = torch.tensor(std, dtype=torch.float64)
    scale, shift = 1 / (255 * deviation), -torch.tensor(mean, dtype=torch.float64) / deviation
    return scale.repeat(width).to(device, torch.float32), shift.repeat(width).to(device, torch.float32)


State = dict[str, Tensor]
Precision = Literal["auto", "float32", "bf16"]

CPU_PIXELS = 8 * 256 * 256
"""Pixels that a thread encodes at once: larger batches are slower, they leave the caches."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class EncoderEntry:
    """An encoder that is known by name.

    width: features of a tile
    tile_px, mpp: side of a tile in pixels and its microns per pixel, as the authors recommend
    build: makes the network; it maps n x 3 x h x w, normalized, to n x width, and keeps nothing but its state dict
        (it is built without memory, on the meta device, and the weights are put in afterwards)
    input_px: the side that the network takes; None: any
    resize_px: tiles are resized to this side, and their center of input_px is taken; None: resized to input_px
    min_px: the smallest tile
    mean, std: of the channels, for values of 0 to 1
    licence: of the weights
    hub, hub_file: repository and file at Hugging Face
    gated: whether the hub asks for a login and accepted terms
    url: where the terms are, and the weights
    embedded: gives the file of weights that come with the installation
    exact_in_bf16: whether features in bf16 are near those in float32; precision "auto" takes bf16 only then
    convert: from the published names (and tensors) to the names of our network; what it leaves out is not used
    """

    name: str
    summary: str
    width: int
    tile_px: int
    mpp: float
    licence: str
    url: str
    build: Callable[[], nn.Module]
    input_px: int | None = None
    resize_px: int | None = None
    min_px: int = 32
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    hub: str | None = None
    hub_file: str = "model.safetensors"
    gated: bool = False
    embedded: Callable[[], Path] | None = None
    exact_in_bf16: bool = True
    convert: Callable[[Mapping[str, Tensor]], State] | None = None

    @property
    def transform(self) -> Transform:
        """What happens to a tile before the network sees it."""
        return Transform(self.resize_px or self.input_px, self.input_px, self.interpolation, self.mean, self.std)


class Encoder:
    """A network that is ready to run.

    network: maps n x 3 x h x w, transformed, to n x width; put into evaluation mode and onto the device
    weights_hash: SHA-256 of the weights, "" for what has none
    precision: of the network; the features are float32 in both cases
    cast: in bf16, whether the network's weights are (faster), or only what torch holds safe (autocast)
    """

    def __init__(
        self,
        name: str,
        network: nn.Module,
        width: int,
        weights_hash: str,
        transform: Transform,
        device: torch.device,
        precision: Literal["float32", "bf16"] = "float32",
        min_px: int = 1,
        cast: bool = True,
    ) -> None:
        self.name, self.width, self.weights_hash, self.device = name, width, weights_hash, device
        self.transform, self.precision, self.min_px = transform, precision, min_px
        self.dtype = torch.bfloat16 if precision == "bf16" and cast else torch.float32
        self.autocast = precision == "bf16" and not cast
        self.network = network.eval().requires_grad_(False).to(device, self.dtype)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def __call__(self, tiles: Tensor) -> Tensor:
        """Features, n x width float32 on the encoder's device, of tiles, uint8 n x p x p x 3 on any device.

        Nothing waits for a GPU: the result may still be on its way when this returns.
        """
        if min(tiles.shape[1:3]) < self.min_px:
            raise AsmilError(
                f"encoder {self.name}: tiles of {tiles.shape[2]} x {tiles.shape[1]} px are too small for its network; "
                f"give tiles of {self.min_px} px or more"
            )
        if not len(tiles):
            return torch.zeros(0, self.width, device=self.device)
        return torch.cat(
            [self._encoded(part) for part in tiles.split(self.tiles_at_once(tiles.shape[1]) or len(tiles))]
        )

    def _encoded(self, tiles: Tensor) -> Tensor:
        inputs = self.transform(tiles.to(self.device, non_blocking=True)).to(self.dtype)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            features: Tensor = self.network(inputs)
        return features.float()

    def tiles_at_once(self, tile_px: int) -> int | None:
        """How many tiles of a side the network is given: on a CPU as many as its caches like; None: all."""
        if self.device.type != "cpu":
            return None
        return max(1, CPU_PIXELS // tile_px**2) * torch.get_num_threads()
