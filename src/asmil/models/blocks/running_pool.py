"""Weighted means of tiles that arrive in chunks, in the memory of one chunk."""

from __future__ import annotations

import torch
from torch import Tensor


class RunningPool:
    """softmax(g) h for A rows of log-weights g, over all chunks added so far.

    Kept for every row: the largest g, the sum of exp(g - largest) and the sum of exp(g - largest) h. The largest only
    scales the two sums alike, so that nothing overflows.
    """

    def __init__(self) -> None:
        self._sums: tuple[Tensor, Tensor, Tensor] | None = None
        self._dtype = torch.float32

    def add(self, log_weights: Tensor, embedded: Tensor) -> None:
        """A x n log-weights (-inf leaves a tile out) and n x I embedded tiles."""
        largest = log_weights.amax(dim=-1, keepdim=True)
        if self._sums is not None:
            largest = torch.maximum(largest, self._sums[0])
        weights = (log_weights - largest).exp()
        total = weights.sum(dim=-1, keepdim=True)
        weighted = weights.to(embedded.dtype) @ embedded
        if self._sums is not None:
            before, total_before, weighted_before = self._sums
            rescale = (before - largest).exp()
            total = total + total_before * rescale
            weighted = weighted + weighted_before * rescale
        self._sums, self._dtype = (largest, total, weighted), embedded.dtype

    def mean(self) -> Tensor:
        """A x I, in the type of the embedded tiles."""
        assert self._sums is not None, "a bag has at least one tile"
        _, total, weighted = self._sums
        return (weighted / total).to(self._dtype)
