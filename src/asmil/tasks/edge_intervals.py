"""Confidence intervals for values at the edge of their range, where a bootstrap collapses to a point.

If every patient is predicted correctly, every resample of these patients gives the same value, although the next
patient may well be predicted wrongly. The intervals here depend on the number of patients instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtri

from asmil.reporting import Estimate, Interval
from asmil.reporting.estimate import AT_THE_EDGE, TOO_FEW, UNDEFINED
from asmil.tables.arrays import Floats
from asmil.tasks.base import Mask, Metric, PredictionFormat, Truth
from asmil.tasks.metrics import predicted_classes

TAIL = 0.025
EDGE = 1e-9
"""Values this close to 0 or 1 are at the edge."""


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
        of = next(one for one in task.part_metrics if one.name == metric.mean_of)
        ends = [edge_interval(task, of, truth, predictions, patients, k) for k in range(len(task.names))]
        low, high = np.mean(ends, axis=0)
        return Interval(float(low), float(high))
    if metric.edge is None:
        return UNDEFINED
    assert task.measure is not None
    found = task.measure(truth, predictions, np.ones((1, len(truth))))[metric.name][0]
    value = float(found if part is None else found[part])
    names, present = np.asarray(patients), task.memberships(truth)
    inside = np.ones(len(truth), dtype=np.bool_) if part is None else present[:, part]

    def count(mask: Mask) -> int:
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
