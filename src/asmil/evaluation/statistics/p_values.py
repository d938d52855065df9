"""Adjust p-values for multiple comparisons, and combine the p-values of several seeds into one.

The seeds of a run are tested on the same slides, so their p-values depend on each other. The rules of `combine_p`
allow for this dependence; the functions with `if_independent` in their name do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import chdtrc, ndtr, ndtri

from asmil.errors import AsmilError, did_you_mean
from asmil.tables.arrays import Floats
from asmil.tasks.checked_arrays import numbers_of

CombinationRule = Literal["bonferroni", "twice_mean", "twice_median", "cauchy", "harmonic_mean"]


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


def combine_p(p: npt.ArrayLike, rule: CombinationRule) -> float:
    """Combine k p-values that may depend on each other.

    | rule | value | valid |
    | --- | --- | --- |
    | bonferroni | min(1, k min p) | under any dependence |
    | twice_mean | min(1, 2 mean p) | under any dependence |
    | twice_median | min(1, 2 median p) | under any dependence |
    | cauchy | 1/2 - arctan(mean tan((1/2 - p) pi)) / pi | for small values, asymptotically |
    | harmonic_mean | k / sum 1/p, unadjusted | for small values, asymptotically |

    >>> combine_p([0.01, 0.2, 0.03], "twice_median")
    0.06
    """
    if rule not in _RULES:
        raise AsmilError(f"the rule {rule!r} to combine p-values is unknown: {did_you_mean(str(rule), _RULES)}")
    return _RULES[rule](_some(p))


def fisher_if_independent(p: npt.ArrayLike) -> float:
    """Fisher's combination, the upper tail of chi-square at -2 sum ln p with 2k degrees of freedom.

    Use it only for independent data, such as different patients; never for seeds on one test set.
    """
    given = _some(p)
    with np.errstate(divide="ignore"):
        statistic = -2 * float(np.log(given).sum())
    return float(chdtrc(2 * len(given), statistic))


def stouffer_if_independent(p: npt.ArrayLike) -> float:
    """Stouffer's combination of one-sided p-values, the upper tail at sum z / sqrt k.

    Use it only for independent data, such as different patients; never for seeds on one test set.
    """
    given = _some(p)
    if given.min() == 0 and given.max() == 1:
        raise AsmilError("p: Stouffer's rule is undefined for p-values of both 0 and 1; use another rule")
    return float(ndtr(ndtri(given).sum() / math.sqrt(len(given))))


def p_values_of(p: npt.ArrayLike) -> Floats:
    """p-values between 0 and 1; a missing one is an error, since the size of the family must be known."""
    given = numbers_of("p", p)
    if given.ndim != 1:
        raise AsmilError(f"p: give a plain list of p-values; the shape is {given.shape}")
    wrong = (given < 0) | (given > 1)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise AsmilError(f"p: {given[index]:g} at index {index} is not a p-value; give numbers from 0 to 1")
    return given


def _some(p: npt.ArrayLike) -> Floats:
    given = p_values_of(p)
    if len(given) == 0:
        raise AsmilError("p: there is no p-value to combine; give at least one")
    return given


def _cauchy(p: Floats) -> float:
    return 0.5 - math.atan(float(np.tan((0.5 - p) * math.pi).mean())) / math.pi


def _harmonic_mean(p: Floats) -> float:
    smallest = float(p.min())
    # computed relative to the smallest p-value, since 1/p of a very small one overflows
    return 0.0 if smallest == 0 else len(p) * smallest / float((smallest / p).sum())


_RULES: Mapping[str, Callable[[Floats], float]] = {
    "bonferroni": lambda p: min(1.0, len(p) * float(p.min())),
    "twice_mean": lambda p: min(1.0, 2 * float(p.mean())),
    "twice_median": lambda p: min(1.0, 2 * float(np.median(p))),
    "cauchy": _cauchy,
    "harmonic_mean": _harmonic_mean,
}
