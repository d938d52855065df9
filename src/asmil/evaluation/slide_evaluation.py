"""Evaluate runs that predict slides: classification, regression and multi-label runs.

The folds of a seed are joined (or evaluated one by one if they share slides), values are averaged over seeds, and
intervals come from a bootstrap over patients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.cohort.units import UnitKind
from asmil.evaluation.rows import folds_are_disjoint, replicates_of, rows_of, trainings_of
from asmil.evaluation.run_evaluation import Request, RunEvaluation
from asmil.reporting import Estimate, Interval
from asmil.reporting.estimate import means_by
from asmil.runs.run import Run
from asmil.tables.arrays import Floats
from asmil.tasks.base import Metric, PredictionFormat, Truth
from asmil.tasks.intervals import draw_patients, edge_interval, estimate, number_patients, under_draws, widest
from asmil.tasks.weighted import mean_defined

FEW_PER_CLASS = 20
"""With fewer patients of a class, bootstrap intervals are too narrow (docs/statistics.md)."""


@dataclass(frozen=True)
class ClassSummary:
    """The metrics of one class or label against the rest, and its number of slides."""

    name: str
    support: int
    metrics: Mapping[str, Estimate]


@dataclass(frozen=True, kw_only=True)
class SlideEvaluation(RunEvaluation):
    """The evaluation of a run that predicts slides.

    classes: the metrics of every class or label; none for regression
    folds_joined: whether the folds of a seed were joined (their slides do not overlap) or evaluated one by one
    """

    classes: tuple[ClassSummary, ...]
    folds_joined: bool

    @property
    def unit_name(self) -> UnitKind:
        return "patient" if self.unit == "patient" else super().unit_name

    @property
    def sizes(self) -> str:
        joined = self.unit == "patient" and self.run.settings.data.unit != "patient"
        return super().sizes + " (mean prediction of each patient's slides)" * joined

    @property
    def mean_of(self) -> str:
        """What the values of the metrics are means of, as text; empty if there is one training, or all are joined."""
        if not self.folds_joined or self.n_folds == 1:
            return super().mean_of
        joined = f"{self.n_folds} folds joined"
        return f"mean of {self.n_seeds} seeds, {joined}" if self.n_seeds > 1 else joined

    @property
    def counted_with(self) -> list[str]:
        if not self.run.format.are_probabilities or len(self.rows) == self.n_slides:
            return []
        over = f"{self.n_seeds} seeds" if self.folds_joined else "the trainings that tested it"
        return [f"predictions averaged over {over}"]

    @property
    def file_suffix(self) -> str:
        """The part of file names that distinguishes this evaluation from that of the slides of the test set."""
        return super().file_suffix + ("" if self.unit == "slide" else f"-{self.unit}")

    @property
    def part_name(self) -> str:
        """What the rows of `classes` are called."""
        return self.run.format.part_name or "label"

    def to_dict(self) -> dict[str, Any]:
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
        return rows + [
            rows[0]
            | {"metric": name, "class": row.name, "slides": row.support, "sd_trainings": math.nan}
            | metric.with_sd()
            for row in self.classes
            for name, metric in row.metrics.items()
        ]


@dataclass(frozen=True)
class Measured:
    """All metrics of a table of predictions.

    parts: the metrics of every class or label; skipped: resamples that could not be evaluated at all
    """

    metrics: dict[str, Estimate]
    parts: list[dict[str, Estimate]]
    skipped: int


def evaluate_slides(run: Run, asked: Request) -> SlideEvaluation:
    """Evaluate a regression or multi-label run on its test or validation set."""
    rows = rows_of(run, asked.role, asked.unit)
    measured = measure_rows(run.format, rows, asked)
    titles = {metric.name: metric.title for metric in run.format.metrics}
    skipped = [f"{titles[name]} ({metric.skipped})" for name, metric in measured.metrics.items() if metric.skipped]
    warnings = list(few_per_class(run.format, run.format.truth(rows), rows["patient"].tolist()))
    if skipped:
        warnings.append(
            f"Some of the {asked.resamples} bootstrap resamples were skipped, since a metric is undefined in them: "
            f"{', '.join(skipped)}."
        )
    if not folds_are_disjoint(rows):
        warnings.insert(0, "The folds share slides, so each training was evaluated separately.")
    return SlideEvaluation(**evaluated(run, rows, measured, asked), warnings=tuple(warnings))


def evaluated(run: Run, rows: pd.DataFrame, measured: Measured, asked: Request) -> dict[str, Any]:
    """The fields that all evaluations of slides share."""
    present = run.format.memberships(run.format.truth(rows.drop_duplicates("slide")))
    classes = zip(run.classes, present.T, measured.parts, strict=False)
    return {
        "run": run,
        "role": asked.role,
        "metrics": measured.metrics,
        "classes": tuple(ClassSummary(name, int(has.sum()), metrics) for name, has, metrics in classes),
        "rows": rows,
        "folds_joined": folds_are_disjoint(rows),
        "unit": asked.unit,
        "resamples": asked.resamples,
        "bootstrap_seed": asked.seed,
    }


def measure_rows(task: PredictionFormat, rows: pd.DataFrame, asked: Request) -> Measured:
    """All metrics: means over replicates, with patient-level bootstrap intervals."""
    rows = rows.assign(patient_number=number_patients(rows["patient"].tolist()))
    replicates = replicates_of(rows)
    patients = [part["patient_number"].to_numpy() for part in replicates]
    arrays = [(task.truth(part), task.predictions(part)) for part in replicates]
    assert task.measure is not None
    measure, defined = task.measure, task.counts

    def under(counts: Floats) -> dict[str, npt.NDArray[np.generic]]:
        weights = [counts[:, index] for index in patients]
        replicates = [measure(*pair, weight) for pair, weight in zip(arrays, weights, strict=True)]
        kept = np.ones(len(counts), dtype=np.bool_)
        if defined is not None:
            kept = np.all([defined(truth, w) for (truth, _), w in zip(arrays, weights, strict=True)], axis=0)
        names = replicates[0]
        means = {name: mean_defined(np.stack([values[name] for values in replicates], axis=-1)) for name in names}
        return {**means, "kept": kept}

    def at_edge(metric: Metric, part: int | None = None) -> Interval:
        pairs = zip(arrays, patients, strict=True)
        return widest(edge_interval(task, metric, *both, numbers.tolist(), part) for both, numbers in pairs)

    def plain(part: pd.DataFrame) -> Mapping[str, Floats]:
        return measure(task.truth(part), task.predictions(part), np.ones((1, len(part))))

    counts = draw_patients(rows["patient"].nunique(), asked.resamples, asked.seed)
    values = under(np.ones((1, counts.shape[1])))
    samples = under_draws(under, counts, max(map(len, replicates)))
    kept = samples.pop("kept").astype(np.bool_)
    drawn = {name: sample[kept].astype(np.float64) for name, sample in samples.items()}
    skipped = int((~kept).sum())
    by_training = {key: plain(part) for key, part in trainings_of(rows).items()}
    by_replicate = [(int(part["seed"].iloc[0]), plain(part)) for part in replicates]
    metrics = {
        metric.name: estimate(
            float(values[metric.name][0]),
            drawn[metric.name],
            skipped,
            partial(at_edge, metric),
            n=rows["slide"].nunique(),
            per_seed=means_by((seed, float(numbers[metric.name][0])) for seed, numbers in by_replicate),
            per_training={key: float(numbers[metric.name][0]) for key, numbers in by_training.items()},
        )
        for metric in task.metrics
    }
    parts = [
        {
            each.name: estimate(
                float(values[each.name][0, k]), drawn[each.name][:, k], at_edge=partial(at_edge, each, k)
            )
            for each in task.part_metrics
        }
        for k in range(len(task.names))
    ]
    return Measured(metrics, parts, skipped)


def few_per_class(task: PredictionFormat, truth: Truth, patients: Sequence[object]) -> Iterator[str]:
    """A sentence if a class has so few patients that bootstrap intervals are too narrow."""
    if not task.names:
        return
    has, names = task.memberships(truth), np.asarray(patients)
    counts = {name: len(np.unique(names[has[:, k]])) for k, name in enumerate(task.names)}
    few = [f"{name} {count}" for name, count in counts.items() if 0 < count < FEW_PER_CLASS]
    if few:
        yield (
            f"Few patients ({', '.join(few)}): with fewer than {FEW_PER_CLASS} patients of a class, 95 % intervals "
            "miss the true value more often than 5 % of the time."
        )
