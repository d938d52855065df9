"""Evaluate a survival run: ranking, curves and risk groups, with the spread over folds and patient-level intervals.

Risks of different trainings have no common scale, so they are never ranked together: each training is evaluated on its
own patients, and the values are averaged. Survival curves are given at the right edges of time bins; S is linear
between them, from 1 at time 0, and constant after the last edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError
from asmil.evaluation.rows import rows_of, trainings_of
from asmil.evaluation.run_evaluation import Request, Role, RunEvaluation
from asmil.reporting import Estimate, Interval, jsonable
from asmil.reporting.estimate import UNDEFINED, means_by
from asmil.reporting.estimate import mean_defined as mean_of_numbers
from asmil.runs.run import Run, read_run
from asmil.tables.arrays import Floats
from asmil.tasks.concordance import weighted_concordance
from asmil.tasks.intervals import draw_patients, estimate, number_patients, percentile_interval, under_draws
from asmil.tasks.risk_groups import GROUP_NAMES, RiskGroups, compare_groups
from asmil.tasks.survival_curves import survival_between_bins
from asmil.tasks.survival_metrics import (
    StepCurves,
    censoring_curves,
    mean_over_time,
    survival_curves,
    weighted_brier,
    weighted_dynamic_auc,
)
from asmil.tasks.weighted import mean_defined

GRID_SIZE = 40
OUTER_EVENTS = 0.05
SMALLEST_SIDE = 0.1
FEWEST_ON_A_SIDE = 5


@dataclass(frozen=True)
class TestedPart:
    """The predictions of one training for n patients (indices into all evaluated patients): risks and curves.

    curves: n pairs of times and values, or None if the run has no curves
    """

    fold: int
    seed: int
    patients: npt.NDArray[np.intp]
    time: Floats
    event: Floats
    risk: Floats
    curves: list[tuple[Floats, Floats]] | None

    def survival(self, times: Floats) -> Floats | None:
        """n x T values of S at the given times, or None without curves."""
        return (
            None if self.curves is None else np.stack([survival_between_bins(*curve, times) for curve in self.curves])
        )


def tested_parts(rows: pd.DataFrame) -> list[TestedPart]:
    """The trainings behind the given rows, by fold and seed; patients are numbered by sorted name."""
    has_curves = "survival" in rows
    parts = []
    for key, part in trainings_of(rows.assign(number=number_patients(rows["patient"].tolist()))).items():
        time, event, risk = (part[name].to_numpy(dtype=np.float64) for name in ("time", "event", "risk"))
        curves = None
        if has_curves and part["survival"].notna().all():
            pairs = zip(part["survival_times"], part["survival"], strict=True)
            curves = [(np.asarray(ends, np.float64), np.asarray(values, np.float64)) for ends, values in pairs]
        parts.append(TestedPart(*key, part["number"].to_numpy(), time, event, risk, curves))
    return parts


def evaluation_window(parts: Sequence[TestedPart], event_times: Floats) -> Interval | None:
    """The times at which every training has enough patients with and without the event, or None.

    From the 5 % to the 95 % quantile of the event times. The window starts when every training has had a tenth of its
    events (at least 5, at most half) and ends when fewer than a tenth of its patients (at least 5, at most half) are
    still followed: outside the window, single patients decide.
    """
    with_events = [part for part in parts if (part.event > 0).any()]
    if not with_events:
        return None
    low, high = np.quantile(event_times, [OUTER_EVENTS, 1 - OUTER_EVENTS])
    low = max(low, *(_inner(np.sort(part.time[part.event > 0])) for part in with_events))
    # a patient counts as followed longer than t only if its time is above t, so the window ends just before that time
    high = min(high, *(np.nextafter(_inner(np.sort(part.time)[::-1]), 0.0) for part in with_events))
    return Interval(float(low), float(high)) if low < high else None


def _inner(ordered: Floats) -> float:
    """The time with a tenth of the ordered times, itself included, on its outer side."""
    wanted = max(FEWEST_ON_A_SIDE, int(np.ceil(SMALLEST_SIDE * len(ordered))))
    return float(ordered[min(wanted, (len(ordered) + 1) // 2) - 1])


def chosen_times(times: Sequence[float] | None, event_times: Floats) -> Floats:
    """The requested times, or the quartiles of the event times."""
    if times is None:
        return np.unique(np.quantile(event_times, [0.25, 0.5, 0.75]))
    if not all(np.isfinite(t) and t > 0 for t in times):
        raise AsmilError(f"the times {', '.join(map(str, times))} cannot be evaluated; give times above 0")
    return np.unique(np.asarray(times, dtype=np.float64))


Measures = dict[tuple[int, int], dict[str, Floats]]
CURVES = ("auc", "brier", "reference")


@dataclass(frozen=True)
class TimeCurve:
    """A metric over T times: the mean over trainings, its 95 % patient-level band, and the curve of every training."""

    times: Floats
    mean: Floats
    low: Floats
    high: Floats
    per_training: Mapping[tuple[int, int], Floats]


@dataclass(frozen=True, kw_only=True)
class SurvivalEvaluation(RunEvaluation):
    """The evaluation of a survival run.

    auc_at, brier_at: time -> the metric there; window: the times over which curves are averaged
    curves: `auc`, `brier` and `reference` (Brier of Kaplan-Meier) over the window; undefined ones are left out
    """

    auc_at: Mapping[float, Estimate]
    brier_at: Mapping[float, Estimate]
    window: Interval
    curves: Mapping[str, TimeCurve] = field(repr=False)
    risk_groups: RiskGroups
    n_events: int

    @property
    def sizes(self) -> str:
        return f"{self.n_patients} patients ({self.n_events} with the event)"

    def spread(self, estimate: Estimate) -> tuple[str, float]:
        """Over folds; over seeds where there is one fold."""
        sd = estimate.sd_folds
        return ("seeds", estimate.sd_seeds) if math.isnan(sd) else ("folds", sd)

    def to_dict(self) -> dict[str, Any]:
        groups = self.risk_groups
        return {
            **super().to_dict(),
            "events": self.n_events,
            "metrics": {name: _to_dict(metric) for name, metric in self.metrics.items()},
            "time_unit": self.run.time_unit,
            "auc_at": [{"time": t, **_to_dict(metric)} for t, metric in self.auc_at.items()],
            "brier_at": [{"time": t, **_to_dict(metric)} for t, metric in self.brier_at.items()],
            "window": [jsonable(end) for end in self.window],
            "curves": {
                name: jsonable({"time": curve.times, "value": curve.mean, "low": curve.low, "high": curve.high})
                for name, curve in self.curves.items()
            },
            "risk_groups": {
                "cut": groups.cut,
                "log_rank": jsonable({"statistic": groups.statistic, "p": groups.p}),
                "groups": [
                    {
                        "name": group.name,
                        "patients": group.patients,
                        "events": group.events,
                        "median": jsonable(group.median),
                        "median_low": jsonable(group.median_interval.low),
                        "median_high": jsonable(group.median_interval.high),
                    }
                    for group in groups.groups
                ],
            },
        }


@dataclass(frozen=True)
class EvaluationGrid:
    """All P evaluated patients, the times over which curves are averaged, and single times of interest."""

    time: Floats
    event: Floats
    window: Floats
    times: Floats


def evaluate_survival(
    run: Path | str | Run,
    role: Role = "test",
    resamples: int = 2000,
    seed: int = 0,
    times: Sequence[float] | None = None,
    n_groups: int = 2,
) -> SurvivalEvaluation:
    """Evaluate the predictions of a survival run for its test or validation set.

    Each metric is computed on the patients of each training and averaged over folds and seeds. The interval runs from
    the 2.5 to the 97.5 percentile of this average over `resamples` bootstrap resamples of patients. The censoring
    distribution and the Kaplan-Meier reference are estimated on all evaluated patients.

    times: for AUC(t) and the Brier score, in the unit of the run, by default the quartiles of the event times
    n_groups: 2 risk groups cut at the median, or 3 at the tertiles
    """
    Request(role, resamples, seed)
    opened = run if isinstance(run, Run) else read_run(run, "survival")
    rows = rows_of(opened, role)
    parts = tested_parts(rows)
    labels = rows.drop_duplicates("patient").sort_values("patient")
    time, event = labels["time"].to_numpy(dtype=np.float64), labels["event"].to_numpy(dtype=np.float64)
    if not (event > 0).any():
        raise AsmilError(f"{opened.path}: no patient of the {role} set has the event, so no metric is defined")
    window = evaluation_window(parts, time[event > 0])
    over_window = np.empty(0) if window is None else np.linspace(window.low, window.high, GRID_SIZE)
    grid = EvaluationGrid(time, event, over_window, chosen_times(times, time[event > 0]))
    measured = measure_trainings(parts, grid, np.ones((1, len(time))))
    if np.isnan([values["c_index"] for values in measured.values()]).all():
        raise AsmilError(
            f"{opened.path}: no two patients of a {role} fold can be compared, so the C-index is undefined; "
            "test more patients with an event (fewer folds, or a larger test set)"
        )
    samples = _bootstrap(parts, grid, measured, resamples, seed)
    metrics = {
        metric.name: _over_trainings(
            {key: float(of[metric.name][0]) for key, of in measured.items()}, samples[metric.name], len(time)
        )
        for metric in opened.format.metrics
    }
    curves = {name: _curve(name, grid.window, measured, samples[name]) for name in CURVES}
    auc_at = _at_times("auc_at", grid.times, measured, samples)
    groups = compare_groups(time, event, group_patients(parts, len(time), n_groups), n_groups, opened.time_unit)
    return SurvivalEvaluation(
        run=opened,
        role=role,
        metrics=metrics,
        auc_at=auc_at,
        brier_at=_at_times("brier_at", grid.times, measured, samples),
        window=UNDEFINED if window is None else window,
        curves={name: curve for name, curve in curves.items() if np.isfinite(curve.mean).any()},
        risk_groups=groups,
        rows=rows,
        n_events=int((event > 0).sum()),
        resamples=resamples,
        bootstrap_seed=seed,
        warnings=tuple(_warnings(opened, parts, metrics, groups, window, auc_at, resamples)),
    )


def measure_trainings(parts: Sequence[TestedPart], grid: EvaluationGrid, weights: Floats) -> Measures:
    """Metrics of every training by fold and seed: R values, or R x T for curves; weights: R x P.

    Censoring and the Kaplan-Meier reference are estimated on all patients: neither depends on the model, and a single
    fold has few patients.
    """
    censoring = censoring_curves(grid.time, grid.event, weights)
    reference = survival_curves(grid.time, grid.event, weights)
    return {
        (part.fold, part.seed): _measure(part, grid, weights[:, part.patients], censoring, reference) for part in parts
    }


def _measure(
    part: TestedPart, grid: EvaluationGrid, weights: Floats, censoring: StepCurves, reference: StepCurves
) -> dict[str, Floats]:
    asked, size = np.r_[grid.window, grid.times], len(grid.window)
    time, event, own_g, g = part.time, part.event, censoring.before(part.time), censoring.at(asked)
    auc = weighted_dynamic_auc(time, event, part.risk, asked, weights, own_g)
    survival = part.survival(asked)
    brier = np.full_like(auc, np.nan)
    if survival is not None:
        brier = weighted_brier(time, event, survival, asked, weights, own_g, g)
    of_reference = weighted_brier(time, event, reference.at(asked)[:, None, :], asked, weights, own_g, g)
    curves = {"auc": auc[:, :size], "brier": brier[:, :size], "reference": of_reference[:, :size]}
    return {
        "c_index": weighted_concordance(time, event, part.risk, weights, "harrell"),
        "c_index_strict": weighted_concordance(time, event, part.risk, weights, "strict"),
        "mean_auc": _mean_of_curve(curves["auc"], grid.window),
        "integrated_brier": _mean_of_curve(curves["brier"], grid.window),
        "reference_brier": _mean_of_curve(curves["reference"], grid.window),
        **curves,
        "auc_at": auc[:, size:],
        "brier_at": brier[:, size:],
    }


def _mean_of_curve(curve: Floats, times: Floats) -> Floats:
    return mean_over_time(curve, times) if len(times) else np.full(len(curve), np.nan)


def _bootstrap(
    parts: Sequence[TestedPart], grid: EvaluationGrid, measured: Measures, resamples: int, seed: int
) -> dict[str, Floats]:
    """Every metric of every resample, averaged over the trainings in which it is defined for the original patients.

    All trainings use the same resamples. A resample in which one of them is undefined is nan.
    """

    def under(counts: Floats) -> dict[str, Floats]:
        drawn = measure_trainings(parts, grid, counts)
        return {name: _mean_of_defined(name, drawn, measured) for name in next(iter(measured.values()))}

    counts = draw_patients(len(grid.time), resamples, seed)
    # curves over many times need more memory than a single number per resample
    return under_draws(under, counts, 2 * len(grid.time))


def _mean_of_defined(name: str, drawn: Measures, measured: Measures) -> Floats:
    values = np.stack([of[name] for of in drawn.values()])
    counted = ~np.isnan(np.stack([of[name] for of in measured.values()]))
    total = np.where(counted, values, 0.0).sum(axis=0)
    number = counted.sum(axis=0)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _over_trainings(per_training: dict[tuple[int, int], float], samples: Floats, n: int | None = None) -> Estimate:
    per_seed = means_by((seed, value_of_training) for (_, seed), value_of_training in per_training.items())
    value = mean_of_numbers(per_training.values())
    return estimate(value, samples, n=n, per_seed=per_seed, per_training=per_training)


def group_patients(parts: Sequence[TestedPart], n_patients: int, n_groups: int = 2) -> npt.NDArray[np.intp]:
    """The risk group of each of P patients, 0 for the lowest risk; equal risks fall into the same, lower group.

    The risks of each training become ranks among its own patients (0 to 1, ties share their mean), and a patient's
    ranks are averaged over trainings. Each fold has its own cut, unless folds share patients.
    """
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


def _folds_share_patients(parts: Sequence[TestedPart]) -> bool:
    fold_patients = {(part.fold, patient) for part in parts for patient in part.patients.tolist()}
    return len(fold_patients) > len({patient for _, patient in fold_patients})


def _at_times(name: str, times: Floats, measured: Measures, samples: dict[str, Floats]) -> dict[float, Estimate]:
    return {
        float(t): _over_trainings(
            {key: float(of[name][0, column]) for key, of in measured.items()}, samples[name][:, column]
        )
        for column, t in enumerate(times)
    }


def _curve(name: str, times: Floats, measured: Measures, samples: Floats) -> TimeCurve:
    per_training = {key: of[name][0] for key, of in measured.items()}
    ends = [percentile_interval(samples[:, column]) for column in range(len(times))]
    return TimeCurve(
        times=times,
        mean=mean_defined(np.stack(list(per_training.values()), axis=1)),
        low=np.array([end.low for end in ends]),
        high=np.array([end.high for end in ends]),
        per_training=per_training,
    )


def _warnings(
    run: Run,
    parts: Sequence[TestedPart],
    metrics: Mapping[str, Estimate],
    groups: RiskGroups,
    window: Interval | None,
    auc_at: Mapping[float, Estimate],
    resamples: int,
) -> Iterator[str]:
    """What is undefined or was skipped in this evaluation."""
    titles = {metric.name: metric.title for metric in run.format.metrics}
    without = [key for key, value in metrics["c_index"].per_training.items() if math.isnan(value)]
    if without:
        named = ", ".join(f"{run.fold_names[fold]} seed {seed}" for fold, seed in without)
        yield (
            f"No two patients can be compared in {named}: the C-index is undefined there, and its mean is over the "
            f"other {len(parts) - len(without)} trainings."
        )
    if any(part.curves is None for part in parts):
        yield "The predictions contain no survival curves (a Cox model without a baseline), so there is no Brier score."
    if window is None:
        yield "The folds have too few events, or too short a common follow-up, for a mean AUC(t) or Brier score."
    for t, auc in auc_at.items():
        undefined = sum(map(math.isnan, auc.per_training.values()))
        if undefined:
            yield (
                f"AUC({t:g} {run.time_unit}) is undefined for {undefined} of {len(parts)} trainings: by then no "
                "patient had the event, or none was followed longer."
            )
    if len(groups.groups) < 2:
        yield "The risks do not separate the patients into groups, so there is no log-rank test."
    skipped = "; ".join(f"{titles[name]} {metric.skipped}" for name, metric in metrics.items() if metric.skipped)
    if skipped:
        yield (
            f"Some of the {resamples} bootstrap resamples have too few events for a metric and were skipped: {skipped}."
        )


def _to_dict(metric: Estimate) -> dict[str, Any]:
    return metric.to_dict("seeds", "trainings", "folds", "skipped")
