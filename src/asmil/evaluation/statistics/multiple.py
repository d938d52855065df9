"""Adjust p-values for multiple comparisons."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asmil.evaluation.statistics.checks import p_values_of
from asmil.tables.arrays import Floats


def holm(p: npt.ArrayLike) -> Floats:
    """Holm's adjusted p-values, in the given order; reject those at or below alpha.

    Sorted ascending, the adjusted i-th of k is the largest of min(1, (k - j + 1) p_j) over j <= i. The probability
    of any false rejection is at most alpha under any dependence.

    >>> [round(float(adjusted), 3) for adjusted in holm([0.2, 0.001, 0.04])]
    [0.2, 0.003, 0.08]
    """
    given = p_values_of(p)
    order = np.argsort(given, kind="stable")
    factors = np.arange(len(given), 0, -1)
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * given[order]), 1.0)
    return adjusted


def benjamini_hochberg(p: npt.ArrayLike) -> Floats:
    """Benjamini-Hochberg adjusted p-values, in the given order: they control the false discovery rate.

    Sorted ascending, the adjusted j-th of k is the smallest of min(1, k p_i / i) over i >= j.
    """
    given = p_values_of(p)
    order = np.argsort(given, kind="stable")[::-1]
    factors = len(given) / np.arange(len(given), 0, -1)
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(np.minimum.accumulate(factors * given[order]), 1.0)
    return adjusted
