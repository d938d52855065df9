"""Evaluating runs of any task: metrics with the spread over seeds and an interval by patient."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError
from asmil.evaluation.dispatch import evaluator_of
from asmil.evaluation.run import Run, read_run
from asmil.evaluation.run_evaluation import Role, RunEvaluation, refuse_request

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
