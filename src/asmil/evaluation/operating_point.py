"""What validation slides decide about the test part: one temperature and one threshold per training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from asmil.evaluation.calibration import (
    Reliability,
    brier_score,
    fit_temperature,
    negative_log_likelihood,
    reliability,
    scale_probabilities,
)
from asmil.evaluation.run import Run
from asmil.evaluation.slide_evaluation import trainings_of
from asmil.evaluation.thresholds import choose_threshold
from asmil.reporting import Estimate, jsonable
from asmil.training.operating_point import OperatingPoint

Key = tuple[int, int]
POSITIVE = 1
"""The place of the positive class: the second of two."""


@dataclass(frozen=True)
class CalibrationNumbers:
    """Calibration: means over seeds; the bins hold the slides of all seeds."""

    ece: float
    nll: float
    brier: float
    bins: Reliability


@dataclass(frozen=True)
class CalibrationSummary:
    """The probabilities as they are, and with the temperatures fitted on validation slides (None where none are)."""

    as_predicted: CalibrationNumbers
    scaled: CalibrationNumbers | None
    temperatures: Mapping[Key, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "bins": len(self.as_predicted.bins.count),
            "as_predicted": _numbers(self.as_predicted),
            "scaled": None if self.scaled is None else _numbers(self.scaled),
            "temperatures": [
                {"fold": fold, "seed": seed, "temperature": value} for (fold, seed), value in self.temperatures.items()
            ],
        }


@dataclass(frozen=True)
class OperatingSummary:
    """The test part at the thresholds chosen on validation slides: every metric with its interval."""

    point: OperatingPoint
    metrics: Mapping[str, Estimate]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self.point.to_dict(), "metrics": {name: one.to_dict() for name, one in self.metrics.items()}}


def fit_temperatures(run: Run, val: pd.DataFrame, trainings: Sequence[Key]) -> dict[Key, float]:
    """The temperature of every training; none if a training has no validation slides."""
    parts = trainings_of(val)
    if not all(key in parts for key in trainings):
        return {}
    return {key: fit_temperature(run.format.truth(parts[key]), run.format.predictions(parts[key])) for key in trainings}


def scaled_rows(run: Run, rows: pd.DataFrame, temperatures: Mapping[Key, float]) -> pd.DataFrame:
    """The predictions with the probabilities of every training at its own temperature."""
    scaled = rows.copy()
    columns = list(run.format.prediction_columns)
    for key, part in trainings_of(rows).items():
        scaled.loc[part.index, columns] = scale_probabilities(run.format.predictions(part), temperatures[key])
    return scaled


def summarize_calibration(run: Run, parts: Sequence[pd.DataFrame]) -> CalibrationNumbers:
    """The calibration of several groups of predictions, averaged over them."""
    pairs = [(run.format.truth(part), run.format.predictions(part)) for part in parts]
    return CalibrationNumbers(
        ece=float(np.mean([reliability(*pair).ece for pair in pairs])),
        nll=float(np.mean([negative_log_likelihood(*pair) for pair in pairs])),
        brier=float(np.mean([brier_score(*pair) for pair in pairs])),
        bins=reliability(np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])),
    )


def choose_operating_point(run: Run, val: pd.DataFrame, trainings: Sequence[Key], rule: str) -> OperatingPoint | str:
    """The threshold of every training, or the reason why there is none."""
    if len(run.classes) != 2:
        return f"A threshold needs two classes; here are {len(run.classes)}, and the most probable one is called."
    parts = trainings_of(val)
    thresholds = {}
    for key in trainings:
        if key not in parts:
            return "There are no validation slides to choose a threshold on, so the most probable class is called."
        positive = run.format.truth(parts[key]) == POSITIVE
        if positive.all() or not positive.any():
            return f"The validation part of fold {key[0]} has one class only, so no threshold could be chosen."
        thresholds[key] = choose_threshold(positive, run.format.predictions(parts[key])[:, POSITIVE], rule)
    return OperatingPoint(rule, run.classes[POSITIVE], thresholds)


def called_rows(run: Run, rows: pd.DataFrame, point: OperatingPoint) -> pd.DataFrame:
    """The predictions with 1 for the class that is called at the thresholds, and 0 for the other."""
    called = rows.copy()
    negative_column, positive_column = run.format.prediction_columns
    for key, part in trainings_of(rows).items():
        calls = (part[positive_column] >= point.thresholds[key]).astype(float)
        called.loc[part.index, positive_column] = calls
        called.loc[part.index, negative_column] = 1 - calls
    return called


def _numbers(numbers: CalibrationNumbers) -> dict[str, Any]:
    bins = numbers.bins
    return {
        "ece": numbers.ece,
        "nll": numbers.nll,
        "brier": numbers.brier,
        "confidence": jsonable(bins.confidence),
        "accuracy": jsonable(bins.accuracy),
        "count": jsonable(bins.count),
    }
