"""Evaluating a survival run: ranking, curves and risk groups, with the spread over folds and an interval by patient.

Risks of different trainings have no common scale, so nothing that ranks is ever taken over two trainings at once:
every training is evaluated on its own patients, and the values are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from asmil.errors import AsmilError
from asmil.evaluation.bootstrap import draw_patients, percentile_interval, under_draws
from asmil.evaluation.run import Run, read_run
from asmil.evaluation.run_evaluation import Role, RunEvaluation, refuse_request, rows_of
from asmil.evaluation.survival.brier import mean_over_time, weighted_brier
from asmil.evaluation.survival.dynamic_auc import weighted_dynamic_auc
from asmil.evaluation.survival.predictions import (
    TestedPart,
    chosen_times,
    judged_window,
    refuse_impossible,
    spread_evenly,
    tested_parts,
)
from asmil.evaluation.survival.risk_groups import RiskGroup, RiskGroups, compare_groups, group_patients
from asmil.evaluation.survival.step_curves import StepCurves, censoring_curves, survival_curves
from asmil.reporting import Estimate, Interval, jsonable
from asmil.reporting.estimate import mean_defined as mean_of_numbers
from asmil.reporting.estimate import means_by
from asmil.tasks.checked_arrays import Floats
from asmil.tasks.concordance import weighted_concordance
from asmil.tasks.weighted import mean_defined

Measures = dict[tuple[int, int], dict[str, Floats]]
CURVES = ("auc", "brier", "reference")


@dataclass(frozen=True)
class TimeCurve:
    """A metric over T times: the mean over trainings, its 95 % band by patient, and every training's own curve."""

    times: Floats
    mean: Floats
    low: Floats
    high: Floats
    per_training: Mapping[tuple[int, int], Floats]


@dataclass(frozen=True, kw_only=True)
class SurvivalEvaluation(RunEvaluation):
    """The evaluation of a survival run.

    auc_at, brier_at: time in months -> the metric there; window: the months over which means are taken
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
        """What was evaluated, in words."""
        return f"{self.n_patients} patients, {self.n_events} with the event"

    def spread(self, estimate: Estimate) -> tuple[str, float]:
        """Over folds; over seeds where there is one fold."""
        sd = estimate.sd_folds
        return ("seeds", estimate.sd_seeds) if math.isnan(sd) else ("folds", sd)

    def to_dict(self) -> dict[str, Any]:
        """Everything found, for JSON: undefined numbers are None."""
        groups = self.risk_groups
        return {
            **super().to_dict(),
            "events": self.n_events,
            "metrics": {name: _to_dict(metric) for name, metric in self.metrics.items()},
            "auc_at": [{"months": t, **_to_dict(metric)} for t, metric in self.auc_at.items()],
            "brier_at": [{"months": t, **_to_dict(metric)} for t, metric in self.brier_at.items()],
            "window_months": [jsonable(end) for end in self.window],
            "curves": {name: _curve_to_dict(curve) for name, curve in self.curves.items()},
            "risk_groups": {
                "cut": groups.cut,
                "log_rank": jsonable({"statistic": groups.statistic, "p": groups.p}),
                "groups": [_group_to_dict(group) for group in groups.groups],
            },
        }


@dataclass(frozen=True)
class EvaluationGrid:
    """All P evaluated patients, the times over which means are taken, and single times of interest."""

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
    """Evaluate the predictions that a survival run made for one part of its cohort.

    Each metric is computed on the patients of each training and averaged over folds and seeds; the interval is the 2.5
    and 97.5 percentile of that average over `resamples` draws of patients. The censoring distribution and the
    Kaplan-Meier reference are those of all evaluated patients.

    times: months for AUC(t) and the Brier score, by default the quartiles of the event times
    n_groups: 2 risk groups cut at the median, or 3 at the tertiles
    """
    refuse_request(role, resamples)
    opened = run if isinstance(run, Run) else read_run(run, "survival")
    refuse_impossible(opened)
    rows = rows_of(opened, role)
    parts = tested_parts(rows)
    labels = rows.drop_duplicates("patient").sort_values("patient")
    time, event = labels["time"].to_numpy(dtype=np.float64), labels["event"].to_numpy(dtype=np.float64)
    if not (event > 0).any():
        raise AsmilError(f"{opened.path}: no patient of the {role} part has the event, so no metric is defined")
    window = judged_window(parts, time[event > 0])
    grid = EvaluationGrid(time, event, spread_evenly(window), chosen_times(times, time[event > 0]))

    found = measure_trainings(parts, grid, np.ones((1, len(time))))
    if np.isnan([values["c_index"] for values in found.values()]).all():
        raise AsmilError(
            f"{opened.path}: no two patients of a {role} fold can be compared, so there is no C-index; "
            "test more patients with an event (fewer folds, or a larger test part)"
        )
    samples = _bootstrap(parts, grid, found, resamples, seed)
    metrics = {
        metric.name: _over_trainings(
            {key: float(of[metric.name][0]) for key, of in found.items()}, samples[metric.name], len(time)
        )
        for metric in opened.format.metrics
    }
    curves = {name: _curve(name, grid.window, found, samples[name]) for name in CURVES}
    auc_at = _at_times("auc_at", grid.times, found, samples)
    groups = compare_groups(time, event, group_patients(parts, len(time), n_groups), n_groups)
    return SurvivalEvaluation(
        run=opened,
        role=role,
        metrics=metrics,
        auc_at=auc_at,
        brier_at=_at_times("brier_at", grid.times, found, samples),
        window=percentile_interval(np.empty(0)) if window is None else window,
        curves={name: curve for name, curve in curves.items() if np.isfinite(curve.mean).any()},
        risk_groups=groups,
        rows=rows,
        n_events=int((event > 0).sum()),
        resamples=resamples,
        bootstrap_seed=seed,
        warnings=tuple(_warnings(opened, parts, metrics, groups, window, auc_at, resamples)),
    )


def measure_trainings(parts: Sequence[TestedPart], grid: EvaluationGrid, weights: Floats) -> Measures:
    """Measures of every training by fold and seed: R values, or R x T for curves; weights: R x P.

    Censoring and the Kaplan-Meier reference are estimated on all patients: neither knows the model, and the patients
    of a single fold are few.
    """
    censoring = censoring_curves(grid.time, grid.event, weights)
    reference = survival_curves(grid.time, grid.event, weights)
    return {part.key: _measure(part, grid, weights[:, part.patients], censoring, reference) for part in parts}


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
    parts: Sequence[TestedPart], grid: EvaluationGrid, found: Measures, resamples: int, seed: int
) -> dict[str, Floats]:
    """Every metric of every resample, averaged over the trainings for which the original patients define it.

    All trainings see the same resamples. A resample that leaves one of them undefined is nan.
    """

    def under(counts: Floats) -> dict[str, Floats]:
        drawn = measure_trainings(parts, grid, counts)
        return {name: _mean_of_defined(name, drawn, found) for name in found[parts[0].key]}

    counts = draw_patients(len(grid.time), resamples, seed)
    # curves over many times take more memory than a single number per draw
    return under_draws(under, counts, 2 * len(grid.time))


def _mean_of_defined(name: str, drawn: Measures, found: Measures) -> Floats:
    values = np.stack([of[name] for of in drawn.values()])
    counted = ~np.isnan(np.stack([of[name] for of in found.values()]))
    total = np.where(counted, values, 0.0).sum(axis=0)
    number = counted.sum(axis=0)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _over_trainings(per_training: dict[tuple[int, int], float], samples: Floats, n: int | None = None) -> Estimate:
    value = mean_of_numbers(per_training.values())
    return Estimate(
        value=value,
        interval=percentile_interval(samples),
        per_seed=means_by((seed, one) for (_, seed), one in per_training.items()),
        per_training=per_training,
        n=n,
        skipped=0 if np.isnan(value) else int(np.isnan(samples).sum()),
    )


def _at_times(name: str, times: Floats, found: Measures, samples: dict[str, Floats]) -> dict[float, Estimate]:
    return {
        float(t): _over_trainings(
            {key: float(of[name][0, column]) for key, of in found.items()}, samples[name][:, column]
        )
        for column, t in enumerate(times)
    }


def _curve(name: str, times: Floats, found: Measures, samples: Floats) -> TimeCurve:
    per_training = {key: of[name][0] for key, of in found.items()}
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
    """What is undefined or left out in this evaluation."""
    titles = {metric.name: metric.title for metric in run.format.metrics}
    without = [key for key, value in metrics["c_index"].per_training.items() if math.isnan(value)]
    if without:
        named = ", ".join(f"fold {fold} seed {seed}" for fold, seed in without)
        yield (
            f"No two patients can be compared in {named}: the C-index is undefined there, and the mean is that of the "
            f"other {len(parts) - len(without)} trainings."
        )
    if any(part.curve_times is None for part in parts):
        yield "The predictions hold no survival curves (a Cox model without a baseline): there is no Brier score."
    if window is None:
        yield "The folds have too few events or too short a follow-up in common for a mean AUC(t) or Brier score."
    for t, auc in auc_at.items():
        undefined = sum(map(math.isnan, auc.per_training.values()))
        if undefined:
            yield (
                f"AUC({t:g} months) is undefined for {undefined} of {len(parts)} trainings: by then nobody had the "
                "event, or nobody is followed longer."
            )
    if len(groups.groups) < 2:
        yield "The risks do not separate the patients into groups: there is no log-rank test."
    for name, metric in metrics.items():
        if metric.skipped:
            yield (
                f"{titles[name]}: {metric.skipped} of {resamples} resamples left it undefined for a training "
                "and are not in its interval."
            )


def _to_dict(metric: Estimate) -> dict[str, Any]:
    return metric.to_dict("seeds", "trainings", "folds", "skipped")


def _curve_to_dict(curve: TimeCurve) -> dict[str, Any]:
    columns = {"months": curve.times, "value": curve.mean, "low": curve.low, "high": curve.high}
    return dict(jsonable(columns))


def _group_to_dict(group: RiskGroup) -> dict[str, Any]:
    return {
        "name": group.name,
        "patients": group.patients,
        "events": group.events,
        "median_months": jsonable(group.median),
        "median_low": jsonable(group.median_interval.low),
        "median_high": jsonable(group.median_interval.high),
    }
