"""The predictions of a survival run: read, checked, and as arrays a training.

Curves are given at the right ends of time bins. Between them S is taken as a straight line, from 1 at time 0 (events
spread evenly over a bin); after the last end it stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError
from asmil.evaluation.run import Run, read_run
from asmil.training.layout import RunLayout

Floats = npt.NDArray[np.float64]


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


def read_survival_run(path: Path | str) -> Run:
    """Read and check the folder of a survival run; what is wrong with it is told in one sentence."""
    run = read_run(path, "survival")
    _refuse_impossible(RunLayout(path).predictions, run.predictions)
    return run


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


def _refuse_impossible(file: Path, table: pd.DataFrame) -> None:
    time = table["time"].to_numpy(dtype=np.float64)
    _refuse(file, table, table.duplicated(["patient", "fold", "seed", "role"]), "is predicted twice by one training")
    _refuse(file, table, ~(np.isfinite(time) & (time >= 0)), "has no time of at least 0; correct the manifest")
    _refuse(file, table, ~table["event"].isin([0, 1]), "has an event that is neither 0 nor 1; correct the manifest")
    differ = table.groupby("patient")[["time", "event"]].transform("nunique").gt(1).any(axis=1)
    _refuse(file, table, differ, "has two times or events; correct the manifest and train again")
    if {"survival", "survival_times"} <= set(table):
        broken = [not _is_curve(*pair) for pair in zip(table["survival_times"], table["survival"], strict=True)]
        _refuse(file, table, broken, "has a survival curve that is none (increasing times, values from 1 down to 0)")


def _refuse(file: Path, table: pd.DataFrame, bad: npt.ArrayLike, problem: str) -> None:
    marked = np.asarray(bad, dtype=bool)
    if marked.any():
        row = table[marked].iloc[0]
        raise AsmilError(f"{file}: patient {row['patient']} (fold {row['fold']}, seed {row['seed']}) {problem}")


def _is_curve(times: Any, survival: Any) -> bool:
    if times is None or survival is None:
        return times is None and survival is None
    times, survival = np.asarray(times, dtype=np.float64), np.asarray(survival, dtype=np.float64)
    if times.ndim != 1 or times.shape != survival.shape or len(times) == 0:
        return False
    rounding = 1e-6
    falling = np.diff(np.r_[1.0, survival, 0.0]) <= rounding
    return bool(np.isfinite(times).all() and times[0] >= 0 and (np.diff(times) > 0).all() and falling.all())
