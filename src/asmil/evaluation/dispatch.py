"""How the runs of each task are evaluated and reported: the one place that knows all tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asmil.cohort.units import UnitKind
from asmil.evaluation.run import Run
from asmil.evaluation.run_evaluation import Role, RunEvaluation
from asmil.reporting import Block
from asmil.tasks.base import TaskKind


@dataclass(frozen=True)
class TaskEvaluator:
    """How one task is evaluated and reported.

    evaluate: a run, the part, the number of resamples and their seed, the unit and the rule of the threshold
    blocks: what a report says of one run, beside the summary of its metrics
    reading: how to read the numbers of several runs
    units: what may be judged
    """

    evaluate: Callable[[Run, Role, int, int, UnitKind, str], RunEvaluation]
    blocks: Callable[[Any], Sequence[Block]]
    reading: Callable[[Sequence[Any]], Sequence[str]]
    units: tuple[UnitKind, ...] = ("slide",)


def evaluator_of(kind: TaskKind) -> TaskEvaluator:
    """The evaluator of a task."""
    return _EVALUATORS[kind]()


def _classification() -> TaskEvaluator:
    from asmil.evaluation.classification import evaluate_classification
    from asmil.evaluation.classification_report import classification_blocks, classification_reading

    return TaskEvaluator(
        evaluate_classification, classification_blocks, classification_reading, units=("slide", "patient")
    )


def _survival() -> TaskEvaluator:
    from asmil.evaluation.survival import evaluate_survival
    from asmil.evaluation.survival.report import survival_blocks, survival_reading

    # a row of a survival run is a patient, so both units mean the same
    return TaskEvaluator(
        lambda run, role, resamples, seed, unit, rule: evaluate_survival(run, role, resamples, seed),
        survival_blocks,
        survival_reading,
        units=("slide", "patient"),
    )


def _regression() -> TaskEvaluator:
    from asmil.evaluation.slide_report import regression_blocks, regression_reading

    return TaskEvaluator(_evaluate_slides, regression_blocks, regression_reading)


def _multilabel() -> TaskEvaluator:
    from asmil.evaluation.slide_report import label_blocks, label_reading

    return TaskEvaluator(_evaluate_slides, label_blocks, label_reading)


def _evaluate_slides(run: Run, role: Role, resamples: int, seed: int, unit: UnitKind, rule: str) -> RunEvaluation:
    from asmil.evaluation.slide_evaluation import evaluate_slides

    return evaluate_slides(run, role, resamples, seed, unit)


_EVALUATORS: Mapping[TaskKind, Callable[[], TaskEvaluator]] = {
    "classification": _classification,
    "survival": _survival,
    "regression": _regression,
    "multilabel": _multilabel,
}
