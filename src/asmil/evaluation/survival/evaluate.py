"""Evaluating a survival run: ranking, curves and risk groups, with the spread over folds and an interval by patient.

Risks of different trainings have no common scale, so nothing that ranks is ever taken over two trainings at once:
every training is judged on its own patients, and the values are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.bootstrap import draw_patients, percentile_interval
from asmil.evaluation.run import Run
from asmil.evaluation.run_evaluation import Role
from asmil.evaluation.survival.caveats import warnings_of
from asmil.evaluation.survival.measures import CURVES, Cohort, Measures, measure_trainings
from asmil.evaluation.survival.predictions import TestedPart, read_survival_run, tested_parts
from asmil.evaluation.survival.risk_groups import compare_groups, group_patients
from asmil.evaluation.survival.summary import METRICS, FoldMetric, SurvivalEvaluation, TimeCurve
from asmil.evaluation.survival.window import chosen_times, judged_window, spread_evenly
from asmil.tasks.weighted import mean_defined

Floats = npt.NDArray[np.float64]
CELLS_AT_ONCE = 1_000_000


def evaluate_survival(
    run: Path | str | Run,
    role: Role = "test",
    resamples: int = 2000,
    seed: int = 0,
    times: Sequence[float] | None = None,
    n_groups: int = 2,
) -> SurvivalEvaluation:
    """Evaluate the predictions that a survival run made for one part of its cohort.

    Every metric is taken on the patients of each training and averaged over folds and seeds; the interval is the 2.5
    and 97.5 percentile of that average over `resamples` draws of patients. The censoring distribution and the
    Kaplan-Meier reference are those of all evaluated patients.

    times: months for AUC(t) and the Brier score, by default the quartiles of the event times
    n_groups: 2 risk groups cut at the median, or 3 at the tertiles
    """
    if role not in ("test", "val"):
        raise AsmilError(f"role {role!r} is unknown: {did_you_mean(role, ('test', 'val'))}")
    if resamples < 1:
        raise AsmilError(f"{resamples} resamples are too few; give at least 1, better 2000")
    opened = run if isinstance(run, Run) else read_survival_run(run)
    rows = _rows_of(opened, role)
    parts = tested_parts(rows)
    labels = rows.drop_duplicates("patient").sort_values("patient")
    time, event = labels["time"].to_numpy(dtype=np.float64), labels["event"].to_numpy(dtype=np.float64)
    if not (event > 0).any():
        raise AsmilError(f"{opened.path}: no patient of the {role} part has the event, so no metric is defined")
    window = judged_window(parts, time[event > 0])
    cohort = Cohort(time, event, spread_evenly(window), chosen_times(times, time[event > 0]))

    found = measure_trainings(parts, cohort, np.ones((1, len(time))))
    if np.isnan([values["c_index"] for values in found.values()]).all():
        raise AsmilError(
            f"{opened.path}: no two patients of a {role} fold can be compared, so there is no C-index; "
            "test more patients with an event (fewer folds, or a larger test part)"
        )
    samples = _bootstrap(parts, cohort, found, resamples, seed)
    metrics = {
        name: _fold_metric({key: float(of[name][0]) for key, of in found.items()}, samples[name]) for name in METRICS
    }
    curves = {name: _curve(name, cohort.grid, found, samples[name]) for name in CURVES}
    auc_at = _at_times("auc_at", cohort.times, found, samples)
    groups = compare_groups(time, event, group_patients(parts, len(time), n_groups), n_groups)
    return SurvivalEvaluation(
        run=opened,
        role=role,
        metrics=metrics,
        auc_at=auc_at,
        brier_at=_at_times("brier_at", cohort.times, found, samples),
        window=percentile_interval(np.empty(0)) if window is None else window,
        curves={name: curve for name, curve in curves.items() if np.isfinite(curve.mean).any()},
        risk_groups=groups,
        n_folds=rows["fold"].nunique(),
        n_seeds=rows["seed"].nunique(),
        n_trainings=len(parts),
        n_patients=len(time),
        n_events=int((event > 0).sum()),
        patients=frozenset(labels["patient"].astype(str)),
        resamples=resamples,
        bootstrap_seed=seed,
        warnings=tuple(warnings_of(parts, metrics, groups, window, auc_at, resamples)),
    )


def _rows_of(run: Run, role: Role) -> pd.DataFrame:
    rows = run.predictions[run.predictions["role"] == role]
    if rows.empty:
        others = sorted(set(run.predictions["role"].astype(str)))
        hint = "; `--role val` evaluates the validation part" if role == "test" and "val" in others else ""
        raise AsmilError(
            f"{run.path}: there are no {role} predictions, only {', '.join(others) or 'none at all'}{hint}"
        )
    return rows


def _bootstrap(
    parts: Sequence[TestedPart], cohort: Cohort, found: Measures, resamples: int, seed: int
) -> dict[str, Floats]:
    """Every measure of every resample, averaged over the trainings for which the original patients define it.

    All trainings see the same resamples. A resample that leaves one of them undefined is nan.
    """
    counts = draw_patients(len(cohort.time), resamples, seed)
    rows_at_once = max(1, CELLS_AT_ONCE // len(cohort.time))
    chunks = []
    for start in range(0, resamples, rows_at_once):
        drawn = measure_trainings(parts, cohort, counts[start : start + rows_at_once].astype(np.float64))
        chunks.append({name: _mean_of_defined(name, drawn, found) for name in found[parts[0].key]})
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _mean_of_defined(name: str, drawn: Measures, found: Measures) -> Floats:
    values = np.stack([of[name] for of in drawn.values()])
    counted = ~np.isnan(np.stack([of[name] for of in found.values()]))
    total = np.where(counted, values, 0.0).sum(axis=0)
    number = counted.sum(axis=0)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _fold_metric(per_training: dict[tuple[int, int], float], samples: Floats) -> FoldMetric:
    per_seed: dict[int, list[float]] = {}
    for (_, seed), value in per_training.items():
        per_seed.setdefault(seed, []).append(value)
    value = float(mean_defined(np.array(list(per_training.values()))))
    return FoldMetric(
        value=value,
        interval=percentile_interval(samples),
        per_seed={seed: float(mean_defined(np.array(values))) for seed, values in per_seed.items()},
        per_training=per_training,
        skipped=0 if np.isnan(value) else int(np.isnan(samples).sum()),
    )


def _at_times(name: str, times: Floats, found: Measures, samples: dict[str, Floats]) -> dict[float, FoldMetric]:
    return {
        float(t): _fold_metric({key: float(of[name][0, column]) for key, of in found.items()}, samples[name][:, column])
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
