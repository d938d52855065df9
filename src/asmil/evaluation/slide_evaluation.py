"""Evaluating runs whose slides are judged one by one: classification, regression and multi-label runs.

The folds of a seed are joined (judged one by one where they share slides), values are averaged over seeds, and
intervals come from a bootstrap over patients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.cohort.units import UnitKind
from asmil.evaluation.bootstrap import draw_patients, number_patients, percentile_interval, under_draws
from asmil.evaluation.run import Run
from asmil.evaluation.run_evaluation import Role, RunEvaluation, rows_of
from asmil.reporting import Estimate
from asmil.reporting.estimate import means_by
from asmil.tasks.checked_arrays import Floats
from asmil.tasks.prediction_format import PredictionFormat
from asmil.tasks.weighted import mean_defined


@dataclass(frozen=True)
class ClassSummary:
    """One class or label against the rest, with the number of slides that have it."""

    name: str
    support: int
    metrics: Mapping[str, Estimate]


@dataclass(frozen=True, kw_only=True)
class SlideEvaluation(RunEvaluation):
    """The evaluation of a run that predicts slides.

    classes: the metrics of every class or label; none for regression
    folds_joined: whether the folds of a seed were joined (their slides do not overlap) or judged one by one
    unit: whether slides were judged, or patients by the mean prediction of their slides
    """

    classes: tuple[ClassSummary, ...]
    folds_joined: bool
    unit: UnitKind = "slide"

    @property
    def sizes(self) -> str:
        """What was evaluated, in words."""
        if self.unit == "patient":
            return f"{self.n_patients} patients, each by the mean prediction of its slides"
        return super().sizes

    @property
    def file_suffix(self) -> str:
        """What tells the files of this evaluation from those of the slides of the test part."""
        return super().file_suffix + ("" if self.unit == "slide" else f"-{self.unit}")

    def to_dict(self) -> dict[str, Any]:
        """Everything found, for JSON: undefined numbers are None."""
        return {
            **super().to_dict(),
            "folds_joined": self.folds_joined,
            "slides": self.n_slides,
            "metrics": {name: metric.to_dict("seeds", "trainings") for name, metric in self.metrics.items()},
            f"per_{self.part_name}": [
                {self.part_name: row.name, "support": row.support}
                | {name: metric.to_dict() for name, metric in row.metrics.items()}
                for row in self.classes
            ],
        }

    def csv_rows(self) -> list[dict[str, Any]]:
        """One row per metric, then one per class and metric."""
        rows = super().csv_rows()
        for row in self.classes:
            for name, metric in row.metrics.items():
                values = {"value": metric.value, "low": metric.interval.low, "high": metric.interval.high}
                spread = {"sd_seeds": math.nan, "sd_trainings": math.nan}
                rows.append(rows[0] | {"metric": name, "class": row.name, "slides": row.support} | values | spread)
        return rows

    @property
    def part_name(self) -> str:
        """What the rows of `classes` are called."""
        return self.run.format.part_name or "label"


@dataclass(frozen=True)
class Measured:
    """All metrics of a table of predictions.

    parts: the metrics of every class or label; skipped: resamples that could not be judged at all
    """

    metrics: dict[str, Estimate]
    parts: list[dict[str, Estimate]]
    skipped: int


def evaluate_slides(run: Run, role: Role, resamples: int, seed: int, unit: UnitKind) -> SlideEvaluation:
    """Evaluate one part of a regression or multi-label run."""
    rows = rows_of(run, role, unit)
    folds_joined = folds_are_disjoint(rows)
    found = measure_rows(run.format, rows, resamples, seed)
    titles = {metric.name: metric.title for metric in run.format.metrics}
    warnings = [] if folds_joined else ["The folds share slides, so each training was evaluated on its own."]
    warnings += [
        f"{metric.skipped} of {resamples} resamples left {titles[name]} undefined and are not in its interval."
        for name, metric in found.metrics.items()
        if metric.skipped
    ]
    return SlideEvaluation(
        run=run,
        role=role,
        metrics=found.metrics,
        classes=class_summaries(run, rows, found),
        rows=rows,
        folds_joined=folds_joined,
        unit=unit,
        resamples=resamples,
        bootstrap_seed=seed,
        warnings=tuple(warnings),
    )


def class_summaries(run: Run, rows: pd.DataFrame, found: Measured) -> tuple[ClassSummary, ...]:
    """The metrics of every class or label with the number of slides that have it."""
    truth = run.format.truth(rows.drop_duplicates("slide"))
    present = truth > 0 if truth.ndim == 2 else truth[:, None] == np.arange(len(run.classes))
    return tuple(
        ClassSummary(name, int(present[:, place].sum()), metrics)
        for place, (name, metrics) in enumerate(zip(run.classes, found.parts, strict=False))
    )


def folds_are_disjoint(rows: pd.DataFrame) -> bool:
    """Whether no slide is evaluated in two folds of a seed."""
    return not rows.duplicated(["slide", "seed"]).any()


def trainings_of(rows: pd.DataFrame) -> dict[tuple[int, int], pd.DataFrame]:
    """The rows of every training, by (fold, seed)."""
    return {(_first(part, "fold"), _first(part, "seed")): part for _, part in rows.groupby(["fold", "seed"], sort=True)}


def replicates_of(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """What is judged together: the folds of a seed, or every training where folds share slides."""
    if folds_are_disjoint(rows):
        return [part for _, part in rows.groupby("seed", sort=True)]
    return list(trainings_of(rows).values())


def measure_rows(task: PredictionFormat, rows: pd.DataFrame, resamples: int, seed: int) -> Measured:
    """All metrics: means over replicates, with intervals by drawing patients."""
    rows = rows.assign(patient_number=number_patients(rows["patient"].tolist()))
    replicates, trainings = replicates_of(rows), trainings_of(rows)
    patients = [part["patient_number"].to_numpy() for part in replicates]
    arrays = [(task.truth(part), task.predictions(part)) for part in replicates]
    assert task.measure is not None
    measure, judged = task.measure, task.counts

    def under(counts: Floats) -> dict[str, npt.NDArray[np.generic]]:
        weights = [counts[:, index] for index in patients]
        found = [measure(truth, predicted, weight) for (truth, predicted), weight in zip(arrays, weights, strict=True)]
        kept = np.ones(len(counts), dtype=np.bool_)
        if judged is not None:
            kept = np.all([judged(truth, w) for (truth, _), w in zip(arrays, weights, strict=True)], axis=0)
        return {**_averaged(found), "kept": kept}

    counts = draw_patients(rows["patient"].nunique(), resamples, seed)
    values = under(np.ones((1, counts.shape[1])))
    samples = under_draws(under, counts, max(map(len, replicates)))
    kept = samples["kept"].astype(np.bool_)
    by_training = {
        key: measure(task.truth(part), task.predictions(part), _ones(part)) for key, part in trainings.items()
    }
    by_replicate = [
        (_first(part, "seed"), measure(truth, predicted, _ones(part)))
        for part, (truth, predicted) in zip(replicates, arrays, strict=True)
    ]
    metrics = {
        metric.name: _estimate(
            values[metric.name][0],
            samples[metric.name][kept],
            skipped=len(kept) - int(kept.sum()),
            n=len(rows.drop_duplicates("slide")),
            per_seed=means_by((number, float(found[metric.name][0])) for number, found in by_replicate),
            per_training={key: float(found[metric.name][0]) for key, found in by_training.items()},
        )
        for metric in task.metrics
    }
    parts = [
        {
            metric.name: _estimate(values[metric.name][0, place], samples[metric.name][kept, place])
            for metric in task.part_metrics
        }
        for place in range(len(task.names))
    ]
    return Measured(metrics, parts, len(kept) - int(kept.sum()))


def _estimate(value: Any, samples: npt.NDArray[np.generic], skipped: int = 0, **details: Any) -> Estimate:
    drawn = samples.astype(np.float64)
    undefined = 0 if math.isnan(value) else skipped + int(np.isnan(drawn).sum())
    return Estimate(float(value), percentile_interval(drawn), skipped=undefined, **details)


def _averaged(found: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    return {name: mean_defined(np.stack([one[name] for one in found], axis=-1)) for name in found[0]}


def _ones(part: pd.DataFrame) -> Floats:
    return np.ones((1, len(part)))


def _first(part: pd.DataFrame, column: str) -> int:
    return int(part[column].iloc[0])
