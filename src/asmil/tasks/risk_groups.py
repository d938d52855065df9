"""Patients split by predicted risk: Kaplan-Meier curves of the groups and the log-rank test between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from asmil.reporting import Interval
from asmil.tables.arrays import Floats
from asmil.tables.time_units import UNKNOWN_UNIT

GROUP_NAMES = {2: ("low risk", "high risk"), 3: ("low risk", "middle risk", "high risk")}
CUT_NAMES = {2: "median", 3: "tertiles"}


@dataclass(frozen=True)
class RiskGroup:
    """One group: its Kaplan-Meier curve with a 95 % band (log-log), and the median survival time with its interval.

    The median is infinite if it is not reached.
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


def compare_groups(
    time: Floats, event: Floats, group: npt.NDArray[np.intp], n_groups: int = 2, unit: str = UNKNOWN_UNIT
) -> RiskGroups:
    """Kaplan-Meier curves of the groups and the log-rank test: time, event, group: P values; unit: of the times."""
    from lifelines.statistics import multivariate_logrank_test

    present = [number for number in range(n_groups) if (group == number).any()]
    ticks = _round_ticks(float(time.max()), unit)
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


def _round_ticks(longest: float, unit: str) -> Floats:
    """About six round times from 0 to the longest follow-up."""
    rough = longest / 6
    scale = 10 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= rough)
    if unit == "months" and longest > 24:  # whole years make the best ticks
        step = 12.0 * max(1, math.ceil(rough / 12))
    return np.arange(0.0, longest + step / 1000, step)
