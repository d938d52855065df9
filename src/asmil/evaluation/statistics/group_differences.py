"""Do independent groups of patients have the same value of a metric, or the same share?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc

from asmil.errors import AsmilError
from asmil.tasks.checked_arrays import numbers_of, same_length


@dataclass(frozen=True)
class Heterogeneity:
    """Cochran's Q or Pearson's chi-square with its degrees of freedom, and the p-value."""

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


def differing_shares(
    successes: Sequence[int], totals: Sequence[int], resamples: int = 10_000, seed: int = 0
) -> Heterogeneity:
    """The test of equal shares in independent groups: Pearson's chi-square, with a permutation p-value.

    The successes are dealt out to the patients at random, so the p-value also holds for small groups.

    >>> found = differing_shares([9, 3], [10, 10])
    >>> round(found.q, 3), found.df, 0.01 < found.p < 0.03
    (7.5, 1, True)
    """
    observed, total = np.asarray(successes, dtype=np.int64), np.asarray(totals, dtype=np.int64)
    same_length(successes=len(observed), totals=len(total))
    if (total < 1).any() or (observed < 0).any() or (observed > total).any():
        raise AsmilError(f"successes {observed.tolist()} of {total.tolist()} are not possible; give 0 to n of n >= 1")
    share = observed.sum() / total.sum()
    if share in (0, 1):
        return Heterogeneity(0.0, len(total) - 1, 1.0)
    drawn = np.random.default_rng(seed).multivariate_hypergeometric(total, observed.sum(), resamples)
    chi_square = ((np.vstack([observed, drawn]) - share * total) ** 2 / (share * (1 - share) * total)).sum(axis=1)
    at_least = int((chi_square[1:] >= chi_square[0] * (1 - 1e-9)).sum())
    return Heterogeneity(float(chi_square[0]), len(total) - 1, (at_least + 1) / (resamples + 1))
