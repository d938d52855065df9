"""`asmil evaluate`: metrics with intervals, and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that `asmil train` wrote.")],
    role: Annotated[Literal["test", "val"], typer.Option(help="Part of the cohort to evaluate.")] = "test",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the report. Default: the run folder.")
    ] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Bootstrap resamples of patients.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
    unit: Annotated[
        Literal["slide", "patient"], typer.Option(help="patient: average the slides of a patient first.")
    ] = "slide",
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="For two classes: predict at a threshold chosen on validation slides by youden, f1, "
            "sensitivity:0.95 or specificity:0.95. Default: predict the most probable class.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Evaluate runs: every metric with a 95 % confidence interval, and a report.

    One run without --out gets `report.html` and `evaluation.json` in its own folder. Several runs are only printed
    unless --out names a folder, which gets `report.html`, `report.md`, `metrics.csv` and `metrics.json`.

    Example: asmil evaluate runs/asmil runs/abmil --out report
    """
    from asmil.console import print_json, results, say
    from asmil.evaluation.evaluate import evaluate_run, noting_changed_labels
    from asmil.evaluation.report import evaluation_document, write_report
    from asmil.reporting import print_document

    found = [evaluate_run(run, role, resamples, seed, unit, threshold) for run in runs]
    evaluations = [noting_changed_labels(one) for one in found]
    document = evaluation_document(evaluations)
    writes = out is not None or len(evaluations) == 1
    page = write_report(evaluations, out, document) if writes else None
    if as_json:
        values = [evaluation.to_dict() for evaluation in evaluations]
        print_json(values[0] if len(values) == 1 else values)
        return
    console = results()
    print_document(document, console)
    if page is not None:
        say(console, f"report: {page}")
