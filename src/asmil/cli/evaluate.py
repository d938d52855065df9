"""The verb `evaluate`: metrics with intervals, and a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from asmil.evaluation import Evaluation, MetricSummary


def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that `asmil train` wrote.")],
    role: Annotated[Literal["test", "val"], typer.Option(help="Part of the cohort to evaluate.")] = "test",
    out: Annotated[Path | None, typer.Option(help="Folder for the report; default: the run's own.")] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Draws of patients behind an interval.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of those draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Evaluate runs: every metric with a 95 % interval by patient, and a report page.

    One run without --out gets `report.html` and `evaluation.json` in its own folder; several runs are only
    printed unless --out names a folder.
    """
    import json

    from rich.console import Console

    from asmil.evaluation import evaluate_run, write_report, write_run_report

    evaluations = [evaluate_run(run, role, resamples, seed) for run in runs]
    page = None
    if out is not None:
        page = write_report(evaluations, out)
    elif len(evaluations) == 1:
        page = write_run_report(evaluations[0])
    if as_json:
        found = [evaluation.to_dict() for evaluation in evaluations]
        typer.echo(json.dumps(found[0] if len(found) == 1 else found, indent=1, ensure_ascii=False))
        return
    console = Console()
    console.print(_summary(evaluations))
    if len(evaluations) == 1:
        console.print(_classes(evaluations[0]))
    for evaluation in evaluations:
        for warning in evaluation.warnings:
            console.print(f"{evaluation.name}: {warning}", style="yellow", markup=False)
    if page is not None:
        console.print(f"report: {page}", markup=False, soft_wrap=True)


def _summary(evaluations: list[Evaluation]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from asmil.evaluation.summary import METRIC_TITLES, METRICS
    from asmil.evaluation.tables import format_interval, format_sizes

    optimistic = " (optimistic: these slides chose the epoch)" if evaluations[0].role == "val" else ""
    part = f"{evaluations[0].role} part{optimistic}: {format_sizes(evaluations)}"
    spread = " ± standard deviation" if any(evaluation.n_seeds > 1 for evaluation in evaluations) else ""
    title = f"{part}; mean{spread} over seeds, 95 % interval by patient"
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("run", overflow="fold")
    for name in METRICS:
        table.add_column(METRIC_TITLES[name].replace(" ", "\n"), justify="right", no_wrap=True)
    for evaluation in evaluations:
        values = [
            f"{_with_spread(metric)}\n[dim]{format_interval(metric.interval, '–')}[/dim]"
            for metric in (evaluation.metrics[name] for name in METRICS)
        ]
        trainings = f"{evaluation.n_trainings} training{'s' * (evaluation.n_trainings > 1)}"
        about = f"{escape(evaluation.name)}\n[dim]{escape(evaluation.method)}, {trainings}[/dim]"
        table.add_row(about, *values)
    return table


def _with_spread(metric: MetricSummary) -> str:
    import math

    from asmil.evaluation.tables import format_number

    value = format_number(metric.value)
    return value if math.isnan(metric.sd_seeds) else f"{value} ±{format_number(metric.sd_seeds)}"


def _classes(evaluation: Evaluation) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from asmil.evaluation.summary import CLASS_METRICS, METRIC_TITLES
    from asmil.evaluation.tables import format_interval, format_number

    table = Table(title="every class against the rest", box=SIMPLE_HEAD)
    table.add_column("class", overflow="fold")
    for name in CLASS_METRICS:
        table.add_column(METRIC_TITLES[name], justify="right", no_wrap=True)
    for one in evaluation.classes:
        values = [
            f"{format_number(value)}\n[dim]{format_interval(interval, '–')}[/dim]"
            for value, interval in (one.metrics[name] for name in CLASS_METRICS)
        ]
        table.add_row(f"{escape(one.name)}\n[dim]n = {one.support}[/dim]", *values)
    return table
