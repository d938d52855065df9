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


def heterogeneity(values: Sequence[float], standard_errors: Sequence[float]) -> Heterogeneity:
    """The test of equal values in independent groups: Q = sum w (v - mean)^2 with w = 1 / se^2, df = groups - 1.

    >>> found = heterogeneity([0.8, 0.9], [0.03, 0.04])
    >>> found.q, found.df, round(found.p, 3)
    (4.0, 1, 0.046)
    """
    value, error = numbers_of("values", values), numbers_of("standard_errors", standard_errors)
    same_length(values=len(value), standard_errors=len(error))
    weight = 1 / error**2
    q = float((weight * (value - (weight * value).sum() / weight.sum()) ** 2).sum())
    return Heterogeneity(round(q, 12), len(value) - 1, float(chdtrc(len(value) - 1, q)))
