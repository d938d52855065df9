"""Patients split by predicted risk: Kaplan-Meier curves of the groups and the log-rank test between them.

Risks of different trainings have no common scale. Each training's risks are therefore turned into ranks among its
own patients (from 0 to 1, ties share their mean), and a patient's ranks are averaged over its trainings. The cut is
made within the patients of a fold, and the groups of all folds are joined. Folds that share patients have one cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.evaluation.survival.predictions import TestedPart
from asmil.reporting import Interval
from asmil.tasks.checked_arrays import Floats

GROUP_NAMES = {2: ("low risk", "high risk"), 3: ("low risk", "middle risk", "high risk")}
CUT_NAMES = {2: "median", 3: "tertiles"}


@dataclass(frozen=True)
class RiskGroup:
    """One group: its Kaplan-Meier curve with a 95 % band (log-log), and the median survival time with its interval.

    A median that is not reached is infinite.
    """

    name: str
    patients: int
    events: int
    median: float
    median_interval: Interval
    times: Floats = field(repr=False)
    survival: Floats = field(repr=False)
    low: Floats = field(repr=False)
    high: Floats = field(repr=False)
    censored: Floats = field(repr=False)


@dataclass(frozen=True)
class RiskGroups:
    """The groups, the log-rank test between them (nan without two groups), and the numbers at risk (groups x T)."""

    groups: tuple[RiskGroup, ...]
    cut: str
    statistic: float
    p: float
    at_risk_times: Floats
    at_risk: npt.NDArray[np.int64]


def group_patients(parts: Sequence[TestedPart], n_patients: int, n_groups: int = 2) -> npt.NDArray[np.intp]:
    """P group numbers, 0 for the lowest risk; equal risks fall into the same, lower group."""
    from scipy.stats import rankdata

    if n_groups not in GROUP_NAMES:
        raise AsmilError(f"{n_groups} risk groups cannot be made; give 2 (cut at the median) or 3 (at the tertiles)")
    total, count, fold_of = np.zeros(n_patients), np.zeros(n_patients), np.full(n_patients, -1)
    for part in parts:
        total[part.patients] += (rankdata(part.risk) - 0.5) / len(part.risk)
        count[part.patients] += 1
        fold_of[part.patients] = part.fold
    if _folds_share_patients(parts):
        fold_of[:] = 0
    rank, rounding = total / count, 1e-9
    group = np.zeros(n_patients, dtype=np.intp)
    for fold in np.unique(fold_of):
        members = fold_of == fold
        cuts = np.quantile(rank[members], np.arange(1, n_groups) / n_groups)
        group[members] = (rank[members, None] > cuts + rounding).sum(axis=1)
    return group


def compare_groups(time: Floats, event: Floats, group: npt.NDArray[np.intp], n_groups: int = 2) -> RiskGroups:
    """Kaplan-Meier curves of the groups and the log-rank test: time, event, group: P values."""
    from lifelines.statistics import multivariate_logrank_test

    present = [number for number in range(n_groups) if (group == number).any()]
    ticks = _round_ticks(float(time.max()))
    statistic = p = math.nan
    if len(present) > 1 and (event > 0).any():
        test = multivariate_logrank_test(time, group, event)
        statistic, p = float(test.test_statistic), float(test.p_value)
    return RiskGroups(
        groups=tuple(
            _risk_group(GROUP_NAMES[n_groups][number], time[group == number], event[group == number])
            for number in present
        ),
        cut=CUT_NAMES[n_groups],
        statistic=statistic,
        p=p,
        at_risk_times=ticks,
        at_risk=np.array([(time[group == number, None] >= ticks).sum(axis=0) for number in present]),
    )


def _folds_share_patients(parts: Sequence[TestedPart]) -> bool:
    fold_patients = {(part.fold, patient) for part in parts for patient in part.patients.tolist()}
    return len(fold_patients) > len({patient for _, patient in fold_patients})


def _risk_group(name: str, time: Floats, event: Floats) -> RiskGroup:
    from lifelines import KaplanMeierFitter
    from lifelines.utils import median_survival_times

    fitted = KaplanMeierFitter().fit(time, event)
    band = fitted.confidence_interval_survival_function_
    ends = np.asarray(median_survival_times(band), dtype=np.float64).ravel()
    return RiskGroup(
        name=name,
        patients=len(time),
        events=int((event > 0).sum()),
        median=float(fitted.median_survival_time_),
        median_interval=Interval(float(ends.min()), float(ends.max())),
        times=fitted.survival_function_.index.to_numpy(dtype=np.float64),
        survival=fitted.survival_function_.to_numpy(dtype=np.float64)[:, 0],
        low=band.to_numpy(dtype=np.float64)[:, 0],
        high=band.to_numpy(dtype=np.float64)[:, 1],
        censored=np.sort(time[event == 0]),
    )


def _round_ticks(longest: float) -> Floats:
    """About six round times from 0 to the longest follow-up."""
    rough = longest / 6
    scale = 10 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= rough)
    # months: a year is rounder than ten of them
    if longest > 24:
        step = 12.0 * max(1, math.ceil(rough / 12))
    return np.arange(0.0, longest + step / 1000, step)
