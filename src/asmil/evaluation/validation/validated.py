"""What every section of a validation is made from: the predictions of new patients, and the internal estimate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from asmil.cohort.units import Unit
from asmil.errors import AsmilError
from asmil.evaluation.classification import evaluate_classification
from asmil.evaluation.rows import different_targets, part_of, rows_of
from asmil.evaluation.run_evaluation import Request
from asmil.evaluation.slide_evaluation import Measured, measure_rows
from asmil.evaluation.survival.evaluate import SurvivalEvaluation, evaluate_survival, tested_parts
from asmil.evaluation.validation.grouping import Variable
from asmil.reporting import Estimate, Interval, Section
from asmil.reporting.estimate import NAN
from asmil.reporting.formats import format_count
from asmil.runs.bundle import read_bundle_file
from asmil.runs.prediction import SlidePrediction
from asmil.runs.run import Run
from asmil.runs.trained_models import finished_trainings
from asmil.tables.arrays import Floats, Integers
from asmil.tasks.base import Metric, Truth
from asmil.tasks.intervals import draw_patients, estimate, under_draws

POSITIVE = 1
"""Index of the positive class of two: the second."""


@dataclass(frozen=True)
class ValidationRequest:
    """Options of a validation.

    by: variables that define subgroups
    margin: of non-inferiority: by how much the main metric may be worse than the internal estimate; None: not tested
    times: for survival: when calibration is shown; None: the quartiles of the event times
    coverage: of conformal sets
    """

    by: tuple[Variable, ...] = ()
    margin: float | None = None
    times: tuple[float, ...] | None = None
    resamples: int = 2000
    seed: int = 0
    coverage: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.coverage < 1:
            raise AsmilError(f"--coverage {self.coverage:g} is not possible; give a share between 0 and 1, e.g. 0.9")
        if self.margin is not None and not 0 < self.margin < np.inf:
            raise AsmilError(f"--margin {self.margin:g} is not possible; give a number above 0, e.g. 0.05")


@dataclass(frozen=True)
class Overlap:
    """Slides of the new cohort that the model was trained on.

    by_name: slide -> the name that both have; by_features: slides whose tiles are those of a training slide
    tested: slides whose patients were test patients of the run, which the internal estimate contains
    known: whether the model says which slides it was trained on; bundles of earlier versions do not
    """

    by_name: Mapping[str, str] = field(default_factory=dict)
    by_features: tuple[str, ...] = ()
    tested: tuple[str, ...] = ()
    known: bool = True

    @property
    def slides(self) -> tuple[str, ...]:
        """All slides that overlap."""
        return tuple(dict.fromkeys([*self.by_name, *self.by_features]))


@dataclass(frozen=True)
class Part:
    """One section of a validation.

    key, content: its name and its numbers in `validation.json`
    sentence: its result in words, for the answer at the top; warnings: reasons for doubt
    """

    key: str
    section: Section
    content: Mapping[str, Any]
    sentence: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Internal:
    """The estimate on the run's own test patients.

    metrics: by name; of: the patients or slides it is based on, in words
    """

    metrics: Mapping[str, Estimate]
    of: str


@dataclass(frozen=True)
class ValidatedPredictions:
    """Predictions of new patients whose outcomes are known.

    rows: one row per slide (or patient whose slides were joined) with truth and predictions, as in a run's predictions
    groups: the value of every variable of `request.by` for every slide; None if it is missing
    predicted: the same predictions as the model gave them
    """

    run: Run
    cohort: Path
    rows: pd.DataFrame = field(repr=False)
    groups: pd.DataFrame = field(repr=False)
    predicted: Sequence[tuple[Unit, SlidePrediction]] = field(repr=False)
    request: ValidationRequest = ValidationRequest()
    overlap: Overlap = Overlap()
    failures: tuple[str, ...] = ()

    @cached_property
    def patients(self) -> pd.DataFrame:
        """One row per patient, by name: the truth and the mean prediction of the patient's slides."""
        external = self.run.with_predictions(self.rows)
        different = different_targets(self.run, self.rows)
        if different is not None:
            raise AsmilError(
                f"{self.cohort}: {different}, but patients are counted; give one target per patient, or leave out the "
                "column of the patients if slides are independent"
            )
        rows = part_of(external, "test") if self.run.format.by_patient else part_of(external, "test", "patient")
        return rows.sort_values("patient", ignore_index=True)

    @property
    def n_patients(self) -> int:
        return len(self.patients)

    @property
    def n_models(self) -> int:
        """How many models were averaged."""
        return len(finished_trainings(self.run.layout))

    @cached_property
    def truth(self) -> Truth:
        """The outcomes of the patients."""
        return self.run.format.truth(self.patients)

    @cached_property
    def predictions(self) -> Floats:
        """n x C predictions of the patients."""
        return self.run.format.predictions(self.patients)

    def group_of(self, variable: Variable) -> list[str | None]:
        """The group of every patient; None if it is unknown, or if the slides of a patient differ."""
        cells: dict[str, set[str | None]] = {}
        for patient, cell in zip(self.groups["patient"], self.groups[variable.name], strict=True):
            cells.setdefault(patient, set()).add(cell)
        found = [cells[patient] for patient in self.patients["patient"]]
        return [variable.group(*values) if len(values) == 1 else None for values in found]

    @property
    def asked(self) -> Request:
        return Request("test", self.request.resamples, self.request.seed, "patient")

    @cached_property
    def survival(self) -> SurvivalEvaluation:
        """The evaluation of a survival model on the new patients."""
        asked = self.request
        external = self.run.with_predictions(self.patients)
        return evaluate_survival(external, "test", asked.resamples, asked.seed, asked.times)

    @cached_property
    def survival_at(self) -> dict[float, Floats]:
        """The predicted survival of every patient at the times of the request; empty without predicted curves."""
        (part,) = tested_parts(self.patients)
        times = np.array(list(self.survival.auc_at))
        curves = part.survival(times)
        followed = times <= self.truth[:, 0].max()
        return {} if curves is None else {float(t): curves[:, i] for i, t in enumerate(times) if followed[i]}

    @cached_property
    def measured(self) -> Measured:
        """The metrics of the new patients, and those of every class or label."""
        if self.run.kind == "survival":
            return Measured(dict(self.survival.metrics), [], 0)
        return measure_rows(self.run.format, self.patients, self.asked)

    @cached_property
    def internal(self) -> Internal | None:
        """The estimate on the run's own test patients; None if there are none, or if their slides differ in targets."""
        if self.run.is_bundle:
            return _stored_estimate(self.run)
        if not (self.run.predictions["role"] == "test").any():
            return None
        if self.run.kind == "survival":
            evaluated = evaluate_survival(self.run, "test", self.request.resamples, self.request.seed)
            return Internal(evaluated.metrics, evaluated.sizes)
        if different_targets(self.run, rows_of(self.run, "test")) is not None:
            return None
        rows = rows_of(self.run, "test", "patient")
        metrics = measure_rows(self.run.format, rows, self.asked).metrics
        return Internal(metrics, format_count(rows["patient"].nunique(), "patient"))

    @cached_property
    def internal_at_threshold(self) -> Mapping[str, Estimate]:
        """Metrics of the run's test slides at the stored thresholds; empty if they are unknown."""
        point = self.run.operating_point
        if point is None or self.run.is_bundle or self.internal is None:
            return {}
        request = Request("test", self.request.resamples, self.request.seed, "slide", point.rule)
        operating = evaluate_classification(self.run, request).operating
        return {} if operating is None or operating.point != point else operating.metrics

    @property
    def main_metric(self) -> Metric:
        """The metric of discrimination: AUC, C-index, or the first of the task."""
        metrics = self.run.format.metrics
        return next((metric for metric in metrics if metric.name == "macro_auc"), self.run.format.compared[0])

    def title_of(self, metric: Metric) -> str:
        """The name of a metric; for two classes the mean over classes is the AUC."""
        return "AUC" if metric.name == "macro_auc" and self.run.format.has_threshold else metric.title

    @property
    def classes_shown(self) -> list[int]:
        """Indices of classes whose probabilities are examined: all, or the positive one of two."""
        return [self.positive] if self.run.format.has_threshold else list(range(len(self.run.classes)))

    @property
    def positive(self) -> int:
        """Index of the positive class of two."""
        point = self.run.operating_point
        return POSITIVE if point is None else self.run.classes.index(point.positive)

    @cached_property
    def draws(self) -> Integers:
        """R x n counts of patients in bootstrap resamples."""
        return draw_patients(self.n_patients, self.request.resamples, self.request.seed)

    def estimated(self, measure: Callable[[Floats], Mapping[str, Floats]]) -> dict[str, Estimate]:
        """Numbers with their bootstrap intervals; measure: from R x n weights of patients to R values by name."""
        values = measure(np.ones((1, self.n_patients)))
        samples = under_draws(measure, self.draws, self.n_patients)
        return {name: estimate(float(value[0]), samples[name], n=self.n_patients) for name, value in values.items()}


def _stored_estimate(run: Run) -> Internal | None:
    bundle = read_bundle_file(run.path)
    metrics = {
        name: Estimate(_or_nan(stored.value), Interval(_or_nan(stored.low), _or_nan(stored.high)))
        for name, stored in bundle.metrics.items()
    }
    return Internal(metrics, bundle.sizes) if metrics else None


def _or_nan(value: float | None) -> float:
    return NAN if value is None else value
