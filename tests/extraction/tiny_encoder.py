"""Encoders for tests: fast, and with features that a test can work out by itself."""

import os
import time

import torch
from torch import nn


class ColorMoments(nn.Module):
    """Means and standard deviations of the channels: 6 features."""

    tile_px = 64
    mpp = 1.0

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.cat([pixels.mean(dim=(2, 3)), pixels.std(dim=(2, 3))], dim=1)


class Weighted(ColorMoments):
    """The same with a weight, so that it has a hash; `TINY_WEIGHT` changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(float(os.environ.get("TINY_WEIGHT", "1"))))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.weight * super().forward(pixels)


class Large(ColorMoments):
    """Features beyond what float16 holds."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return 1e6 * super().forward(pixels)


class Slow(ColorMoments):
    """Takes its time, so that a test can interrupt it."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02 * len(pixels))
        return super().forward(pixels)
