"""A sequence folded into a square and cut into windows.

L tokens fill a square row by row; its side is the square root of L, rounded up, then up to a whole number of windows;
what is left at its end is padded with zeros. A window is flattened row by row. Because the padding lies at the end,
the rows of windows after the last token hold nothing else, and are not formed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from asmil.models.blocks.exporting import warn_of_fixed_size


@dataclass(frozen=True)
class Windows:
    """L tokens in a square of `per_side` x `per_side` windows of `size` x `size` tokens."""

    tokens: int
    per_side: int
    size: int

    @property
    def filled(self) -> int:
        """How many windows there are in the rows of windows that hold tokens."""
        row = self.per_side * self.size**2
        return self.per_side * -(-self.tokens // row)

    def fold(self, sequence: Tensor) -> Tensor:
        """L x C -> `filled` windows x tokens of a window x C."""
        rows, width = self.filled // self.per_side, sequence.shape[1]
        padded = functional.pad(sequence, (0, 0, 0, self.filled * self.size**2 - self.tokens))
        square = padded.view(rows, self.size, self.per_side, self.size, width)
        return square.transpose(1, 2).reshape(self.filled, self.size**2, width)

    def unfold(self, windows: Tensor) -> Tensor:
        """What `fold` did, undone: back to L x C."""
        rows, width = self.filled // self.per_side, windows.shape[2]
        square = windows.view(rows, self.per_side, self.size, self.size, width)
        return square.transpose(1, 2).reshape(-1, width)[: self.tokens]


@dataclass(frozen=True)
class Folding:
    """The rule that cuts a sequence of any length.

    per_side: windows along a side of the square; size: instead, tokens along a side of a window
    min_tokens, padding_ratio: a sequence below `min_tokens`, or padded by more than L / `padding_ratio` tokens, becomes
    one window of an even side (0 switches either off)
    """

    per_side: int
    size: int | None = None
    min_tokens: int = 0
    padding_ratio: float = 0.0

    def windows(self, tokens: int) -> Windows:
        """How `tokens` tokens are cut."""
        warn_of_fixed_size("its tiles are folded into a square whose side follows from their number")
        side = math.isqrt(tokens - 1) + 1
        unit = self.size or self.per_side
        padded_side = side + -side % unit
        padding = padded_side**2 - tokens
        if tokens < self.min_tokens or padding > tokens / (self.padding_ratio + 1e-8):
            return Windows(tokens, 1, side + side % 2)
        if self.size:
            return Windows(tokens, padded_side // self.size, self.size)
        return Windows(tokens, self.per_side, padded_side // self.per_side)
