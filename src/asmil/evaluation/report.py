"""Reports on disk: a page for people, tables for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from asmil.errors import AsmilError
from asmil.evaluation.caveats import caveats_of
from asmil.evaluation.page import render_page
from asmil.evaluation.summary import Evaluation
from asmil.evaluation.tables import markdown_report, metrics_frame
from asmil.files import write_json, write_text


def write_report(evaluations: Sequence[Evaluation], folder: Path | str) -> Path:
    """Write `report.html`, `report.md`, `metrics.csv` and `metrics.json`; return the path of the page."""
    if not evaluations:
        raise AsmilError("there is nothing to report: give at least one evaluated run")
    folder = Path(folder)
    write_json(folder / "metrics.json", [evaluation.to_dict() for evaluation in evaluations])
    write_text(folder / "metrics.csv", metrics_frame(evaluations).to_csv(index=False))
    write_text(folder / "report.md", markdown_report(evaluations, caveats_of(evaluations)))
    return _write_page(evaluations, folder / "report.html")


def write_run_report(evaluation: Evaluation) -> Path:
    """Write `report.html` and `evaluation.json` into the run's own folder; return the path of the page.

    Numbers of the validation part go to `report-val.html` and `evaluation-val.json`, those by patient likewise to
    `report-patient.html`, beside those of the test part. Thresholds are kept in `operating_point.json`.
    """
    folder = evaluation.run.path
    suffix = "" if evaluation.role == "test" else f"-{evaluation.role}"
    suffix += "" if evaluation.unit == "slide" else f"-{evaluation.unit}"
    if evaluation.operating is not None and not suffix:
        evaluation.operating.point.save(folder)
    write_json(folder / f"evaluation{suffix}.json", evaluation.to_dict())
    return _write_page([evaluation], folder / f"report{suffix}.html")


def _write_page(evaluations: Sequence[Evaluation], page: Path) -> Path:
    write_text(page, render_page(evaluations))
    return page
