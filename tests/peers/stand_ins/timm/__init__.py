"""Stands in for timm where it does not install, so that the programs that import it run.

It has one small network with drawn weights in place of every encoder. The features mean nothing; what is tested is how
they are written and read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 32


class DrawnEncoder(nn.Module):
    """Channels of a random convolution over blocks of 16 pixels, as a list like timm's `features_only`."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.blocks = nn.Conv2d(3, WIDTH, 16, stride=16)

    def forward(self, images: Tensor) -> list[Tensor]:
        return [self.blocks(images)]


def create_model(name: str, **options: Any) -> DrawnEncoder:
    """A drawn encoder, whatever the name."""
    del name, options
    return DrawnEncoder()
