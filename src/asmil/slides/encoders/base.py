"""Encoders: their registry entries, and networks that are ready to run."""

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
from asmil.slides.settings import DEFAULT_MPP

Interpolation = Literal["bilinear", "bicubic"]
Channels = tuple[float, float, float]


@dataclass(frozen=True)
class Transform:
    """Resize to resize_px, center-crop to crop_px, scale to 0..1, subtract the mean, divide by std.

    Resizing is antialiased and rounds to integer gray values, like Pillow. None does not change the size.
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
    """Tiles, uint8 n x h x w x c, resized to another side, with integer gray values."""
    images = tiles.permute(0, 3, 1, 2)
    if images.device.type == "cpu":
        # integers are several times faster than floats, but are not available on GPUs
        images = functional.interpolate(images, (side_px, side_px), mode=interpolation, antialias=True)
    else:
        images = resized_in_floats(images, side_px, interpolation)
    return images.permute(0, 2, 3, 1)


def resized_in_floats(images: Tensor, side_px: int, interpolation: Interpolation) -> Tensor:
    """Images, n x c x h x w, resized to another side: rows, then columns, rounded after each, as with integers.

    A sum halfway between two gray values may be rounded differently.
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
    # as long as a row of pixels, since three values do not vectorize; cached, to avoid copying them to a GPU every time
    deviation = torch.tensor(std, dtype=torch.float64)
    scale, shift = 1 / (255 * deviation), -torch.tensor(mean, dtype=torch.float64) / deviation
    return scale.repeat(width).to(device, torch.float32), shift.repeat(width).to(device, torch.float32)


State = dict[str, Tensor]
Precision = Literal["auto", "float32", "bf16"]

CPU_PIXELS = 8 * 256 * 256
"""Pixels that a thread encodes at once: larger batches are slower, since they exceed the CPU caches."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class EncoderEntry:
    """A registered encoder.

    width: number of features of a tile
    tile_px, mpp: side of a tile in pixels and its microns per pixel, as recommended by the authors
    build: creates the network, which maps normalized n x 3 x h x w to n x width and stores nothing outside its state
        dict (it is created on the meta device, without memory, and the weights are loaded afterwards)
    input_px: input side of the network; None: any
    resize_px: tiles are resized to this side and center-cropped to input_px; None: resized to input_px
    min_px: the smallest tile
    mean, std: of the channels, for values of 0 to 1
    licence: licence of the weights
    hub, hub_file: repository and file on Hugging Face
    gated: whether the hub requires a login and accepted terms
    url: address of the terms and the weights; by default that of the hub
    embedded: returns the file of weights that come with the installation
    exact_in_bf16: whether bf16 features are close to float32 ones; precision "auto" uses bf16 only then
    convert: maps the published names (and tensors) to those of our network; omitted tensors are not used
    """

    name: str
    summary: str
    width: int
    tile_px: int
    licence: str
    build: Callable[[], nn.Module]
    url: str = ""
    mpp: float = DEFAULT_MPP
    input_px: int | None = None
    resize_px: int | None = None
    min_px: int = 32
    interpolation: Interpolation = "bicubic"
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    hub: str | None = None
    hub_file: str = "model.safetensors"
    gated: bool = False
    embedded: Callable[[], Path] | None = None
    exact_in_bf16: bool = True
    convert: Callable[[Mapping[str, Tensor]], State] | None = None

    def __post_init__(self) -> None:
        if self.hub and not self.url:
            object.__setattr__(self, "url", f"https://huggingface.co/{self.hub}")

    @property
    def transform(self) -> Transform:
        """The preprocessing of a tile."""
        return Transform(self.resize_px or self.input_px, self.input_px, self.interpolation, self.mean, self.std)


class Encoder:
    """A network that is ready to run.

    network: maps transformed n x 3 x h x w to n x width; set to eval mode and moved to the device
    weights_hash: SHA-256 of the weights, "" if there are none
    precision: of the network; the features are always float32
    cast: in bf16, whether to convert the weights (faster) instead of using autocast
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

        The call is asynchronous on a GPU: the result may not be ready when it returns.
        """
        if min(tiles.shape[1:3]) < self.min_px:
            raise AsmilError(
                f"encoder {self.name}: tiles of {tiles.shape[2]} x {tiles.shape[1]} px are too small for its network; "
                f"use tiles of at least {self.min_px} px"
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
        """Batch size for tiles of a given side: on a CPU as many as fit its caches; None: all."""
        if self.device.type != "cpu":
            return None
        return max(1, CPU_PIXELS // tile_px**2) * torch.get_num_threads()
