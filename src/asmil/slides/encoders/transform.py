"""Preprocess tiles for a network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

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
