"""What an evaluation found: plain values with intervals, and their JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from asmil.cohort.units import UnitKind
from asmil.evaluation.bootstrap import Interval
from asmil.evaluation.chosen_on_validation import CalibrationSummary, OperatingSummary
from asmil.evaluation.plain_values import number_or_none, value_to_dict
from asmil.evaluation.run_evaluation import RunEvaluation

METRICS = ("macro_f1", "macro_auc", "balanced_accuracy", "accuracy")
CLASS_METRICS = ("precision", "recall", "specificity", "f1", "auc", "ap")
METRIC_TITLES = {
    "macro_f1": "macro-F1",
    "macro_auc": "macro-AUC",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "precision": "precision",
    "recall": "recall",
    "specificity": "specificity",
    "f1": "F1",
    "auc": "AUC",
    "ap": "AP",
    "sensitivity": "sensitivity",
}


@dataclass(frozen=True)
class MetricSummary:
    """One metric of a run.

    value: mean over seeds; interval: 95 % of the patient bootstrap of that mean
    per_seed: the value of every seed; sd_seeds: their standard deviation (nan for one seed)
    per_training: the value of every training (fold, seed); sd_trainings: their standard deviation
    """

    value: float
    interval: Interval
    per_seed: Mapping[int, float]
    per_training: Mapping[tuple[int, int], float]

    @property
    def sd_seeds(self) -> float:
        """Standard deviation over the seeds."""
        return _sd(list(self.per_seed.values()))

    @property
    def sd_trainings(self) -> float:
        """Standard deviation over the single trainings, fold by seed."""
        return _sd(list(self.per_training.values()))


@dataclass(frozen=True)
class ClassSummary:
    """One class against the rest: every metric as (mean over seeds, interval); support = number of slides."""

    name: str
    support: int
    metrics: Mapping[str, tuple[float, Interval]]


@dataclass(frozen=True)
class Replicate:
    """Predictions that are judged together: n slides, the class indices and n x K probabilities."""

    seed: int
    fold: int | None
    slides: tuple[str, ...]
    target: npt.NDArray[np.intp]
    probabilities: npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Evaluation(RunEvaluation):
    """The evaluation of a classification run.

    confusion: K x K counts, rows true, columns predicted, summed over all trainings
    folds_joined: whether a seed's folds were joined (their slides do not overlap) or judged one by one
    operating: the part at thresholds that validation slides chose; None where there are none
    unit: whether slides were judged, or patients by the mean of their slides
    """

    metrics: Mapping[str, MetricSummary]
    classes: tuple[ClassSummary, ...]
    confusion: npt.NDArray[np.int64]
    replicates: tuple[Replicate, ...] = field(repr=False)
    folds_joined: bool
    n_slides: int
    skipped_resamples: int
    calibration: CalibrationSummary
    operating: OperatingSummary | None
    unit: UnitKind

    def to_dict(self) -> dict[str, Any]:
        """Everything found, ready for JSON: undefined numbers are None."""
        shared = super().to_dict()
        return {
            **shared,
            "bootstrap": {**shared["bootstrap"], "skipped": self.skipped_resamples},
            "classes": list(self.run.classes),
            "folds_joined": self.folds_joined,
            "slides": self.n_slides,
            "metrics": {name: metric_to_dict(metric) for name, metric in self.metrics.items()},
            "per_class": [_class_to_dict(row) for row in self.classes],
            "confusion": {
                "rows": "true class",
                "columns": "predicted class",
                "summed_over": "all trainings",
                "counts": self.confusion.tolist(),
            },
            "unit": self.unit,
            "calibration": self.calibration.to_dict(),
            "operating_point": None if self.operating is None else self.operating.to_dict(),
        }


def metric_to_dict(metric: MetricSummary) -> dict[str, Any]:
    """A metric with its interval, spread and single values, ready for JSON."""
    return value_to_dict(metric.value, metric.interval) | {
        "sd_seeds": number_or_none(metric.sd_seeds),
        "sd_trainings": number_or_none(metric.sd_trainings),
        "per_seed": {str(seed): number_or_none(value) for seed, value in metric.per_seed.items()},
        "per_training": [
            {"fold": fold, "seed": seed, "value": number_or_none(value)}
            for (fold, seed), value in metric.per_training.items()
        ],
    }


def _class_to_dict(row: ClassSummary) -> dict[str, Any]:
    values = {name: value_to_dict(value, interval) for name, (value, interval) in row.metrics.items()}
    return {"class": row.name, "support": row.support, **values}


def _sd(values: list[float]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return float(np.std(defined, ddof=1)) if len(defined) > 1 else math.nan
