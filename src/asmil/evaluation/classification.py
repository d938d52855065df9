"""Evaluating classification runs: metrics, confusion, calibration, and an operating point chosen on validation data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.evaluation.rows import folds_are_disjoint, part_of, replicates_of, rows_of, trainings_of
from asmil.evaluation.run_evaluation import Request
from asmil.evaluation.slide_evaluation import Measured, SlideEvaluation, evaluated, few_per_class, measure_rows
from asmil.reporting import Estimate, jsonable
from asmil.reporting.formats import ROUNDED, format_count, format_number, format_share
from asmil.runs.operating_point import OperatingPoint
from asmil.runs.run import Run
from asmil.tables.arrays import Floats
from asmil.tasks.calibration import (
    Reliability,
    brier_score,
    fit_temperature,
    negative_log_likelihood,
    reliability,
    scale_probabilities,
)
from asmil.tasks.metrics import confusion_matrix, predicted_classes
from asmil.tasks.thresholds import choose_threshold

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
RANKING_METRICS = frozenset({"macro_auc", "auc", "ap"})
"""Metrics that do not depend on the predicted class."""
DEFAULT_RULE = "youden"
FEWEST_TO_SCALE = 50
"""With fewer validation patients no temperature is fitted: in simulations it makes calibration worse more often than
better unless the model is far off (docs/evaluation.md)."""


CALIBRATION_TITLES = {"ece": "expected calibration error", "nll": "negative log-likelihood", "brier": "Brier score"}


@dataclass(frozen=True)
class CalibrationNumbers:
    """Calibration metrics, averaged over seeds; the bins contain the slides of all seeds."""

    ece: float
    nll: float
    brier: float
    bins: Reliability

    def to_dict(self) -> dict[str, Any]:
        return {"ece": self.ece, "nll": self.nll, "brier": self.brier, **jsonable(self.bins)}


@dataclass(frozen=True)
class CalibrationSummary:
    """Calibration before and after temperature scaling; if `scaled` is None, `reason` says why it was not done."""

    as_predicted: CalibrationNumbers
    scaled: CalibrationNumbers | None
    temperatures: Mapping[Key, float]
    reason: str = ""

    @property
    def worsened(self) -> list[str]:
        """The numbers that scaling made worse, as phrases."""
        if self.scaled is None:
            return []
        return [
            f"{title} from {format_number(before)} to {format_number(after)}"
            for name, title in CALIBRATION_TITLES.items()
            for before, after in [(getattr(self.as_predicted, name), getattr(self.scaled, name))]
            if after > before + ROUNDED
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "bins": len(self.as_predicted.bins.count),
            "as_predicted": self.as_predicted.to_dict(),
            "scaled": None if self.scaled is None else self.scaled.to_dict(),
            "reason": self.reason or None,
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
        return {**self.point.to_dict(), "metrics": {name: metric.to_dict() for name, metric in self.metrics.items()}}


@dataclass(frozen=True, kw_only=True)
class Evaluation(SlideEvaluation):
    """The evaluation of a classification run.

    operating: metrics at thresholds chosen on validation slides; None without validation slides
    at_threshold: whether classes are predicted at these thresholds everywhere; else the most probable is predicted
    """

    calibration: CalibrationSummary
    operating: OperatingSummary | None
    at_threshold: bool
    skipped_resamples: int

    @cached_property
    def decided(self) -> Floats:
        """The mean predictions of slides; at a threshold, 1 for the predicted class and 0 for the other.

        The threshold of a slide is the mean of those of the trainings that predicted it.
        """
        mean = super().decided
        if not self.at_threshold or self.operating is None:
            return mean
        called = mean[:, POSITIVE] >= self._thresholds(self.operating.point)
        return np.stack([~called, called], axis=1).astype(np.float64)

    def _thresholds(self, point: OperatingPoint) -> Floats:
        """The threshold of every slide, in the order of `by_slide`."""
        keys = zip(self.rows["fold"], self.rows["seed"], strict=True)
        rows = self.rows.assign(threshold=[point.thresholds[key] for key in keys])
        return rows.groupby("slide", sort=True)["threshold"].mean().to_numpy(dtype=np.float64)

    @property
    def confusion(self) -> npt.NDArray[np.int64]:
        """K x K counts of slides, rows true, columns predicted; each slide is counted once, by its mean prediction."""
        return confusion_matrix(self.by_slide[1], predicted_classes(self.decided), len(self.run.classes))

    @property
    def counted_with(self) -> list[str]:
        if not self.at_threshold or self.operating is None:
            return super().counted_with
        point = self.operating.point
        threshold = f"a threshold of {range_of(self._thresholds(point))}"
        return [*super().counted_with, f"{threshold} ({rule_in_words(point.rule)} on validation slides)"]

    @property
    def aside(self) -> str:
        """How far single trainings are from the mean prediction that was counted."""
        counted, share = self.confusion.trace() / self.confusion.sum(), self.metrics["accuracy"].value
        differs = bool(super().counted_with) and bool(abs(counted - share) > ROUNDED)
        return f" A single training predicts {format_share(share)} correctly on average." * differs

    def keep_choices(self) -> None:
        """Save the thresholds for `asmil predict`, if the slides of the test set were evaluated."""
        if self.operating is not None and not self.file_suffix:
            self.operating.point.save(self.path)

    def replicates(self) -> list[tuple[npt.NDArray[np.intp], Floats]]:
        """Targets and n x K probabilities of each group of predictions that is evaluated together."""
        return _arrays(self.run, self.rows)

    def to_dict(self) -> dict[str, Any]:
        shared = super().to_dict()
        return {
            **shared,
            "bootstrap": {**shared["bootstrap"], "skipped": self.skipped_resamples},
            "classes": list(self.run.classes),
            "confusion": {
                "rows": "true class",
                "columns": "predicted class",
                "counted": f"each {self.unit_name} once, by its mean prediction",
                "predicted_class_by": "threshold" if self.at_threshold else "highest probability",
                "counts": self.confusion.tolist(),
            },
            "unit": self.unit,
            "calibration": self.calibration.to_dict(),
            "operating_point": None if self.operating is None else self.operating.to_dict(),
        }


def evaluate_classification(run: Run, asked: Request) -> Evaluation:
    """Evaluate a classification run on its test or validation set."""
    rows = rows_of(run, asked.role, asked.unit)
    measured = measure_rows(run.format, rows, asked)
    point = _operating_point(run, rows, asked)
    reasons = [point] if isinstance(point, str) else []
    operating, at_threshold = None, False
    if isinstance(point, OperatingPoint):
        called = measure_rows(run.format, _called(run, rows, point), asked)
        metrics = {
            title: called.metrics[name] if part is None else called.parts[part][name]
            for title, name, part in OPERATING_METRICS
        }
        operating = OperatingSummary(point, metrics)
        at_threshold = asked.threshold_rule is not None
        measured = _at_threshold(measured, called) if at_threshold else measured
    calibration = _calibration(run, rows, asked)
    if calibration.worsened:
        reasons.append(f"Temperature scaling made calibration worse: {', '.join(calibration.worsened)}.")
    return Evaluation(
        **evaluated(run, rows, measured, asked),
        calibration=calibration,
        operating=operating,
        at_threshold=at_threshold,
        skipped_resamples=measured.skipped,
        warnings=(*_warnings(run, rows, measured, asked.resamples), *reasons),
    )


def _operating_point(run: Run, rows: pd.DataFrame, asked: Request) -> OperatingPoint | str | None:
    """The thresholds chosen on validation slides, or a sentence saying why there are none; None: does not apply."""
    if asked.role == "val" or not run.format.has_threshold:
        return None
    validation = trainings_of(part_of(run, "val", asked.unit))
    thresholds, rule = {}, asked.threshold_rule or DEFAULT_RULE
    for key in trainings_of(rows):
        if key not in validation:
            return "There are no validation slides to choose a threshold on, so the most probable class is predicted."
        positive = run.format.truth(validation[key]) == POSITIVE
        if positive.all() or not positive.any():
            return (
                f"The validation set of {run.fold_names[key[0]]} contains a single class, so no threshold was chosen."
            )
        scores = run.format.predictions(validation[key])[:, POSITIVE]
        thresholds[key] = choose_threshold(positive, scores, rule)
    return OperatingPoint(rule, run.classes[POSITIVE], thresholds)


def _called(run: Run, rows: pd.DataFrame, point: OperatingPoint) -> pd.DataFrame:
    """The rows with a probability of 1 for the class predicted at the threshold of each training.

    Metrics and intervals are then computed as for probabilities.
    """
    called = rows.copy()
    for key, part in trainings_of(rows).items():
        calls = run.format.predictions(part)[:, POSITIVE] >= point.thresholds[key]
        columns = list(run.format.prediction_columns)
        called.loc[part.index, columns] = np.stack([~calls, calls], axis=1).astype(np.float64)
    return called


def _at_threshold(ranked_by_probability: Measured, called: Measured) -> Measured:
    """The metrics of the classes that were predicted at a threshold, and of the ranking by probability."""

    def merged(ranked: Mapping[str, Estimate], decided: Mapping[str, Estimate]) -> dict[str, Estimate]:
        return {name: (ranked if name in RANKING_METRICS else decided)[name] for name in ranked}

    parts = [merged(*pair) for pair in zip(ranked_by_probability.parts, called.parts, strict=True)]
    return Measured(merged(ranked_by_probability.metrics, called.metrics), parts, ranked_by_probability.skipped)


def rule_in_words(rule: str) -> str:
    """What a threshold was chosen for."""
    name, _, share = rule.partition(":")
    if share:
        return f"a {name} of at least {share}"
    return {"youden": "the highest sum of sensitivity and specificity", "f1": "the highest F1"}[name]


def range_of(values: Iterable[float], digits: int = 3) -> str:
    """The smallest and the largest of some numbers; one number if they look the same."""
    numbers = list(values)
    return " to ".join(dict.fromkeys(format_number(end(numbers), digits) for end in (min, max)))


def _calibration(run: Run, rows: pd.DataFrame, asked: Request) -> CalibrationSummary:
    """Calibration as predicted and, if every training has enough validation patients, after temperature scaling."""
    validation = trainings_of(part_of(run, "val", asked.unit)) if asked.role == "test" else {}
    trainings, plain = trainings_of(rows), _calibration_numbers(_arrays(run, rows))
    if not set(trainings) <= set(validation):
        return CalibrationSummary(plain, None, {}, "it needs a separate validation set")
    fewest = min(validation[key]["patient"].nunique() for key in trainings)
    if fewest < FEWEST_TO_SCALE:
        patients = format_count(fewest, "validation patient")
        return CalibrationSummary(plain, None, {}, f"{patients} are too few (at least {FEWEST_TO_SCALE})")
    temperatures, scaled = {}, rows.copy()
    for key, part in trainings.items():
        truth, known = run.format.truth(validation[key]), run.format.predictions(validation[key])
        if (predicted_classes(known) == truth).all():  # the likelihood has no maximum
            return CalibrationSummary(plain, None, {}, "a training predicts all its validation slides correctly")
        temperatures[key] = fit_temperature(truth, known)
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


def _warnings(run: Run, rows: pd.DataFrame, measured: Measured, resamples: int) -> Iterator[str]:
    absent = absent_classes(run.classes, run.format.truth(rows))
    if len(run.classes) - len(absent) == 1:
        yield "All slides belong to one class: the AUC is undefined and there is no interval."
    elif absent:
        yield absent_sentence(run.classes, absent)
    yield from few_per_class(run.format, run.format.truth(rows), rows["patient"].tolist())
    if not folds_are_disjoint(rows):
        yield "The folds share slides, so each training was evaluated separately and the values were averaged."
    if measured.skipped and len(run.classes) - len(absent) > 1:
        yield f"{measured.skipped} of {resamples} bootstrap resamples contain a single class and were skipped."


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
