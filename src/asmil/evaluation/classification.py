"""Evaluating classification runs: metrics, confusion, calibration, and an operating point chosen on validation data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.evaluation.evaluate import Request
from asmil.evaluation.rows import folds_are_disjoint, part_of, replicates_of, rows_of, trainings_of
from asmil.evaluation.slide_evaluation import Measured, SlideEvaluation, evaluated, measure_rows
from asmil.reporting import Estimate, jsonable
from asmil.tasks.calibration import (
    Reliability,
    brier_score,
    fit_temperature,
    negative_log_likelihood,
    reliability,
    scale_probabilities,
)
from asmil.tasks.checked_arrays import Floats
from asmil.tasks.metrics import confusion_matrix, predicted_classes
from asmil.tasks.thresholds import choose_threshold
from asmil.training.finished_run import Run
from asmil.training.operating_point import OperatingPoint

Key = tuple[int, int]
POSITIVE = 1
"""Index of the positive class: the second of two."""
OPERATING_METRICS = (
    ("sensitivity", "recall", 1),
    ("specificity", "specificity", 1),
    ("precision", "precision", 1),
    ("macro_f1", "macro_f1", None),
    ("accuracy", "accuracy", None),
)
"""Metrics of an operating point: the name in its file, the metric, and its class (None: all classes)."""


@dataclass(frozen=True)
class CalibrationNumbers:
    """Calibration metrics, averaged over seeds; the bins contain the slides of all seeds."""

    ece: float
    nll: float
    brier: float
    bins: Reliability

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"ece": self.ece, "nll": self.nll, "brier": self.brier, **jsonable(self.bins)}


@dataclass(frozen=True)
class CalibrationSummary:
    """Calibration before and after temperature scaling; `scaled` is None without validation slides to fit on."""

    as_predicted: CalibrationNumbers
    scaled: CalibrationNumbers | None
    temperatures: Mapping[Key, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "bins": len(self.as_predicted.bins.count),
            "as_predicted": self.as_predicted.to_dict(),
            "scaled": None if self.scaled is None else self.scaled.to_dict(),
            "temperatures": [
                {"fold": fold, "seed": seed, "temperature": value} for (fold, seed), value in self.temperatures.items()
            ],
        }


@dataclass(frozen=True)
class OperatingSummary:
    """Metrics of the test set, with intervals, at the thresholds chosen on validation slides."""

    point: OperatingPoint
    metrics: Mapping[str, Estimate]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self.point.to_dict(), "metrics": {name: one.to_dict() for name, one in self.metrics.items()}}


@dataclass(frozen=True, kw_only=True)
class Evaluation(SlideEvaluation):
    """The evaluation of a classification run.

    confusion: K x K counts, rows true, columns predicted, summed over all trainings
    operating: metrics at thresholds chosen on validation slides; None without validation slides
    """

    confusion: npt.NDArray[np.int64]
    calibration: CalibrationSummary
    operating: OperatingSummary | None
    skipped_resamples: int

    def keep_choices(self) -> None:
        """Save the thresholds for `asmil predict`, if the slides of the test set were evaluated."""
        if self.operating is not None and not self.file_suffix:
            self.operating.point.save(self.path)

    def replicates(self) -> list[tuple[npt.NDArray[np.intp], Floats]]:
        """Targets and n x K probabilities of each group of predictions that is evaluated together."""
        return _arrays(self.run, self.rows)

    def to_dict(self) -> dict[str, Any]:
        """All results, ready for JSON; undefined numbers are None."""
        shared = super().to_dict()
        return {
            **shared,
            "bootstrap": {**shared["bootstrap"], "skipped": self.skipped_resamples},
            "classes": list(self.run.classes),
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


def evaluate_classification(run: Run, asked: Request) -> Evaluation:
    """Evaluate a classification run on its test or validation set."""
    rows = rows_of(run, asked.role, asked.unit)
    found = measure_rows(run.format, rows, asked)
    operating = _operating(run, rows, asked)
    reasons = [operating] if isinstance(operating, str) else []
    return Evaluation(
        **evaluated(run, rows, found, asked),
        calibration=_calibration(run, rows, asked),
        operating=None if isinstance(operating, str) else operating,
        confusion=np.sum([_confusion(run, part) for part in trainings_of(rows).values()], axis=0),
        skipped_resamples=found.skipped,
        warnings=(*_warnings(run, rows, found, asked.resamples), *reasons),
    )


def _operating(run: Run, rows: pd.DataFrame, asked: Request) -> OperatingSummary | str | None:
    """Metrics at the thresholds chosen on validation slides, or a sentence saying why there are none.

    None if a threshold does not apply. The predicted class gets the probability 1, so that metrics and intervals are
    computed as for probabilities.
    """
    if asked.role == "val" or not run.format.has_threshold:
        return None
    validation = trainings_of(part_of(run, "val", asked.unit))
    thresholds, called = {}, rows.copy()
    columns = list(run.format.prediction_columns)
    for key, part in trainings_of(rows).items():
        if key not in validation:
            return "There are no validation slides to choose a threshold on, so the most probable class is predicted."
        positive = run.format.truth(validation[key]) == POSITIVE
        if positive.all() or not positive.any():
            return f"The validation set of fold {key[0]} contains a single class, so no threshold was chosen."
        scores = run.format.predictions(validation[key])[:, POSITIVE]
        thresholds[key] = choose_threshold(positive, scores, asked.threshold_rule)
        calls = run.format.predictions(part)[:, POSITIVE] >= thresholds[key]
        called.loc[part.index, columns] = np.stack([~calls, calls], axis=1).astype(np.float64)
    found = measure_rows(run.format, called, asked)
    metrics = {
        title: found.metrics[name] if place is None else found.parts[place][name]
        for title, name, place in OPERATING_METRICS
    }
    return OperatingSummary(OperatingPoint(asked.threshold_rule, run.classes[POSITIVE], thresholds), metrics)


def _calibration(run: Run, rows: pd.DataFrame, asked: Request) -> CalibrationSummary:
    """Calibration as predicted and, if every training has validation slides, after temperature scaling."""
    validation = trainings_of(part_of(run, "val", asked.unit)) if asked.role == "test" else {}
    trainings, plain = trainings_of(rows), _calibration_numbers(_arrays(run, rows))
    if not set(trainings) <= set(validation):
        return CalibrationSummary(plain, None, {})
    temperatures, scaled = {}, rows.copy()
    for key, part in trainings.items():
        known = validation[key]
        temperatures[key] = fit_temperature(run.format.truth(known), run.format.predictions(known))
        changed = scale_probabilities(run.format.predictions(part), temperatures[key])
        scaled.loc[part.index, list(run.format.prediction_columns)] = changed
    return CalibrationSummary(plain, _calibration_numbers(_arrays(run, scaled)), temperatures)


def _calibration_numbers(pairs: Sequence[tuple[npt.NDArray[np.intp], Floats]]) -> CalibrationNumbers:
    return CalibrationNumbers(
        ece=float(np.mean([reliability(*pair).ece for pair in pairs])),
        nll=float(np.mean([negative_log_likelihood(*pair) for pair in pairs])),
        brier=float(np.mean([brier_score(*pair) for pair in pairs])),
        bins=reliability(np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])),
    )


def _arrays(run: Run, rows: pd.DataFrame) -> list[tuple[npt.NDArray[np.intp], Floats]]:
    return [(run.format.truth(part), run.format.predictions(part)) for part in replicates_of(rows)]


def _confusion(run: Run, part: pd.DataFrame) -> npt.NDArray[np.int64]:
    called = predicted_classes(run.format.predictions(part))
    return confusion_matrix(run.format.truth(part), called, len(run.classes))


def _warnings(run: Run, rows: pd.DataFrame, found: Measured, resamples: int) -> Iterator[str]:
    absent = absent_classes(run.classes, run.format.truth(rows))
    if len(run.classes) - len(absent) == 1:
        yield "All slides belong to one class: the AUC is undefined and there is no interval."
    elif absent:
        yield absent_sentence(run.classes, absent)
    if not folds_are_disjoint(rows):
        yield "The folds share slides, so each training was evaluated separately and the values were averaged."
    if found.skipped and len(run.classes) - len(absent) > 1:
        yield f"{found.skipped} of {resamples} bootstrap resamples contain a single class and were skipped."


def absent_classes(classes: Sequence[str], truth: npt.NDArray[Any]) -> list[str]:
    """The classes that no slide has."""
    present = set(np.asarray(truth).tolist())
    return [name for label, name in enumerate(classes) if label not in present]


def absent_sentence(classes: Sequence[str], absent: Sequence[str]) -> str:
    """What absent classes mean for the averages over classes."""
    total = len(classes)
    return (
        f"No slide belongs to class {', '.join(absent)}: macro-AUC is the mean of {total - len(absent)} of {total} "
        "classes, and macro-F1 counts absent classes as 0."
    )
