"""How far a number could have been another one: the patient bootstrap.

Patients are drawn with replacement, each with all its slides: slides of one patient resemble each other, and
drawing them one by one would make the interval too narrow. A resample is kept as counts (how often every
patient was drawn), which the metrics of `asmil.tasks.weighted` take as weights.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]


class Interval(NamedTuple):
    """A range of plausible values; nan at both ends when it could not be estimated."""

    low: float
    high: float


def number_patients(patients: Sequence[Hashable]) -> npt.NDArray[np.intp]:
    """n numbers 0 .. P - 1, one a patient, by sorted name: the order of the slides does not matter."""
    return np.unique(np.asarray(patients), return_inverse=True)[1]


def draw_patients(n_patients: int, resamples: int, seed: int) -> npt.NDArray[np.int64]:
    """R x P counts: how often every patient was drawn. Each row draws P of P patients with replacement."""
    drawn = np.random.Generator(np.random.PCG64(seed)).integers(0, n_patients, size=(resamples, n_patients))
    row = np.arange(resamples)[:, None] * n_patients
    counts = np.bincount((row + drawn).ravel(), minlength=resamples * n_patients)
    return counts.reshape(resamples, n_patients)


def has_two_classes(target: Integers, n_classes: int, weights: Floats) -> npt.NDArray[np.bool_]:
    """R: whether at least two classes have weight; a resample with one class has no AUC and is left out."""
    membership = np.eye(n_classes)[np.asarray(target)]
    return np.asarray(((weights @ membership) > 0).sum(axis=1) >= 2)


def percentile_interval(samples: Floats, level: float = 0.95) -> Interval:
    """The middle `level` of the samples, by linear interpolation; nan samples are left out."""
    defined = samples[~np.isnan(samples)]
    if defined.size == 0:
        return Interval(np.nan, np.nan)
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(defined, [tail, 100 - tail])
    return Interval(float(low), float(high))
