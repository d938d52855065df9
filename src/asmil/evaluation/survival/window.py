"""The months at which curves are judged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.evaluation.bootstrap import Interval
from asmil.evaluation.survival.predictions import TestedPart

Floats = npt.NDArray[np.float64]
GRID_SIZE = 40
OUTER_EVENTS = 0.05
SMALLEST_SIDE = 0.1
FEWEST_ON_A_SIDE = 5


def judged_window(parts: Sequence[TestedPart], event_times: Floats) -> Interval | None:
    """Where every training has patients on both sides, or None.

    From the 5 % to the 95 % quantile of the event times; not before every training has a tenth of its events (at least
    5, at most half), and not after fewer than a tenth of its patients (at least 5, at most half) are still followed:
    outside, single patients decide.
    """
    with_events = [part for part in parts if (part.event > 0).any()]
    if not with_events:
        return None
    low, high = np.quantile(event_times, [OUTER_EVENTS, 1 - OUTER_EVENTS])
    low = max(low, *(_inner(np.sort(part.time[part.event > 0])) for part in with_events))
    # a patient counts as followed longer only after t, so the window ends just before the time of the last needed
    high = min(high, *(np.nextafter(_inner(np.sort(part.time)[::-1]), 0.0) for part in with_events))
    return Interval(float(low), float(high)) if low < high else None


def _inner(ordered: Floats) -> float:
    """The time that leaves a tenth of the ordered times, itself included, on its outer side."""
    wanted = max(FEWEST_ON_A_SIDE, int(np.ceil(SMALLEST_SIDE * len(ordered))))
    return float(ordered[min(wanted, (len(ordered) + 1) // 2) - 1])


def spread_evenly(window: Interval | None) -> Floats:
    """Evenly spaced times over the window."""
    return np.empty(0) if window is None else np.linspace(window.low, window.high, GRID_SIZE)


def chosen_times(times: Sequence[float] | None, event_times: Floats) -> Floats:
    """The times asked for, or the quartiles of the event times."""
    if times is None:
        return np.unique(np.quantile(event_times, [0.25, 0.5, 0.75]))
    if not all(np.isfinite(t) and t > 0 for t in times):
        raise AsmilError(f"the times {', '.join(map(str, times))} cannot be judged; give months above 0")
    return np.unique(np.asarray(times, dtype=np.float64))
