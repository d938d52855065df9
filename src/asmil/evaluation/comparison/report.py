"""A comparison on disk: a page for people, tables for papers and programs."""

from __future__ import annotations

from pathlib import Path

from asmil.evaluation.comparison.as_json import comparison_to_dict
from asmil.evaluation.comparison.findings import Comparison
from asmil.evaluation.comparison.latex import latex_report
from asmil.evaluation.comparison.page import render_page
from asmil.evaluation.comparison.tables import differences_frame, markdown_report, methods_frame
from asmil.files import write_json, write_text


def write_comparison(found: Comparison, folder: Path | str) -> Path:
    """Write `comparison.{csv,json,md,tex,html}` and `differences.csv`; return the path of the page."""
    folder = Path(folder)
    write_json(folder / "comparison.json", comparison_to_dict(found))
    write_text(folder / "comparison.csv", methods_frame(found).to_csv(index=False))
    write_text(folder / "differences.csv", differences_frame(found).to_csv(index=False))
    write_text(folder / "comparison.md", markdown_report(found))
    write_text(folder / "comparison.tex", latex_report(found))
    write_text(folder / "comparison.html", render_page(found))
    return folder / "comparison.html"
