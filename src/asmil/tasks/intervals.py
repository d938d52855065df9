"""Confidence intervals of metrics: patient-level bootstrap, and exact intervals where a bootstrap says nothing.

Patients are drawn with replacement, each with all its slides: slides of one patient resemble each other, and
drawing them one by one would make the interval too narrow. A resample is stored as counts (how often every
patient was drawn), which the metrics of `asmil.tasks.weighted` accept as weights.

At the edge of a metric's range a bootstrap collapses to a point: if every patient is predicted correctly, so is every
patient of every resample, although the next patient may well be predicted wrongly. Intervals at the edge depend on
the number of patients instead (`edge_interval`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri

from asmil.errors import AsmilError
from asmil.reporting import Estimate, Interval
from asmil.reporting.estimate import AT_THE_EDGE, TOO_FEW, UNDEFINED
from asmil.tables.arrays import Booleans, Floats
from asmil.tasks.base import Metric, PredictionFormat, Truth
from asmil.tasks.checked_arrays import Classes, same_length
from asmil.tasks.metrics import predicted_classes

Integers = npt.NDArray[np.integer]
CELLS_AT_ONCE = 2_000_000
SAME = 1e-12
"""Limits of an interval that are closer than this differ only by rounding."""
Key = TypeVar("Key", bound=Hashable)
Number = TypeVar("Number", bound=np.generic)
TAIL = 0.025
EDGE = 1e-9
"""Values this close to 0 or 1 are at the edge."""


def number_patients(patients: Sequence[Hashable]) -> npt.NDArray[np.intp]:
    """The patient index (0 .. P - 1, by sorted name) of each of n slides; independent of the order of slides."""
    return np.unique(np.asarray(patients), return_inverse=True)[1]


def units_of(patients: Sequence[Hashable] | npt.NDArray[np.generic] | None, n_slides: int) -> Classes:
    """The unit number of each of n slides; a unit (a patient, by sorted name, or a slide) is resampled as a whole."""
    if patients is None:
        return np.arange(n_slides)
    same_length(target=n_slides, patients=len(patients))
    names = list(patients)
    unnamed = [index for index, name in enumerate(names) if name is None or name != name]
    if unnamed:
        raise AsmilError(f"patients: the slide at index {unnamed[0]} has none; give the patient of every slide")
    return number_patients(names)


def generator_of(seed: int) -> np.random.Generator:
    """The random generator of a seed."""
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise AsmilError(f"seed is {seed!r}; give a non-negative integer")
    return np.random.Generator(np.random.PCG64(int(seed)))


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


def proportion_interval(successes: int, n: int) -> Interval:
    """The exact 95 % interval of a proportion (Clopper and Pearson 1934); undefined for n = 0.

    >>> low, high = proportion_interval(12, 12)
    >>> round(low, 3), high
    (0.735, 1.0)
    """
    if n == 0:
        return UNDEFINED
    low = float(betaincinv(successes, n - successes + 1, TAIL)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - TAIL)) if successes < n else 1.0
    return Interval(low, high)


def auc_interval(auc: float, positives: int, negatives: int) -> Interval:
    """A 95 % score interval of an AUC (Newcombe 2006, method 5); undefined without patients of both classes.

    Its limits are the values t with |auc - t| = 1.96 sqrt(V(t)), where for m positives, n negatives and
    N = (m + n) / 2:  V(t) = t (1 - t) (1 + (N - 1) ((1 - t) / (2 - t) + t / (1 + t))) / (m n)

    >>> low, high = auc_interval(1.0, 6, 6)
    >>> round(low, 3), high
    (0.689, 1.0)
    """
    if math.isnan(auc) or positives == 0 or negatives == 0:
        return UNDEFINED
    from scipy.optimize import brentq

    mean_size, reach = (positives + negatives) / 2, float(ndtri(1 - TAIL))

    def excess(t: float) -> float:
        spread = 1 + (mean_size - 1) * ((1 - t) / (2 - t) + t / (1 + t))
        return (auc - t) ** 2 - reach**2 * t * (1 - t) * spread / (positives * negatives)

    low = brentq(excess, EDGE, min(auc, 1 - EDGE)) if auc > EDGE else 0.0
    high = brentq(excess, max(auc, EDGE), 1 - EDGE) if auc < 1 - EDGE else 1.0
    return Interval(float(low), float(high))


def difference_interval(a: Estimate, b: Estimate) -> Interval:
    """The 95 % interval of a - b from the intervals of both (Zou and Donner 2008), as if they were independent.

    Values of the same patients tend to vary together, so this is wider than needed.

    >>> low, high = difference_interval(Estimate(1.0, Interval(0.7, 1.0)), Estimate(0.9, Interval(0.5, 1.0)))
    >>> round(low, 3), round(high, 3)
    (-0.216, 0.5)
    """
    difference = a.value - b.value
    below = math.hypot(a.value - a.interval.low, b.interval.high - b.value)
    above = math.hypot(a.interval.high - a.value, b.value - b.interval.low)
    return Interval(difference - below, difference + above)


def is_at_edge(estimate: Estimate) -> bool:
    """Whether all resamples of an estimate agree, so that a bootstrap says nothing about it."""
    return estimate.how in (AT_THE_EDGE, TOO_FEW)


def edge_interval(
    task: PredictionFormat,
    metric: Metric,
    truth: Truth,
    predictions: Floats,
    patients: Sequence[object],
    part: int | None = None,
) -> Interval:
    """The interval of a metric whose bootstrap collapsed; undefined if the metric has none, or n is 0.

    part: the class or label of a part metric. A mean over classes has the mean of their limits: if it is below the
    mean of the lower limits, at least one class is below its own.
    """
    if metric.mean_of:
        averaged = next(part_metric for part_metric in task.part_metrics if part_metric.name == metric.mean_of)
        ends = [edge_interval(task, averaged, truth, predictions, patients, k) for k in range(len(task.names))]
        low, high = np.mean(ends, axis=0)
        return Interval(float(low), float(high))
    if metric.edge is None:
        return UNDEFINED
    assert task.measure is not None
    values = task.measure(truth, predictions, np.ones((1, len(truth))))[metric.name][0]
    value = float(values if part is None else values[part])
    names, present = np.asarray(patients), task.memberships(truth)
    inside = np.ones(len(truth), dtype=np.bool_) if part is None else present[:, part]

    def count(mask: Booleans) -> int:
        return len(np.unique(names[mask]))

    if metric.edge == "auc":
        return auc_interval(value, count(inside), count(~inside))
    if metric.edge == "rest":
        inside = ~inside
    elif metric.edge == "called":
        inside = predicted_classes(predictions) == part
    n = count(inside)
    if min(value, 1 - value) > EDGE:
        return UNDEFINED
    low, high = proportion_interval(n if value > 0.5 else 0, n)
    # with a recall of at most r, F1 is at most that of a precision of 1
    return Interval(low, 2 * high / (1 + high)) if metric.edge == "f1" else Interval(low, high)


def widest(intervals: Iterable[Interval]) -> Interval:
    """The interval that covers all given ones; undefined if one of them is."""
    lows, highs = zip(*intervals, strict=True)
    return UNDEFINED if any(map(math.isnan, lows)) else Interval(min(lows), max(highs))
