"""The verb `evaluate`: metrics with intervals, and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that `asmil train` wrote.")],
    role: Annotated[Literal["test", "val"], typer.Option(help="Part of the cohort to evaluate.")] = "test",
    out: Annotated[Path | None, typer.Option(help="Folder for the report; default: the run's own.")] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Draws of patients behind an interval.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of those draws.")] = 0,
    unit: Annotated[
        Literal["slide", "patient"], typer.Option(help="patient: average the slides of a patient first.")
    ] = "slide",
    threshold: Annotated[
        str, typer.Option(help="How a threshold is chosen on validation slides: youden, f1, sensitivity:0.95, ...")
    ] = "youden",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Evaluate runs: every metric with a 95 % interval by patient, and a report page.

    One run without --out gets `report.html` and `evaluation.json` in its own folder; several runs are only
    printed unless --out names a folder. The runs must be of one task.
    """
    import json

    from rich.console import Console

    from asmil.evaluation.kinds import evaluator_of

    evaluator = evaluator_of(runs)
    evaluations = [evaluator.evaluate(run, role, resamples, seed, unit, threshold) for run in runs]
    page = None
    if out is not None or len(evaluations) == 1:
        page = evaluator.report(evaluations, out)
    if as_json:
        found = [evaluation.to_dict() for evaluation in evaluations]
        typer.echo(json.dumps(found[0] if len(found) == 1 else found, indent=1, ensure_ascii=False))
        return
    console = Console()
    for table in evaluator.tables(evaluations):
        console.print(table)
    for evaluation in evaluations:
        for warning in evaluation.warnings:
            console.print(f"{evaluation.name}: {warning}", style="yellow", markup=False)
    if page is not None:
        console.print(f"report: {page}", markup=False, soft_wrap=True)
