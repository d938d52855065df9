"""What validation slides decide about the test part: a temperature and a threshold, one of each a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.evaluation.bootstrap import Interval
from asmil.evaluation.calibration import (
    Reliability,
    brier_score,
    fit_temperature,
    negative_log_likelihood,
    reliability,
    scale_probabilities,
)
from asmil.evaluation.plain_values import number_or_none, value_to_dict
from asmil.evaluation.run import Run
from asmil.evaluation.thresholds import choose_threshold
from asmil.training.operating_point import OperatingPoint

Floats = npt.NDArray[np.float64]
Key = tuple[int, int]
POSITIVE = 1
"""The place of the positive class: the second of two."""


@dataclass(frozen=True)
class CalibrationNumbers:
    """How far probabilities can be taken at their word: means over seeds; the bins hold the slides of all seeds."""

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
    metrics: Mapping[str, tuple[float, Interval]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = {name: value_to_dict(value, interval) for name, (value, interval) in self.metrics.items()}
        return {**self.point.to_dict(), "metrics": values}


def fit_temperatures(run: Run, val: pd.DataFrame, trainings: Sequence[Key]) -> dict[Key, float]:
    """The temperature of every training; none at all if a training has no validation slides."""
    parts = _by_training(val)
    if not all(key in parts for key in trainings):
        return {}
    return {key: fit_temperature(run.targets(parts[key]), run.probabilities(parts[key])) for key in trainings}


def scaled_rows(run: Run, rows: pd.DataFrame, temperatures: Mapping[Key, float]) -> pd.DataFrame:
    """The predictions with the probabilities of every training at its own temperature."""
    scaled = rows.copy()
    columns = list(run.prediction_columns)
    for key, part in _by_training(rows).items():
        scaled.loc[part.index, columns] = scale_probabilities(run.probabilities(part), temperatures[key])
    return scaled


def calibration_numbers(parts: Sequence[tuple[npt.NDArray[np.intp], Floats]]) -> CalibrationNumbers:
    """Of the targets and probabilities of several seeds."""
    return CalibrationNumbers(
        ece=float(np.mean([reliability(*part).ece for part in parts])),
        nll=float(np.mean([negative_log_likelihood(*part) for part in parts])),
        brier=float(np.mean([brier_score(*part) for part in parts])),
        bins=reliability(np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])),
    )


def choose_operating_point(run: Run, val: pd.DataFrame, trainings: Sequence[Key], rule: str) -> OperatingPoint | str:
    """The threshold of every training, or the reason why there is none."""
    if len(run.classes) != 2:
        return f"A threshold divides two classes; here are {len(run.classes)}, and the most probable one is called."
    parts = _by_training(val)
    thresholds = {}
    for key in trainings:
        if key not in parts:
            return "There are no validation slides to choose a threshold on, so the most probable class is called."
        positive = run.targets(parts[key]) == POSITIVE
        if positive.all() or not positive.any():
            return f"The validation part of fold {key[0]} has one class only, so that no threshold could be chosen."
        thresholds[key] = choose_threshold(positive, run.probabilities(parts[key])[:, POSITIVE], rule)
    return OperatingPoint(rule, run.classes[POSITIVE], thresholds)


def called_rows(run: Run, rows: pd.DataFrame, point: OperatingPoint) -> pd.DataFrame:
    """The predictions with 1 for the class that is called at the thresholds, and 0 for the other."""
    called = rows.copy()
    negative_column, positive_column = run.prediction_columns
    for key, part in _by_training(rows).items():
        calls = (part[positive_column] >= point.thresholds[key]).astype(float)
        called.loc[part.index, positive_column] = calls
        called.loc[part.index, negative_column] = 1 - calls
    return called


def _by_training(rows: pd.DataFrame) -> dict[Key, pd.DataFrame]:
    found: dict[Key, pd.DataFrame] = {}
    for fold, seed in rows[["fold", "seed"]].drop_duplicates().itertuples(index=False):
        found[int(fold), int(seed)] = rows[(rows["fold"] == fold) & (rows["seed"] == seed)]
    return found


def _numbers(numbers: CalibrationNumbers) -> dict[str, Any]:
    bins = numbers.bins
    return {
        "ece": numbers.ece,
        "nll": numbers.nll,
        "brier": numbers.brier,
        "confidence": [number_or_none(value) for value in bins.confidence],
        "accuracy": [number_or_none(value) for value in bins.accuracy],
        "count": bins.count.tolist(),
    }
