"""The entropy of attention."""

from __future__ import annotations

import torch
from torch import Tensor


def negative_entropy(log_attention: Tensor) -> Tensor:
    """`sum_i a_i log a_i` of every row, natural logarithm: A x N -> A, between -log N (uniform) and 0 (one tile).

    log_attention: log a, minus infinity where a tile has no weight; such a tile adds 0
    """
    # 0 in place of minus infinity would add exp(0) * 0 = 0, and its gradient is cut off by the fill.
    finite = log_attention.masked_fill(log_attention == -torch.inf, 0.0)
    return (finite.exp() * finite).sum(dim=-1)
