"""Evaluating runs whose slides are judged one by one: what regression and multi-label runs have in common.

As for classification: the folds of a seed are joined (judged one by one where they share slides), values are averaged
over seeds, and intervals come from a bootstrap over patients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.bootstrap import Interval, draw_patients, number_patients, percentile_interval
from asmil.evaluation.plain_values import value_to_dict
from asmil.evaluation.run import Run
from asmil.evaluation.run_evaluation import Role, RunEvaluation
from asmil.evaluation.summary import MetricSummary, metric_to_dict
from asmil.tasks.weighted import mean_defined

Floats = npt.NDArray[np.float64]
CELLS_AT_ONCE = 2_000_000
Measure = Callable[[pd.DataFrame, Floats], dict[str, Floats]]
"""From n rows of predictions and R x n weights to metrics: R values, or R x K for K labels."""


@dataclass(frozen=True, kw_only=True)
class SlideEvaluation(RunEvaluation):
    """The evaluation of a regression or multi-label run.

    labels: label -> metric -> (mean over seeds, interval), of multi-label runs; support: slides with the label
    rows: the predictions that were judged
    """

    metrics: Mapping[str, MetricSummary]
    labels: Mapping[str, Mapping[str, tuple[float, Interval]]]
    support: Mapping[str, int]
    rows: pd.DataFrame = field(repr=False)
    folds_joined: bool
    n_slides: int

    def to_dict(self) -> dict[str, Any]:
        """Everything found, ready for JSON: undefined numbers are None."""
        return {
            **super().to_dict(),
            "folds_joined": self.folds_joined,
            "slides": self.n_slides,
            "metrics": {name: metric_to_dict(metric) for name, metric in self.metrics.items()},
            "per_label": [
                {"label": label, "support": self.support[label]}
                | {name: value_to_dict(value, interval) for name, (value, interval) in found.items()}
                for label, found in self.labels.items()
            ],
        }


def evaluate_slides(
    run: Run, role: Role, resamples: int, seed: int, measure: Measure, labels: tuple[str, ...] = ()
) -> SlideEvaluation:
    """Evaluate one part of a run by the given measure; its R x K values are those of the K labels."""
    if role not in ("test", "val"):
        raise AsmilError(f"role {role!r} is unknown: {did_you_mean(role, ('test', 'val'))}")
    if resamples < 1:
        raise AsmilError(f"{resamples} resamples are too few; give at least 1, better 2000")
    rows = _rows_of(run, role)
    folds_joined = not rows.duplicated(["slide", "seed"]).any()
    trainings = [part for _, part in rows.groupby(["fold", "seed"], sort=True)]
    replicates = [part for _, part in rows.groupby("seed", sort=True)] if folds_joined else trainings
    found = _averaged(replicates, measure, [np.ones((1, len(part))) for part in replicates])
    samples = _bootstrap(rows, replicates, measure, resamples, seed)
    names = [name for name, values in found.items() if values.ndim == 1]
    label_metrics = [name for name, values in found.items() if values.ndim == 2]
    warnings = [] if folds_joined else ["The folds share slides, so every training was judged on its own."]
    for name in names:
        skipped = int(np.isnan(samples[name]).sum())
        if skipped and not math.isnan(found[name][0]):
            warnings.append(f"{skipped} of {resamples} resamples left {name} undefined and are not in its interval.")
    once = rows.drop_duplicates("slide")
    return SlideEvaluation(
        run=run,
        role=role,
        metrics={
            name: MetricSummary(
                value=float(found[name][0]),
                interval=percentile_interval(samples[name]),
                per_seed=_per_seed(measure, replicates, name),
                per_training={(_fold(part), _seed(part)): _value(measure, part, name) for part in trainings},
            )
            for name in names
        },
        labels={
            label: {
                name: (float(found[name][0, k]), percentile_interval(samples[name][:, k])) for name in label_metrics
            }
            for k, label in enumerate(labels)
        },
        support={label: int((once[f"target_{label}"] > 0).sum()) for label in labels},
        rows=rows,
        folds_joined=folds_joined,
        n_folds=rows["fold"].nunique(),
        n_seeds=rows["seed"].nunique(),
        n_trainings=len(trainings),
        n_slides=len(once),
        n_patients=rows["patient"].nunique(),
        resamples=resamples,
        bootstrap_seed=seed,
        warnings=tuple(warnings),
    )


def _rows_of(run: Run, role: Role) -> pd.DataFrame:
    rows = run.predictions[run.predictions["role"] == role]
    if rows.empty:
        others = ", ".join(sorted(set(run.predictions["role"].astype(str)))) or "none at all"
        raise AsmilError(f"{run.path}: there are no {role} predictions, only {others}; choose the part with --role")
    return rows.assign(patient_number=number_patients(rows["patient"].tolist()))


def _bootstrap(
    rows: pd.DataFrame, replicates: list[pd.DataFrame], measure: Measure, resamples: int, seed: int
) -> dict[str, Floats]:
    counts = draw_patients(rows["patient"].nunique(), resamples, seed).astype(np.float64)
    step = max(1, CELLS_AT_ONCE // max(len(part) for part in replicates))
    chunks = []
    for start in range(0, resamples, step):
        chunk = counts[start : start + step]
        weights = [chunk[:, part["patient_number"].to_numpy()] for part in replicates]
        chunks.append(_averaged(replicates, measure, weights))
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _averaged(replicates: list[pd.DataFrame], measure: Measure, weights: list[Floats]) -> dict[str, Floats]:
    found = [measure(part, weight) for part, weight in zip(replicates, weights, strict=True)]
    return {name: mean_defined(np.stack([one[name] for one in found], axis=-1)) for name in found[0]}


def _value(measure: Measure, part: pd.DataFrame, name: str) -> float:
    return float(measure(part, np.ones((1, len(part))))[name][0])


def _per_seed(measure: Measure, replicates: list[pd.DataFrame], name: str) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for part in replicates:
        values.setdefault(_seed(part), []).append(_value(measure, part, name))
    return {seed: float(mean_defined(np.array(found))) for seed, found in sorted(values.items())}


def _fold(part: pd.DataFrame) -> int:
    return int(part["fold"].iloc[0])


def _seed(part: pd.DataFrame) -> int:
    return int(part["seed"].iloc[0])
