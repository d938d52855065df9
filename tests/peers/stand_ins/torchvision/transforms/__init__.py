"""Resize, ToTensor, Normalize, CenterCrop and Compose of torchvision, for PIL images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor


class InterpolationMode(Enum):
    """The ways to resize that the peers name."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class Compose:
    """One transform after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Resize:
    """The shorter side to a number of pixels, or both to a pair."""

    def __init__(self, size: int | Sequence[int], **options: Any) -> None:
        del options
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        if isinstance(self.size, int):
            scale = self.size / min(image.size)
            return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
        height, width = self.size
        return image.resize((width, height), Image.Resampling.BILINEAR)


class CenterCrop:
    """A square in the middle."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        left, top = (image.width - self.size) // 2, (image.height - self.size) // 2
        return image.crop((left, top, left + self.size, top + self.size))


class ToTensor:
    """Channels first, from 0 to 1."""

    def __call__(self, image: Image.Image) -> Tensor:
        return torch.from_numpy(np.asarray(image, dtype=np.float32).copy()).permute(2, 0, 1) / 255


class Normalize:
    """Subtract a mean and divide by a standard deviation, by channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], **options: Any) -> None:
        del options
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.std
