"""Evaluating runs of any task: the one entry, and the one place that knows how each task is evaluated and reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError
from asmil.evaluation.run import Run, read_run
from asmil.evaluation.run_evaluation import Role, RunEvaluation, refuse_request
from asmil.reporting import Block
from asmil.tasks.base import TaskKind

DEFAULT_RULE = "youden"


def evaluate_run(
    run: Path | str | Run,
    role: Role = "test",
    resamples: int = 2000,
    seed: int = 0,
    unit: UnitKind = "slide",
    threshold_rule: str | None = None,
) -> RunEvaluation:
    """Evaluate the predictions that a run made for one part of its cohort.

    Each metric is computed on all slides of the part, with the folds of a seed joined, and averaged over seeds.
    Where folds share slides (repeated splits), and for survival, each training is evaluated on its own and all
    are averaged. The interval is the 2.5 and 97.5 percentile of that average over `resamples` draws of patients.

    unit: `patient` averages the predictions of a patient's slides first; refused if the task has no such average
    threshold_rule: how the threshold of two classes is chosen on validation slides (`choose_threshold`), by default
    `youden`; `warnings` reports a rule that does not apply
    """
    refuse_request(role, resamples, unit)
    opened = run if isinstance(run, Run) else read_run(run)
    evaluator = evaluator_of(opened.kind)
    if unit not in evaluator.units:
        raise AsmilError(
            f"{opened.path}: --unit {unit} does not apply to a {opened.kind} run; train with --set data.unit={unit}"
        )
    found = evaluator.evaluate(opened, role, resamples, seed, unit, threshold_rule or DEFAULT_RULE)
    if threshold_rule is None or opened.format.has_threshold:
        return found
    ignored = f"--threshold {threshold_rule} was ignored: it applies to runs with two classes."
    return replace(found, warnings=(*found.warnings, ignored))


@dataclass(frozen=True)
class TaskEvaluator:
    """How one task is evaluated and reported.

    evaluate: a run, the part, the number of resamples and their seed, the unit and the rule of the threshold
    blocks: what a report says of one run, besides the summary of its metrics
    reading: how to read the numbers of several runs
    units: what may be evaluated
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
