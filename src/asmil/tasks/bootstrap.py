"""Patient-level bootstrap confidence intervals.

Patients are drawn with replacement, each with all its slides: slides of one patient resemble each other, and
drawing them one by one would make the interval too narrow. A resample is stored as counts (how often every
patient was drawn), which the metrics of `asmil.tasks.weighted` accept as weights.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from asmil.reporting import Estimate, Interval
from asmil.reporting.estimate import AT_THE_EDGE, TOO_FEW, UNDEFINED
from asmil.tables.arrays import Floats

Integers = npt.NDArray[np.integer]
CELLS_AT_ONCE = 2_000_000
SAME = 1e-12
"""Limits of an interval that are closer than this differ only by rounding."""
Key = TypeVar("Key", bound=Hashable)
Number = TypeVar("Number", bound=np.generic)


def number_patients(patients: Sequence[Hashable]) -> npt.NDArray[np.intp]:
    """The patient index (0 .. P - 1, by sorted name) of each of n slides; independent of the order of slides."""
    return np.unique(np.asarray(patients), return_inverse=True)[1]


def draw_patients(n_patients: int, resamples: int, seed: int) -> npt.NDArray[np.int64]:
    """R x P counts: how often every patient was drawn. Each row draws P of P patients with replacement."""
    drawn = np.random.Generator(np.random.PCG64(seed)).integers(0, n_patients, size=(resamples, n_patients))
    row = np.arange(resamples)[:, None] * n_patients
    counts = np.bincount((row + drawn).ravel(), minlength=resamples * n_patients)
    return counts.reshape(resamples, n_patients)


def under_draws(
    measure: Callable[[Floats], Mapping[Key, npt.NDArray[Number]]], counts: Integers, n_rows: int
) -> dict[Key, npt.NDArray[Number]]:
    """The results of `measure` under every resample of patients.

    measure: from R x P weights of patients to arrays whose first axis is R; counts: all draws, from `draw_patients`
    n_rows: number of rows weighted by a draw; draws are processed in batches that fit into memory
    """
    step = max(1, CELLS_AT_ONCE // max(1, n_rows))
    portions = [measure(counts[start : start + step].astype(np.float64)) for start in range(0, len(counts), step)]
    return {name: np.concatenate([portion[name] for portion in portions]) for name in portions[0]}


def percentile_interval(samples: Floats, level: float = 0.95) -> Interval:
    """The central `level` of the samples, by linear interpolation; nan samples are ignored."""
    defined = samples[~np.isnan(samples)]
    if defined.size == 0:
        return UNDEFINED
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(defined, [tail, 100 - tail])
    return Interval(float(low), float(high))


def estimate(
    value: float,
    samples: Floats,
    skipped: int = 0,
    at_edge: Callable[[], Interval] = lambda: UNDEFINED,
    **details: Any,
) -> Estimate:
    """A value with the interval of its samples; an undefined value has no interval.

    skipped: number of resamples that are missing from the samples; undefined samples are added to it
    at_edge: the interval if all samples are the same, which says nothing about other patients
    """
    if np.isnan(value):
        return Estimate(float(value), **details)
    interval = percentile_interval(samples)
    if has_collapsed(interval):
        interval = at_edge()
        details["how"] = AT_THE_EDGE if interval.is_defined else TOO_FEW
    return Estimate(float(value), interval, skipped=skipped + int(np.isnan(samples).sum()), **details)


def has_collapsed(interval: Interval) -> bool:
    """Whether the limits of an interval are the same number."""
    return interval.high - interval.low <= SAME


def drawn_slides(patients: Sequence[Hashable], resamples: int, seed: int) -> Floats:
    """(1 + R) x n counts of n slides: first 1 for every slide, then how often its patient is in each of R resamples."""
    numbers = number_patients(patients)
    drawn = draw_patients(int(numbers.max()) + 1, resamples, seed)[:, numbers]
    return np.vstack([np.ones(len(numbers)), drawn])


def mean_estimate(values: Sequence[float] | Floats, counts: Floats) -> Estimate:
    """The mean of the defined values of slides; counts: from `drawn_slides`."""
    return ratio_estimate(values, ~np.isnan(np.asarray(values, dtype=np.float64)), counts)


def ratio_estimate(parts: npt.ArrayLike, wholes: npt.ArrayLike, counts: Floats) -> Estimate:
    """The sum of the parts divided by the sum of the wholes, over slides whose part is defined."""
    part, whole = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    defined = ~np.isnan(part)
    above, below = counts[:, defined] @ part[defined], counts[:, defined] @ whole[defined]
    ratios = np.where(below > 0, above / np.where(below > 0, below, 1.0), np.nan)
    return estimate(float(ratios[0]), ratios[1:], n=int(defined.sum()))
