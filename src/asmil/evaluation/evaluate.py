"""Evaluate runs of any task; this module also says how each task is evaluated and reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError
from asmil.evaluation.covariates import compare_terms
from asmil.evaluation.run_evaluation import Request, Role, RunEvaluation
from asmil.reporting import Block
from asmil.runs.run import Run, read_run
from asmil.runs.stored_labels import label_changes
from asmil.tasks.base import TaskKind


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
    evaluation = evaluator.evaluate(opened, request)
    of_terms = opened.term_predictions
    if of_terms is not None:
        try:
            evaluation = replace(evaluation, terms=compare_terms(opened, of_terms, request))
        except AsmilError as error:
            what = f"Image and covariates were not compared: {error}"
            evaluation = replace(evaluation, warnings=(*evaluation.warnings, what))
    if threshold_rule is None or opened.format.has_threshold:
        return evaluation
    ignored = f"--threshold {threshold_rule} was ignored: it applies to runs with two classes."
    return replace(evaluation, warnings=(*evaluation.warnings, ignored))


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
    """The evaluator of a task; its modules are imported when they are needed."""
    both: tuple[UnitKind, ...] = ("slide", "patient")
    if kind == "classification":
        from asmil.evaluation.classification import evaluate_classification
        from asmil.evaluation.classification_report import class_blocks, class_reading

        return TaskEvaluator(evaluate_classification, class_blocks, class_reading, both)
    if kind == "survival":
        from asmil.evaluation.survival.evaluate import evaluate_survival
        from asmil.evaluation.survival.report import survival_blocks, survival_reading

        def evaluate(run: Run, request: Request) -> RunEvaluation:
            return evaluate_survival(run, request.role, request.resamples, request.seed)

        # each row of a survival run is a patient, so both units mean the same
        return TaskEvaluator(evaluate, survival_blocks, survival_reading, both)
    from asmil.evaluation.slide_evaluation import evaluate_slides
    from asmil.evaluation.slide_report import LABEL_READING, VALUE_READING, label_blocks, value_blocks

    if kind == "regression":
        return TaskEvaluator(evaluate_slides, value_blocks, lambda evaluations: VALUE_READING)
    return TaskEvaluator(evaluate_slides, label_blocks, lambda evaluations: LABEL_READING)
