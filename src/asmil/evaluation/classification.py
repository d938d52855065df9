"""Evaluating classification runs: metrics, confusion, calibration, and an operating point chosen on validation data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.cohort.units import UnitKind
from asmil.evaluation.operating_point import (
    CalibrationSummary,
    OperatingSummary,
    called_rows,
    choose_operating_point,
    fit_temperatures,
    scaled_rows,
    summarize_calibration,
)
from asmil.evaluation.run import Run
from asmil.evaluation.run_evaluation import Role, part_of, rows_of
from asmil.evaluation.slide_evaluation import (
    Measured,
    SlideEvaluation,
    class_summaries,
    folds_are_disjoint,
    measure_rows,
    replicates_of,
    trainings_of,
)
from asmil.reporting import Estimate
from asmil.tasks.metrics import confusion_matrix, predicted_classes

OPERATING_METRICS = (
    ("sensitivity", "recall", 1),
    ("specificity", "specificity", 1),
    ("precision", "precision", 1),
    ("macro_f1", "macro_f1", None),
    ("accuracy", "accuracy", None),
)
"""The metrics of an operating point: their name there, the metric, and the class it is of."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(SlideEvaluation):
    """The evaluation of a classification run.

    confusion: K x K counts, rows true, columns predicted, summed over all trainings
    operating: the part at thresholds chosen on validation slides; None if there are none
    """

    confusion: npt.NDArray[np.int64]
    calibration: CalibrationSummary
    operating: OperatingSummary | None
    skipped_resamples: int

    def keep_choices(self) -> None:
        """Keep the thresholds of the test part's slides for `asmil predict`."""
        if self.operating is not None and not self.file_suffix:
            self.operating.point.save(self.path)

    def replicates(self) -> list[tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]]:
        """Targets and n x K probabilities of every group of predictions that is judged together."""
        task = self.run.format
        return [(task.truth(part), task.predictions(part)) for part in replicates_of(self.rows)]

    def to_dict(self) -> dict[str, Any]:
        """Everything found, for JSON: undefined numbers are None."""
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


def evaluate_classification(
    run: Run, role: Role, resamples: int, seed: int, unit: UnitKind, threshold_rule: str
) -> Evaluation:
    """Evaluate one part of a classification run."""
    rows = rows_of(run, role, unit)
    found = measure_rows(run.format, rows, resamples, seed)
    operating = _operating(run, rows, role, unit, threshold_rule, resamples, seed)
    return Evaluation(
        run=run,
        role=role,
        metrics=found.metrics,
        classes=class_summaries(run, rows, found),
        calibration=_calibration(run, rows, role, unit),
        operating=operating if isinstance(operating, OperatingSummary) else None,
        unit=unit,
        confusion=np.sum([_confusion(run, part) for part in trainings_of(rows).values()], axis=0),
        rows=rows,
        folds_joined=folds_are_disjoint(rows),
        resamples=resamples,
        skipped_resamples=found.skipped,
        bootstrap_seed=seed,
        warnings=(*_warnings(run, rows, found, resamples), *([operating] if isinstance(operating, str) else [])),
    )


def _operating(
    run: Run, rows: pd.DataFrame, role: Role, unit: UnitKind, rule: str, resamples: int, seed: int
) -> OperatingSummary | str | None:
    """The part at the thresholds chosen on validation slides, or why there are none; None for validation slides.

    A called class is a probability of 1, so metrics and intervals are those of probabilities.
    """
    if role == "val":
        return None
    point = choose_operating_point(run, part_of(run, "val", unit), list(trainings_of(rows)), rule)
    if isinstance(point, str):
        return point if len(run.classes) == 2 else None
    found = measure_rows(run.format, called_rows(run, rows, point), resamples, seed)
    metrics: dict[str, Estimate] = {
        title: found.metrics[name] if place is None else found.parts[place][name]
        for title, name, place in OPERATING_METRICS
    }
    return OperatingSummary(point, metrics)


def _calibration(run: Run, rows: pd.DataFrame, role: Role, unit: UnitKind) -> CalibrationSummary:
    fitted: dict[tuple[int, int], float] = {}
    if role == "test":
        fitted = fit_temperatures(run, part_of(run, "val", unit), list(trainings_of(rows)))
    return CalibrationSummary(
        summarize_calibration(run, replicates_of(rows)),
        summarize_calibration(run, replicates_of(scaled_rows(run, rows, fitted))) if fitted else None,
        fitted,
    )


def _confusion(run: Run, part: pd.DataFrame) -> npt.NDArray[np.int64]:
    called = predicted_classes(run.format.predictions(part))
    return confusion_matrix(run.format.truth(part), called, len(run.classes))


def _warnings(run: Run, rows: pd.DataFrame, found: Measured, resamples: int) -> Iterator[str]:
    present = set(run.format.truth(rows).tolist())
    absent = [name for label, name in enumerate(run.classes) if label not in present]
    total = len(run.classes)
    if len(present) == 1:
        yield "All slides are of one class: the AUC is undefined and there is no interval."
    elif absent:
        yield (
            f"No slide is of class {', '.join(absent)}: macro-AUC is the mean of {total - len(absent)} of "
            f"{total} classes, and macro-F1 counts the absent ones as 0."
        )
    if not folds_are_disjoint(rows):
        yield "The folds share slides, so each training was evaluated on its own and the values were averaged."
    if found.skipped and len(present) > 1:
        yield f"{found.skipped} of {resamples} resamples held a single class and were left out of the intervals."
