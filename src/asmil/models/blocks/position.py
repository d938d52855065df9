"""Position of tiles from their order: tokens on a square grid, mixed by depth-wise convolutions (PPEG of TransMIL).

    x' = x + conv7(x) + conv5(x) + conv3(x)

The three convolutions and the identity are one 7 x 7 convolution whose kernel is their sum, and that is how they are
computed. The grid is not the tissue's: token i is in row i // side, column i % side.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.blocks.exporting import warn_of_fixed_size

SIZES = (7, 5, 3)


def square_side(tokens: int) -> int:
    """The side of the smallest square grid for this many tokens."""
    warn_of_fixed_size("its tiles are laid out on a square whose side follows from their number")
    return math.isqrt(tokens - 1) + 1


def repeats_to_square(tokens: int) -> int:
    """How many of the first tokens come again to fill that square; never more than there are."""
    return square_side(tokens) ** 2 - tokens


class PyramidPosition(nn.Module):
    """Convolutions of three sizes over tokens on a grid, N x width -> N x width; a class token stays outside.

    The tokens are laid out row by row on the smallest square with room for them, and the first tokens fill what is
    left of it. A square of a side below `at_least` gets zero tokens at its end up to at_least^2, and the list is laid
    out again in rows of that length (MHIM's form has 7).
    """

    def __init__(self, width: int, at_least: int = 1) -> None:
        super().__init__()
        self.width = width
        self.at_least = at_least
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width, width, size, padding=size // 2, groups=width) for size in SIZES
        )

    def forward(self, tokens: Tensor) -> Tensor:
        n_tokens, repeats = len(tokens), repeats_to_square(len(tokens))
        side = max(square_side(n_tokens), self.at_least)
        if side**2 > n_tokens:
            zeros = tokens.new_zeros(side**2 - n_tokens - repeats, self.width)
            tokens = torch.cat([tokens, tokens[:repeats], zeros])
        weight, bias = self._joined()
        # Not in half precision: a kernel that holds the identity would round the tokens themselves.
        with torch.autocast(tokens.device.type, enabled=False):
            # A view: tokens in rows are a grid with the channels last.
            grid = tokens.to(weight.dtype).t().view(1, self.width, side, side)
            mixed = functional.conv2d(grid, weight, bias, padding=SIZES[0] // 2, groups=self.width)
        return mixed.flatten(2).squeeze(0).t()[:n_tokens]

    def _joined(self) -> tuple[Tensor, Tensor]:
        """Kernel and bias of the one convolution that equals the three and the identity."""
        weights, biases = [], []
        for convolution, size in zip(self.convolutions, SIZES, strict=True):
            assert isinstance(convolution, nn.Conv2d)
            assert convolution.bias is not None
            weights.append(functional.pad(convolution.weight, ((SIZES[0] - size) // 2,) * 4))
            biases.append(convolution.bias)
        weight = torch.stack(weights).sum(dim=0)
        identity = torch.zeros_like(weight[0])
        identity[0, SIZES[0] // 2, SIZES[0] // 2].fill_(1)  # an assignment would copy the number from the CPU
        return weight + identity, torch.stack(biases).sum(dim=0)
