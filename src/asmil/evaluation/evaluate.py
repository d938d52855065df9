"""Evaluate runs of any task; this module also defines how each task is evaluated and reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.stability.alarms import Alarm
from asmil.reporting import Block, Estimate, jsonable
from asmil.reporting.formats import format_count
from asmil.reporting.notebook import Displayed
from asmil.runs.run import Run, read_run
from asmil.runs.stored_labels import label_changes
from asmil.tables.arrays import Floats
from asmil.tasks.base import TaskKind
from asmil.tasks.prediction_format import Truth

Role = Literal["test", "val"]
PART_TITLES: Mapping[Role, str] = {"test": "test set", "val": "validation set"}
FEW_PATIENTS = 30
"""With fewer patients a report warns that they are too few to rank methods."""


@dataclass(frozen=True)
class Request:
    """Options of an evaluation or a comparison: test or validation set, bootstrap, unit and threshold rule.

    threshold_rule: if given, classes are predicted at a threshold; None: the most probable class is predicted
    """

    role: Role = "test"
    resamples: int = 2000
    seed: int = 0
    unit: UnitKind = "slide"
    threshold_rule: str | None = None

    def __post_init__(self) -> None:
        if self.role not in PART_TITLES:
            raise AsmilError(f"role {self.role!r} is unknown: {did_you_mean(self.role, PART_TITLES)}")
        if self.unit not in get_args(UnitKind):
            raise AsmilError(f"unit {self.unit!r} is unknown: {did_you_mean(self.unit, get_args(UnitKind))}")
        if self.resamples < 1:
            raise AsmilError(f"{self.resamples} resamples are too few; give at least 1, better 2000")


@dataclass(frozen=True, kw_only=True)
class RunEvaluation(Displayed):
    """The evaluation of a run on its test or validation set.

    metrics: every metric of the task with its interval
    rows: the predictions that were evaluated
    """

    run: Run = field(repr=False)
    role: Role
    metrics: Mapping[str, Estimate]
    rows: pd.DataFrame = field(repr=False)
    resamples: int
    bootstrap_seed: int
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.run.name

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.run.path

    @property
    def method(self) -> str:
        """Name of the trained method."""
        return self.run.settings.method or "unknown"

    @property
    def preset(self) -> str:
        """Name of the training preset."""
        return self.run.settings.preset or "none"

    @property
    def n_folds(self) -> int:
        """How many folds were evaluated."""
        return self._count("fold")

    @property
    def n_seeds(self) -> int:
        """How many seeds were evaluated."""
        return self._count("seed")

    @property
    def n_trainings(self) -> int:
        """How many trainings (fold by seed) were evaluated."""
        return self._count("fold", "seed")

    @property
    def n_slides(self) -> int:
        """How many slides were evaluated; patients if each patient has one prediction."""
        return self._count("slide")

    @property
    def n_patients(self) -> int:
        """How many patients were evaluated."""
        return self._count("patient")

    def _count(self, *columns: str) -> int:
        return len(self.rows[list(columns)].drop_duplicates())

    @property
    def unit_name(self) -> UnitKind:
        """What each prediction is about: a slide, or a patient."""
        by_patient = self.run.format.by_patient or self.run.settings.data.unit == "patient"
        return "patient" if by_patient else "slide"

    @property
    def sizes(self) -> str:
        """How many slides and patients were evaluated, as text."""
        patients = format_count(self.n_patients, "patient")
        return patients if self.unit_name == "patient" else f"{format_count(self.n_slides, 'slide')} of {patients}"

    @property
    def mean_of(self) -> str:
        """What the values of the metrics are means of, as text; empty if there is one training."""
        return f"mean of {self.n_trainings} trainings" * (self.n_trainings > 1)

    @property
    def file_suffix(self) -> str:
        """The part of file names that distinguishes this evaluation from that of the test set."""
        return "" if self.role == "test" else f"-{self.role}"

    @cached_property
    def by_slide(self) -> tuple[list[str], Truth, Floats]:
        """Slide names, their truth, and their predictions averaged over trainings (n x C)."""
        task = self.run.format
        first = self.rows.drop_duplicates("slide").sort_values("slide")
        means = self.rows.groupby("slide", sort=True)[list(task.prediction_columns)].mean()
        return first["slide"].astype(str).tolist(), task.truth(first), means.to_numpy(dtype=np.float64)

    @property
    def decided(self) -> Floats:
        """The predictions of `by_slide` as classes are predicted from them: the highest of a row is predicted."""
        return self.by_slide[2]

    @property
    def in_words(self) -> str:
        """The result in a sentence or two."""
        assert self.run.format.in_words is not None
        values = {name: one.value for name, one in self.metrics.items()}
        said = self.run.format.in_words(self.by_slide[1], self.decided, values, self.unit_name)
        few = f" {self.sizes} are too few to rank methods." if self.n_patients < FEW_PATIENTS else ""
        how = f"With {' and '.join(self.counted_with)}, " if self.counted_with else ""
        return f"{how}{self.name} {said}.{self.aside}{few}"

    @property
    def aside(self) -> str:
        """A sentence on what differs from the result in words; by default there is none."""
        return ""

    @property
    def counted_with(self) -> list[str]:
        """How the predictions of several trainings became the one prediction of a slide that is counted, as phrases."""
        return []

    @cached_property
    def raised(self) -> tuple[Alarm, ...]:
        """Reasons not to use the predictions or maps of the run."""
        from asmil.evaluation.run_alarms import alarms_given

        return alarms_given(self.path, self.run.format, self.by_slide[1], self.decided, self.unit_name)

    @property
    def alarms(self) -> list[str]:
        """The alarms of the run, each with what to try."""
        return [alarm.short for alarm in self.raised]

    def keep_choices(self) -> None:
        """Save what later predictions need, such as thresholds, in the run folder; by default nothing."""

    def spread(self, estimate: Estimate) -> tuple[str, float]:
        """What a metric varies over (seeds or folds), and its standard deviation."""
        return "seeds", estimate.sd_seeds

    def to_dict(self) -> dict[str, Any]:
        """All results, ready for JSON; undefined numbers are None."""
        return {
            "run": str(self.run.path),
            "name": self.name,
            "method": self.method,
            "preset": self.preset,
            "task": self.run.kind,
            "role": self.role,
            "trainings": self.n_trainings,
            "folds": self.n_folds,
            "seeds": self.n_seeds,
            **({"fold_names": jsonable(self.run.fold_names)} if self.run.fold_names else {}),
            "patients": self.n_patients,
            "bootstrap": {"unit": "patient", "resamples": self.resamples, "seed": self.bootstrap_seed, "level": 0.95},
            "selection": self.run.settings.training.select,
            "max_tiles": self.run.settings.data.max_tiles,
            "warnings": list(self.warnings),
        }

    @property
    def table(self) -> pd.DataFrame:
        """One row per metric: value, limits of the 95 % interval, and standard deviation over seeds."""
        rows = [{"metric": name, **one.with_sd()} for name, one in self.metrics.items()]
        return pd.DataFrame(rows).set_index("metric")

    def display_parts(self) -> tuple[str, list[pd.DataFrame], list[str]]:
        """The title, the tables and the warnings, as they are shown in a notebook."""
        title = f"{self.name}: {self.method} ({self.preset}), {PART_TITLES[self.role]}, {self.sizes}"
        return title, [self.table], list(self.warnings)

    def csv_rows(self) -> list[dict[str, Any]]:
        """One row per metric."""
        return [
            {
                "run": self.name,
                "method": self.method,
                "preset": self.preset,
                "role": self.role,
                "metric": name,
                "class": "",
                **metric.with_sd(),
                "sd_trainings": metric.sd_trainings,
                "slides": self.n_slides,
                "trainings": self.n_trainings,
                "seeds": self.n_seeds,
                "patients": self.n_patients,
                "resamples": self.resamples,
                "skipped_resamples": metric.skipped,
            }
            for name, metric in self.metrics.items()
        ]


def evaluate_run(
    run: Path | str | Run,
    role: Role = "test",
    resamples: int = 2000,
    seed: int = 0,
    unit: UnitKind = "slide",
    threshold_rule: str | None = None,
) -> RunEvaluation:
    """Evaluate the predictions of a run for its test or validation set.

    Each metric is computed on all slides of the set, with the folds of a seed joined, and averaged over seeds.
    If folds share slides (repeated splits), and for survival, each training is evaluated separately, and the values
    are averaged. The interval runs from the 2.5 to the 97.5 percentile of this average over `resamples` bootstrap
    resamples of patients.

    unit: `patient` first averages the predictions of a patient's slides; an error if the task does not allow this
    threshold_rule: predict two classes at a threshold that is chosen on validation slides by this rule
    (`choose_threshold`), instead of predicting the most probable class; if it does not apply, `warnings` says so
    """
    request = Request(role, resamples, seed, unit, threshold_rule)
    opened = run if isinstance(run, Run) else read_run(run)
    evaluator = evaluator_of(opened.kind)
    if unit not in evaluator.units:
        raise AsmilError(
            f"{opened.path}: --unit {unit} does not apply to a {opened.kind} run; train with --set data.unit={unit}"
        )
    found = evaluator.evaluate(opened, request)
    if threshold_rule is None or opened.format.has_threshold:
        return found
    ignored = f"--threshold {threshold_rule} was ignored: it applies to runs with two classes."
    return replace(found, warnings=(*found.warnings, ignored))


def noting_changed_labels(evaluation: RunEvaluation) -> RunEvaluation:
    """The evaluation, with a warning if labels in the manifest changed after the training; the stored ones are used."""
    changes = label_changes(evaluation.run)
    if changes is None:
        return evaluation
    return replace(evaluation, warnings=(changes.sentence("these metrics use the old ones"), *evaluation.warnings))


@dataclass(frozen=True)
class TaskEvaluator:
    """How one task is evaluated and reported.

    blocks: sections of the report of one run that follow the summary of its metrics
    reading: how to read the numbers of several runs
    units: the units that may be evaluated
    """

    evaluate: Callable[[Run, Request], RunEvaluation]
    blocks: Callable[[Any], Sequence[Block]]
    reading: Callable[[Sequence[Any]], Sequence[str]]
    units: tuple[UnitKind, ...] = ("slide",)


def evaluator_of(kind: TaskKind) -> TaskEvaluator:
    """The evaluator of a task; tasks are imported when they are needed."""
    return _EVALUATORS[kind]()


def _classification() -> TaskEvaluator:
    from asmil.evaluation.classification import evaluate_classification
    from asmil.evaluation.classification_report import class_blocks, class_reading

    return TaskEvaluator(evaluate_classification, class_blocks, class_reading, units=("slide", "patient"))


def _survival() -> TaskEvaluator:
    from asmil.evaluation.survival import evaluate_survival
    from asmil.evaluation.survival.report import survival_blocks, survival_reading

    # each row of a survival run is a patient, so both units mean the same
    return TaskEvaluator(
        lambda run, asked: evaluate_survival(run, asked.role, asked.resamples, asked.seed),
        survival_blocks,
        survival_reading,
        units=("slide", "patient"),
    )


def _regression() -> TaskEvaluator:
    from asmil.evaluation.report import value_blocks, value_reading
    from asmil.evaluation.slide_evaluation import evaluate_slides

    return TaskEvaluator(evaluate_slides, value_blocks, value_reading)


def _multilabel() -> TaskEvaluator:
    from asmil.evaluation.report import label_blocks, label_reading
    from asmil.evaluation.slide_evaluation import evaluate_slides

    return TaskEvaluator(evaluate_slides, label_blocks, label_reading)


_EVALUATORS: Mapping[TaskKind, Callable[[], TaskEvaluator]] = {
    "classification": _classification,
    "survival": _survival,
    "regression": _regression,
    "multilabel": _multilabel,
}
