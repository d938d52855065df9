"""The predictions of a survival run: checked, as arrays per training, and the months over which they are evaluated.

Curves are given at the right ends of time bins. Between them S is taken as a straight line, from 1 at time 0 (events
spread evenly over a bin); after the last end it stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError
from asmil.evaluation.run import Run, refuse_rows
from asmil.reporting import Interval
from asmil.tasks.checked_arrays import Floats
from asmil.training.layout import RunLayout

GRID_SIZE = 40
OUTER_EVENTS = 0.05
SMALLEST_SIDE = 0.1
FEWEST_ON_A_SIDE = 5


@dataclass(frozen=True)
class TestedPart:
    """What one training predicted: n patients (numbers into the evaluated ones), their risks and curves.

    curve_times, curve_values: n arrays each, or None where the run has no curves
    """

    fold: int
    seed: int
    patients: npt.NDArray[np.intp]
    time: Floats
    event: Floats
    risk: Floats
    curve_times: tuple[Floats, ...] | None
    curve_values: tuple[Floats, ...] | None

    @property
    def key(self) -> tuple[int, int]:
        """Fold and seed."""
        return self.fold, self.seed

    def survival(self, times: Floats) -> Floats | None:
        """n x T values of S at the given times, or None without curves."""
        if self.curve_times is None or self.curve_values is None:
            return None
        curves = zip(self.curve_times, self.curve_values, strict=True)
        return np.stack([survival_between_bins(ends, values, times) for ends, values in curves])


def survival_between_bins(ends: Floats, survival: Floats, times: Floats) -> Floats:
    """S at T times from S at the right ends of bins: straight lines from (0, 1); constant after the last end.

    >>> survival_between_bins(np.array([10.0, 20.0]), np.array([0.5, 0.4]), np.array([5.0, 10.0, 30.0])).tolist()
    [0.75, 0.5, 0.4]
    """
    return np.interp(times, np.r_[0.0, ends], np.r_[1.0, survival])


def refuse_impossible(run: Run) -> None:
    """Raise AsmilError for outcomes or curves that cannot be."""
    file, table = RunLayout(run.path).predictions, run.predictions
    twice = table.duplicated(["patient", "fold", "seed", "role"])
    refuse_rows(file, table, twice, "is of a patient that the same training predicts twice")
    differ = table.groupby("patient")[["time", "event"]].transform("nunique").gt(1).any(axis=1)
    refuse_rows(file, table, differ, "is of a patient with two times or events; correct the manifest and train again")
    if {"survival", "survival_times"} <= set(table):
        broken = [not _is_curve(*pair) for pair in zip(table["survival_times"], table["survival"], strict=True)]
        refuse_rows(file, table, broken, "has a survival curve whose times do not increase or whose values rise")


def tested_parts(rows: pd.DataFrame) -> list[TestedPart]:
    """The trainings behind the given rows, by fold and seed; patients are numbered by sorted name."""
    number = {name: index for index, name in enumerate(sorted(rows["patient"].unique()))}
    return [_tested_part(part, number) for _, part in rows.groupby(["fold", "seed"], sort=True)]


def _tested_part(rows: pd.DataFrame, number: Mapping[Any, int]) -> TestedPart:
    has_curves = "survival" in rows and bool(rows["survival"].notna().all())
    return TestedPart(
        fold=int(rows["fold"].iloc[0]),
        seed=int(rows["seed"].iloc[0]),
        patients=np.array([number[name] for name in rows["patient"]], dtype=np.intp),
        time=rows["time"].to_numpy(dtype=np.float64),
        event=rows["event"].to_numpy(dtype=np.float64),
        risk=rows["risk"].to_numpy(dtype=np.float64),
        curve_times=_arrays(rows["survival_times"]) if has_curves else None,
        curve_values=_arrays(rows["survival"]) if has_curves else None,
    )


def _arrays(column: Iterable[Any]) -> tuple[Floats, ...]:
    return tuple(np.asarray(values, dtype=np.float64) for values in column)


def _is_curve(times: Any, survival: Any) -> bool:
    if times is None or survival is None:
        return times is None and survival is None
    times, survival = np.asarray(times, dtype=np.float64), np.asarray(survival, dtype=np.float64)
    if times.ndim != 1 or times.shape != survival.shape or len(times) == 0:
        return False
    rounding = 1e-6
    falling = np.diff(np.r_[1.0, survival, 0.0]) <= rounding
    return bool(np.isfinite(times).all() and times[0] >= 0 and (np.diff(times) > 0).all() and falling.all())


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
        raise AsmilError(f"the times {', '.join(map(str, times))} cannot be evaluated; give months above 0")
    return np.unique(np.asarray(times, dtype=np.float64))
