"""Weighted counts of points that lie earlier AND lower than given limits, for many limits and many sets of weights.

The points are split by the bits of their value, highest first (a wavelet matrix). log2(n) passes over the arrays answer
all limits in O((n + q) log n) per set of weights; comparing all pairs would need O(n q).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asmil.tasks.checked_arrays import Floats

Integers = npt.NDArray[np.intp]


def weight_before_and_below(values: Integers, weights: Floats, before: Integers, below: Integers) -> Floats:
    """R x q sums of the weights of points p < before_q with values_p < below_q.

    values: n integers in 0 .. n - 1; weights: R x n; before, below: q limits in 0 .. n
    """
    start, end = np.zeros_like(before), before
    total = np.zeros((len(weights), len(before)))
    for bit in reversed(range(len(values).bit_length())):
        is_low = (values >> bit & 1) == 0
        lows_before = np.concatenate([[0], np.cumsum(is_low)])
        low_weight = np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights * is_low, axis=1)], axis=1)
        takes_lows = (below >> bit & 1) == 1
        total += np.where(takes_lows, low_weight[:, end] - low_weight[:, start], 0.0)
        low_start, low_end, n_low = lows_before[start], lows_before[end], lows_before[-1]
        start = np.where(takes_lows, n_low + start - low_start, low_start)
        end = np.where(takes_lows, n_low + end - low_end, low_end)
        lows_first = np.argsort(~is_low, kind="stable")
        values, weights = values[lows_first], weights[:, lows_first]
    return total
