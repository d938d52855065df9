"""The mean over the tiles of a bag, whole or in chunks."""

from __future__ import annotations

import torch
from torch import Tensor


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
        kept = rows if mask is None else rows * mask.unsqueeze(1)
        self._sums.append(kept.sum(dim=0, dtype=torch.promote_types(rows.dtype, torch.float32)))
        self.count = self.count + (rows.shape[0] if mask is None else mask.sum())

    def mean(self, dtype: torch.dtype) -> Tensor:
        """I wide."""
        return (torch.stack(self._sums).sum(dim=0) / self.count).to(dtype)
