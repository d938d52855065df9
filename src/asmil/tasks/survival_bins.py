"""Time bins of discrete survival models.

C + 1 edges divide time into C half-open bins [edge_k, edge_k+1); the bin of a patient is the one that contains its
time, with or without an event. Only patients with an event determine the inner edges.

interval: C + 1 equally spaced edges from 0 to the largest event time
quantile: the C-quantiles of the event times, linearly interpolated
both:     then the first edge becomes 0, and the last the largest time + 1e-5

Unless given, C = ceil(sqrt(number of events)).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.tables.arrays import Booleans, Floats
from asmil.tasks.checked_arrays import checked_outcomes, floats_of

BinRule = Literal["interval", "quantile"]

LAST_EDGE_MARGIN = 1e-5
PATCH_GCN_MARGIN = 1e-6
PATCH_GCN_BINS = 4


def fit_bins(
    time: npt.ArrayLike,
    event: npt.ArrayLike,
    n_bins: int | None = None,
    rule: BinRule = "interval",
    all_times: npt.ArrayLike | None = None,
) -> Floats:
    """Compute the C + 1 edges from the times and events of the training patients.

    n_bins: C; None means ceil(sqrt(number of events)). Equal edges are dropped, so there may be fewer bins.
    all_times: the times of all patients, including test patients: the largest one determines the last edge, as in
        the official VLSA code. By default only training patients are used, and `bin_of` puts times beyond the last edge
        into the last bin.
    """
    times, events = _with_events(time, event)
    count = math.ceil(math.sqrt(int(events.sum()))) if n_bins is None else _checked_count(n_bins)
    if rule == "interval":
        edges = np.linspace(0.0, times[events].max(), count + 1)
    elif rule == "quantile":
        edges = np.quantile(times[events], np.linspace(0, 1, count + 1))
    else:
        raise AsmilError(f"the rule of the time bins must be 'interval' or 'quantile', not {rule!r}")
    last = times.max()
    if all_times is not None:
        seen = floats_of("all_times", all_times)
        checked_outcomes(seen, np.zeros_like(seen))
        last = max(last, seen.max(initial=0.0))
    return _closed(edges, 0.0, last + LAST_EDGE_MARGIN)


def patch_gcn_bins(time: npt.ArrayLike, event: npt.ArrayLike, n_bins: int = PATCH_GCN_BINS) -> Floats:
    """The edges of Patch-GCN and MCAT: quantiles of the event times of ALL patients, including the test folds.

    The outer edges are 1e-6 below the smallest and above the largest time of all patients.
    """
    times, events = _with_events(time, event)
    edges = np.quantile(times[events], np.linspace(0, 1, _checked_count(n_bins) + 1))
    return _closed(edges, times.min() - PATCH_GCN_MARGIN, times.max() + PATCH_GCN_MARGIN)


def bin_of(time: npt.ArrayLike, edges: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The bins 0 .. C - 1 of times; a time on an edge belongs to the bin on its right.

    Times before the first edge belong to the first bin, times from the last edge on to the last bin.

    >>> bin_of([0.0, 1.0, 2.5, 99.0], [0.0, 1.0, 2.0, 3.0]).tolist()
    [0, 1, 2, 2]
    """
    inner = np.asarray(edges, dtype=np.float64)[1:-1]
    return np.searchsorted(inner, np.asarray(time, dtype=np.float64), side="right").astype(np.int64)


def _with_events(time: npt.ArrayLike, event: npt.ArrayLike) -> tuple[Floats, Booleans]:
    times, events = checked_outcomes(time, event)
    if not events.any():
        raise AsmilError(
            f"none of the {len(times)} training patients has an event, so time bins cannot be computed; "
            "add patients with an event to the training set"
        )
    return times, events


def _checked_count(n_bins: int) -> int:
    if not isinstance(n_bins, int | np.integer) or n_bins < 1:
        raise AsmilError(f"the number of time bins is {n_bins!r}; give an integer of at least 1")
    return n_bins


def _closed(edges: Floats, first: float, last: float) -> Floats:
    """Replace the outer edges, and drop duplicates."""
    inner = edges[1:-1]
    inside = inner[(inner > first) & (inner < last)]
    return np.unique(np.concatenate([[first], inside, [last]]))
