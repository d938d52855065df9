"""How the runs of each task are evaluated, shown and reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError
from asmil.evaluation.run import read_run
from asmil.evaluation.run_evaluation import Role
from asmil.tasks.base import TaskKind

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Evaluator:
    """How one task is evaluated.

    evaluate: a run, the part, the draws of patients and their seed, slides or patients, the rule of the threshold
    report: writes a page for evaluations, into a folder or (None, one evaluation) the run's own; its path
    tables: what is shown in the terminal
    """

    evaluate: Callable[[Path, Role, int, int, UnitKind, str], Any]
    report: Callable[[Sequence[Any], Path | None], Path]
    tables: Callable[[Sequence[Any]], list[Table]]


def evaluator_of(runs: Sequence[Path]) -> Evaluator:
    """The evaluator of the task that all runs have; runs of several tasks are refused."""
    kinds = {run: read_run(run, kind=None).kind for run in runs}
    first = kinds[runs[0]]
    other = next((run for run in runs if kinds[run] != first), None)
    if other is not None:
        raise AsmilError(
            f"{other} is a run of {kinds[other]}, {runs[0]} one of {first}; evaluate runs of one task at a time"
        )
    return _EVALUATORS[first]()


def _classification() -> Evaluator:
    from asmil.evaluation.console_tables import class_table, summary_table
    from asmil.evaluation.evaluate import evaluate_run
    from asmil.evaluation.report import write_report, write_run_report

    return Evaluator(
        evaluate_run,
        lambda found, out: write_run_report(found[0]) if out is None else write_report(found, out),
        lambda found: [summary_table(found), *([class_table(found[0])] if len(found) == 1 else [])],
    )


def _survival() -> Evaluator:
    from asmil.evaluation.survival import evaluate_survival, summary_table, write_survival_report

    return Evaluator(
        lambda run, role, resamples, seed, unit, rule: evaluate_survival(run, role, resamples, seed),
        write_survival_report,
        lambda found: [summary_table(found)],
    )


def _slide_evaluator(evaluate: Callable[[Path, Role, int, int], Any]) -> Evaluator:
    from asmil.evaluation.slide_report import slide_summary_table, write_slide_report

    def without_rule(run: Path, role: Role, resamples: int, seed: int, unit: UnitKind, rule: str) -> Any:
        del rule
        if unit == "patient":
            raise AsmilError(f"{run}: --unit patient is for classification; train with --set data.unit=patient instead")
        return evaluate(run, role, resamples, seed)

    return Evaluator(without_rule, write_slide_report, lambda found: [slide_summary_table(found)])


def _regression() -> Evaluator:
    from asmil.evaluation.regression_runs import evaluate_regression

    return _slide_evaluator(evaluate_regression)


def _multilabel() -> Evaluator:
    from asmil.evaluation.multilabel_runs import evaluate_multilabel

    return _slide_evaluator(evaluate_multilabel)


_EVALUATORS: Mapping[TaskKind, Callable[[], Evaluator]] = {
    "classification": _classification,
    "survival": _survival,
    "regression": _regression,
    "multilabel": _multilabel,
}
