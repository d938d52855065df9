"""Cochran's Q: do independent groups of patients have the same value of a metric?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import chdtrc

from asmil.tasks.checked_arrays import numbers_of, same_length


@dataclass(frozen=True)
class Heterogeneity:
    """Q with its degrees of freedom, and p of a chi-square distribution."""

    q: float
    df: int
    p: float


def heterogeneity(values: Sequence[float], standard_errors: Sequence[float], sizes: Sequence[float]) -> Heterogeneity:
    """The test of equal values in independent groups: Q = sum w (v - mean)^2 with df = groups - 1.

    w = h / s^2 with the size h of a group and one variance for all, s^2 = sum h (h se^2) / sum h. With a variance of
    its own, a group whose value is near the end of the scale would count too much, and the test would reject too often.

    sizes: for an AUC m n / (m + n) of m positives and n negatives, else the number of patients or events

    >>> found = heterogeneity([0.8, 0.9], [0.03, 0.04], [20, 20])
    >>> round(found.q, 3), found.df, round(found.p, 3)
    (4.0, 1, 0.046)
    """
    value, error = numbers_of("values", values), numbers_of("standard_errors", standard_errors)
    size = numbers_of("sizes", sizes)
    same_length(values=len(value), standard_errors=len(error), sizes=len(size))
    variance = (size**2 * error**2).sum() / size.sum()
    mean = (size * value).sum() / size.sum()
    q = float((size * (value - mean) ** 2).sum() / variance)
    return Heterogeneity(q, len(value) - 1, float(chdtrc(len(value) - 1, q)))
