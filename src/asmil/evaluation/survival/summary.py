"""What an evaluation of a survival run found: plain values with intervals, and their JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from asmil.evaluation.bootstrap import Interval
from asmil.evaluation.plain_values import number_or_none
from asmil.evaluation.run_evaluation import RunEvaluation
from asmil.evaluation.summary import MetricSummary, metric_to_dict
from asmil.evaluation.survival.risk_groups import RiskGroup, RiskGroups

Floats = npt.NDArray[np.float64]

METRICS = ("c_index", "c_index_strict", "mean_auc", "integrated_brier", "reference_brier")
METRIC_TITLES = {
    "c_index": "C-index",
    "c_index_strict": "C-index, strict",
    "mean_auc": "mean AUC(t)",
    "integrated_brier": "integrated Brier",
    "reference_brier": "Kaplan-Meier Brier",
}


@dataclass(frozen=True)
class FoldMetric(MetricSummary):
    """A metric taken on each fold's own patients: `value` is the mean over folds and seeds.

    skipped: how many resamples left it undefined for a training, and are not in the interval
    """

    skipped: int = 0

    @property
    def per_fold(self) -> dict[int, float]:
        """The value of every fold, averaged over its seeds; undefined trainings are left out."""
        found: dict[int, list[float]] = {}
        for (fold, _), value in self.per_training.items():
            found.setdefault(fold, []).append(value)
        return {fold: _mean(values) for fold, values in found.items()}

    @property
    def sd_folds(self) -> float:
        """Standard deviation over the folds (nan for one fold)."""
        defined = [value for value in self.per_fold.values() if not math.isnan(value)]
        return float(np.std(defined, ddof=1)) if len(defined) > 1 else math.nan


@dataclass(frozen=True)
class TimeCurve:
    """A measure over T times: the mean over trainings, its 95 % band by patient, and every training's own curve."""

    times: Floats
    mean: Floats
    low: Floats
    high: Floats
    per_training: Mapping[tuple[int, int], Floats]


@dataclass(frozen=True, kw_only=True)
class SurvivalEvaluation(RunEvaluation):
    """The evaluation of a survival run.

    auc_at, brier_at: time in months -> the metric there; window: the months over which means are taken
    curves: `auc`, `brier` and `reference` (Brier of Kaplan-Meier) over the window; undefined ones are not there
    """

    metrics: Mapping[str, FoldMetric]
    auc_at: Mapping[float, FoldMetric]
    brier_at: Mapping[float, FoldMetric]
    window: Interval
    curves: Mapping[str, TimeCurve] = field(repr=False)
    risk_groups: RiskGroups
    n_events: int
    patients: frozenset[str] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything found, ready for JSON: undefined numbers are None."""
        return {
            **super().to_dict(),
            "events": self.n_events,
            "metrics": {name: _metric_to_dict(metric) for name, metric in self.metrics.items()},
            "auc_at": [{"months": t, **_metric_to_dict(metric)} for t, metric in self.auc_at.items()],
            "brier_at": [{"months": t, **_metric_to_dict(metric)} for t, metric in self.brier_at.items()],
            "window_months": [number_or_none(end) for end in self.window],
            "curves": {name: _curve_to_dict(curve) for name, curve in self.curves.items()},
            "risk_groups": {
                "cut": self.risk_groups.cut,
                "log_rank": {
                    "statistic": number_or_none(self.risk_groups.statistic),
                    "p": number_or_none(self.risk_groups.p),
                },
                "groups": [_group_to_dict(group) for group in self.risk_groups.groups],
            },
        }


def _metric_to_dict(metric: FoldMetric) -> dict[str, Any]:
    return metric_to_dict(metric) | {
        "sd_folds": number_or_none(metric.sd_folds),
        "skipped_resamples": metric.skipped,
        "per_fold": {str(fold): number_or_none(value) for fold, value in metric.per_fold.items()},
    }


def _curve_to_dict(curve: TimeCurve) -> dict[str, Any]:
    columns = {"months": curve.times, "value": curve.mean, "low": curve.low, "high": curve.high}
    return {name: [number_or_none(value) for value in values] for name, values in columns.items()}


def _group_to_dict(group: RiskGroup) -> dict[str, Any]:
    return {
        "name": group.name,
        "patients": group.patients,
        "events": group.events,
        "median_months": number_or_none(group.median),
        "median_low": number_or_none(group.median_interval.low),
        "median_high": number_or_none(group.median_interval.high),
    }


def _mean(values: list[float]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return float(np.mean(defined)) if defined else math.nan
