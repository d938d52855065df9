"""t-tests of repeated differences, over splits or over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from asmil.errors import AsmilError
from asmil.tables.arrays import Floats
from asmil.tasks.checked_arrays import numbers_of

SAME = 1e-12
"""Differences of metrics that are closer than this differ only by rounding."""


@dataclass(frozen=True)
class TTest:
    """Student's t with its degrees of freedom and the two-sided p."""

    t: float
    df: int
    p: float


def corrected_resampled_t(differences: npt.ArrayLike, n_train: float, n_test: float) -> TTest:
    """Nadeau and Bengio's test of k differences a - b, one per train/test split.

    `t = mean d / sqrt((1/k + n_test/n_train) var d)` with k - 1 degrees of freedom. The second term accounts for
    the overlap of the training sets; sizes are those of one split (only their ratio matters).
    """
    sizes = numbers_of("n_train and n_test", [n_train, n_test])
    if not (np.isfinite(sizes) & (sizes > 0)).all():
        raise AsmilError(f"n_train and n_test are {n_train} and {n_test}; give the sizes of one split, both above 0")
    return _t_test(differences, n_test / n_train)


def paired_t(differences: npt.ArrayLike) -> TTest:
    """The plain paired t-test, which assumes independent differences.

    Over seeds on one test set, its result holds only for that test set; over splits that share slides, its p-value is
    too small.
    """
    return _t_test(differences, 0.0)


def _t_test(differences: npt.ArrayLike, overlap: float) -> TTest:
    given: Floats = numbers_of("differences", differences)
    if given.ndim != 1 or len(given) < 2 or not np.isfinite(given).all():
        raise AsmilError(f"differences: give a list of at least 2 finite differences; the shape is {given.shape}")
    count, mean = len(given), float(given.mean())
    if float(np.ptp(given)) > SAME:
        t = mean / math.sqrt((1 / count + overlap) * float(given.var(ddof=1)))
    elif abs(mean) <= SAME:
        t = 0.0
    else:
        raise AsmilError(
            f"differences: all {count} are {mean:g}, and a t-test needs a spread; report the difference as it is, or "
            "use a test on slides"
        )
    return TTest(t, count - 1, float(2 * stdtr(count - 1, -abs(t))))
