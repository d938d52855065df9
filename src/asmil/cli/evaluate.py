"""`asmil evaluate`: metrics with intervals, and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from asmil.cli.options import BootstrapSeed, EvaluatedRole, Json, Resamples, RunFolders, UnitName, option, out_option


def evaluate(
    runs: RunFolders,
    role: EvaluatedRole = "test",
    out: Annotated[Path | None, out_option("Folder for the report. Default: the run folder.")] = None,
    resamples: Resamples = 2000,
    seed: BootstrapSeed = 0,
    unit: UnitName = "slide",
    threshold: Annotated[
        str | None,
        option(
            "For two classes: predict at a threshold chosen on validation slides by youden, f1, "
            "sensitivity:0.95 or specificity:0.95. Default: predict the most probable class.",
            metavar="RULE",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Evaluate runs: every metric with a 95 % confidence interval, and a report.

    One run without --out gets `report.html` and `evaluation.json` in its own folder. Several runs are only printed
    unless --out names a folder, which gets `report.html`, `report.md`, `metrics.csv` and `metrics.json`.

    Example: asmil evaluate runs/asmil runs/abmil --out report
    """
    from asmil.api import functions
    from asmil.console import print_json, results, say
    from asmil.evaluation.report import evaluation_document, write_report
    from asmil.reporting import print_document

    options: dict[str, Any] = {"resamples": resamples, "seed": seed, "unit": unit, "threshold": threshold}
    evaluations = [functions.evaluate(run, role, **options) for run in runs]
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
