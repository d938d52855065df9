"""DeLong's test: do two scores of the same slides have the same AUC?

m positives with scores X_i, n negatives with Y_j, psi = 1, 1/2, 0 for X >, =, < Y:

    V10_i = mean_j psi(X_i, Y_j)      V01_j = mean_i psi(X_i, Y_j)      AUC = mean V10 = mean V01
    S = S10 / m + S01 / n             S10, S01: sample covariances of the two models' V10 and V01
    z = (AUC_a - AUC_b) / sqrt(S_aa + S_bb - 2 S_ab)

psi is never tabulated: the number of negatives below a positive is found by bisection in the sorted scores, in
O(N log N) for N slides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from asmil.errors import AsmilError
from asmil.reporting import Interval
from asmil.tables.arrays import Floats
from asmil.tasks.checked_arrays import classes_of, numbers_of, same_length

NORMAL_QUANTILE = float(ndtri(0.975))


@dataclass(frozen=True)
class DeLong:
    """Two AUCs on the same slides, their 2 x 2 covariance, and the test of their difference a - b.

    Intervals are 95 % intervals of the normal distribution; those of a single AUC can extend beyond 0 and 1.
    """

    auc_a: float
    auc_b: float
    covariance: Floats
    difference: float
    variance: float
    z: float
    p: float
    interval: Interval
    interval_a: Interval
    interval_b: Interval


def delong(target: npt.ArrayLike, score_a: npt.ArrayLike, score_b: npt.ArrayLike) -> DeLong:
    """Compare the AUCs of two scores for one binary outcome (1 is the positive class), on the same slides.

    Scores that rank the slides identically have variance 0: z = 0 and p = 1.

    >>> found = delong([0, 0, 0, 1, 1, 1], [0.1, 0.4, 0.2, 0.8, 0.3, 0.9], [0.3, 0.7, 0.1, 0.6, 0.2, 0.8])
    >>> round(found.auc_a, 3), round(found.auc_b, 3), round(found.z, 3), round(found.p, 3)
    (0.889, 0.667, 1.414, 0.157)
    """
    (auc_a, auc_b), covariance, variance = auc_covariance(target, score_a, score_b)
    difference = auc_a - auc_b
    if variance > 0:
        z = difference / math.sqrt(variance)
    elif difference == 0:
        z = 0.0
    else:
        raise AsmilError(
            f"the AUCs {auc_a:g} and {auc_b:g} differ by the same amount on every slide, so DeLong's variance is 0 "
            "and the test is undefined; use a permutation or bootstrap test, or more slides"
        )
    return DeLong(
        auc_a=auc_a,
        auc_b=auc_b,
        covariance=covariance,
        difference=difference,
        variance=variance,
        z=z,
        p=float(2 * ndtr(-abs(z))),
        interval=_around(difference, variance),
        interval_a=_around(auc_a, float(covariance[0, 0])),
        interval_b=_around(auc_b, float(covariance[1, 1])),
    )


def auc_covariance(
    target: npt.ArrayLike, score_a: npt.ArrayLike, score_b: npt.ArrayLike
) -> tuple[tuple[float, float], Floats, float]:
    """The two AUCs, their 2 x 2 covariance S, and the variance of their difference.

    The variance is computed from differences of integers, so it is exactly 0 when it should be.
    """
    positive, scores = _checked(target, score_a, score_b)
    (positives_a, negatives_a), (positives_b, negatives_b) = (_wins(score, positive) for score in scores)
    m, n = len(positives_a), len(negatives_a)
    covariance: Floats = np.zeros((2, 2))
    variance = 0.0
    for of_a, of_b, count, others in ((positives_a, positives_b, m, n), (negatives_a, negatives_b, n, m)):
        unit = (2.0 * others) ** 2 * count
        covariance += np.cov(np.stack([of_a, of_b]).astype(np.float64)) / unit
        variance += float(np.var((of_a - of_b).astype(np.float64), ddof=1)) / unit
    auc_a, auc_b = (float(wins.sum()) / (2.0 * m * n) for wins in (positives_a, positives_b))
    return (auc_a, auc_b), covariance, variance


def _checked(
    target: npt.ArrayLike, score_a: npt.ArrayLike, score_b: npt.ArrayLike
) -> tuple[npt.NDArray[np.bool_], list[Floats]]:
    positive = classes_of("target", target, 2) == 1
    scores = [numbers_of(name, score) for name, score in (("score_a", score_a), ("score_b", score_b))]
    for name, score in zip(("score_a", "score_b"), scores, strict=True):
        if score.ndim != 1:
            raise AsmilError(f"{name}: give one score per slide; the shape is {score.shape}")
    same_length(target=len(positive), score_a=len(scores[0]), score_b=len(scores[1]))
    n_positives, n_negatives = int(positive.sum()), int((~positive).sum())
    if min(n_positives, n_negatives) < 2:
        raise AsmilError(
            f"target: {n_positives} positives and {n_negatives} negatives are too few for DeLong's test, which needs "
            "at least 2 of each"
        )
    return positive, scores


def _wins(score: Floats, positive: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Twice the number of slides of the other class that each positive and each negative beats; ties count half."""
    x, y = score[positive], score[~positive]
    sorted_x, sorted_y = np.sort(x), np.sort(y)
    below_x = np.searchsorted(sorted_y, x, "left") + np.searchsorted(sorted_y, x, "right")
    above_y = 2 * len(x) - np.searchsorted(sorted_x, y, "left") - np.searchsorted(sorted_x, y, "right")
    return below_x, above_y


def _around(center: float, variance: float) -> Interval:
    reach = NORMAL_QUANTILE * math.sqrt(variance)
    return Interval(center - reach, center + reach)
