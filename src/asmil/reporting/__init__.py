"""How results are shown: estimates, tables and documents, as HTML, Markdown, LaTeX, CSV, JSON and in the terminal."""

from asmil.reporting.document import (
    Block,
    Cell,
    Document,
    Figure,
    Folded,
    Heading,
    Note,
    Row,
    Section,
    SideBySide,
    Table,
    estimate_cell,
    settings_table,
)
from asmil.reporting.estimate import Estimate, Interval, jsonable
from asmil.reporting.text import (
    csv_text,
    escape_markdown,
    latex_document,
    markdown_document,
    markdown_table,
    print_document,
    terminal_table,
)

__all__ = [
    "Block",
    "Cell",
    "Document",
    "Estimate",
    "Figure",
    "Folded",
    "Heading",
    "Interval",
    "Note",
    "Row",
    "Section",
    "SideBySide",
    "Table",
    "csv_text",
    "escape_markdown",
    "estimate_cell",
    "jsonable",
    "latex_document",
    "markdown_document",
    "markdown_table",
    "print_document",
    "settings_table",
    "terminal_table",
]
