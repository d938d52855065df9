"""Write the files of a report: the page, and files for programs and papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asmil.files import remove_abandoned, replacing, write_json, write_text
from asmil.reporting.document import Document, Figure, Folded, Table
from asmil.reporting.formats import format_count
from asmil.reporting.page import html_document
from asmil.reporting.text import csv_text, latex_document, markdown_document


def write_document(
    document: Document,
    page: Path,
    data: Any = None,
    tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    latex: Sequence[Table] = (),
    markdown: bool = True,
) -> Path:
    """Write the page and, next to it, its Markdown version, `data` as JSON and `latex` tables; return the page's path.

    tables: rows of each CSV file, by file name without its extension
    """
    remove_abandoned(page.parent, below=False)
    write_text(page, html_document(document))
    if data is not None:
        write_json(page.with_suffix(".json"), data)
    if markdown:
        write_text(page.with_suffix(".md"), markdown_document(document))
    if latex:
        write_text(page.with_suffix(".tex"), latex_document(document, latex))
    for name, rows in (tables or {}).items():
        write_text(page.parent / f"{name}.csv", csv_text(rows))
    return page


def write_figures(figures: Mapping[str, Figure], folder: Path) -> None:
    """Write figures as SVG or PNG files, by file name; figures without content are skipped."""
    for name, figure in figures.items():
        if isinstance(figure.content, str):
            write_text(folder / f"{name}.svg", figure.content)
        elif figure.content is not None:
            with replacing(folder / f"{name}.png") as partial:
                partial.write_bytes(figure.content)


def folded_table(title: str, table: Table, most: int, file: str) -> Folded:
    """The first rows of a table, folded away, with a reference to the file that contains all rows."""
    hidden = len(table.rows) - most
    shown = Table(table.columns, table.rows[:most], caption=table.caption)
    more = [f"{format_count(hidden, 'more row')}: see {file}."] if hidden > 0 else []
    return Folded(f"{title} ({len(table.rows)})", [shown, *more])
