"""Survival reports on disk and in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asmil.errors import AsmilError
from asmil.evaluation.run_sentences import part_title
from asmil.evaluation.survival.summary import METRIC_TITLES, FoldMetric, SurvivalEvaluation
from asmil.evaluation.survival.words import format_p, format_sizes
from asmil.evaluation.tables import format_interval, format_number
from asmil.files import write_json, write_text

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = ("c_index", "mean_auc", "integrated_brier")
"""What fits into a terminal, beside the Brier score of Kaplan-Meier; the report has the rest."""


def write_survival_report(
    evaluations: SurvivalEvaluation | Sequence[SurvivalEvaluation], folder: Path | str | None = None
) -> Path:
    """Write a page and the numbers; return the path of the page.

    One evaluation without a folder: `report.html` and `evaluation.json` in the run's own folder, those of the
    validation part as `report-val.html` and `evaluation-val.json`. With a folder: `report.html` and `metrics.json`
    there.
    """
    from asmil.evaluation.survival.page import render_survival_page

    listed = [evaluations] if isinstance(evaluations, SurvivalEvaluation) else list(evaluations)
    if not listed:
        raise AsmilError("there is nothing to report: give at least one evaluated run")
    if folder is not None:
        page, numbers = Path(folder) / "report.html", Path(folder) / "metrics.json"
        write_json(numbers, [evaluation.to_dict() for evaluation in listed])
    elif len(listed) == 1:
        suffix = "" if listed[0].role == "test" else f"-{listed[0].role}"
        run = listed[0].run.path
        page, numbers = run / f"report{suffix}.html", run / f"evaluation{suffix}.json"
        write_json(numbers, listed[0].to_dict())
    else:
        raise AsmilError("the report of several runs needs a folder of its own; give one with --out")
    write_text(page, render_survival_page(listed))
    return page


def summary_table(evaluations: Sequence[SurvivalEvaluation]) -> Table:
    """The table that `asmil evaluate` prints: a row a run, every metric with spread and interval."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    title = part_title(evaluations[0].role, (evaluation.run.config for evaluation in evaluations))
    part = f"{title}: {format_sizes(evaluations)}"
    title = f"{part}; mean ± standard deviation over folds, 95 % interval by patient"
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("run", overflow="fold", min_width=12)
    for name in SHOWN:
        table.add_column(METRIC_TITLES[name].replace(" ", "\n", 1), justify="right", no_wrap=True)
    table.add_column("log-\nrank", justify="right", no_wrap=True)
    for evaluation in evaluations:
        values = [_cell(evaluation.metrics[name]) for name in SHOWN]
        values[-1] += f"\n[dim]Kaplan-Meier {format_number(evaluation.metrics['reference_brier'].value)}[/dim]"
        trainings = f"{evaluation.n_trainings} training{'s' * (evaluation.n_trainings > 1)}"
        about = f"{escape(evaluation.name)}\n[dim]{escape(evaluation.method)}, {trainings}[/dim]"
        table.add_row(about, *values, format_p(evaluation.risk_groups.p))
    return table


def _cell(metric: FoldMetric) -> str:
    spread = "" if math.isnan(metric.sd_folds) else f" ±{format_number(metric.sd_folds)}"
    return f"{format_number(metric.value)}{spread}\n[dim]{format_interval(metric.interval, '–')}[/dim]"
