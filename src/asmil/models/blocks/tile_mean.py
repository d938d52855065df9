"""The mean over the tiles of a bag, whole or in chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from asmil.models.blocks.exporting import is_exporting
from asmil.models.blocks.randomness import draws_batched

BLOCK = 2048


class TileMean:
    """The mean of all rows added so far.

    count: the number of rows that are not padding

    Sums are kept in float32 at least: float16 overflows and bf16 loses the small terms of a long sum.
    """

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self.count: Tensor | int = 0

    def add(self, rows: Tensor, mask: Tensor | None = None) -> None:
        """rows: n x I; mask: n, false for padding."""
        self._sums.append(_sum(rows, mask))
        self.count = self.count + (rows.shape[0] if mask is None else mask.sum())

    def mean(self, dtype: torch.dtype) -> Tensor:
        """I wide."""
        return (torch.stack(self._sums).sum(dim=0) / self.count).to(dtype)


def _sum(rows: Tensor, mask: Tensor | None) -> Tensor:
    """The sum over rows, in float32 at least."""
    is_plain = rows.dtype == torch.float32 and not rows.requires_grad and not is_exporting() and not draws_batched()
    if rows.device.type == "cpu" and is_plain:
        # there, a product reads a row several times faster than a sum; blocks keep the rounding errors small
        weights = rows.new_ones(len(rows)) if mask is None else mask.to(rows.dtype)
        blocks = zip(weights.split(BLOCK), rows.split(BLOCK), strict=True)
        return torch.stack([some @ tiles for some, tiles in blocks]).sum(dim=0)
    kept = rows if mask is None else rows * mask.unsqueeze(1)
    return kept.sum(dim=0, dtype=torch.promote_types(rows.dtype, torch.float32))
