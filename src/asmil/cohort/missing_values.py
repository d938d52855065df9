"""Words that mean a missing value, so that they do not silently become a class, patient or site."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from asmil.cohort.problems import Problem
from asmil.columns import Columns
from asmil.names import folded
from asmil.tasks.base import TaskKind

MISSING = frozenset(
    {
        *("na", "n/a", "n.a.", "n.a", "nan", "null", "nil", "<na>", "nat", "missing", "not available", "not reported"),
        *("[not available]", "[not applicable]", "[not evaluated]", "[unknown]", "[discrepancy]", "[completed]"),
        *("-", "--", "---", "'--", "'-", ".", "..", "?", "??", "#n/a", "#na", "#null!", "#value!", "#ref!", "#name?"),
    }
)
"""Words that always mean a missing value in pandas, R, spreadsheets, TCGA ('[Not Available]') and the GDC (`'--`)."""
DOUBTFUL = frozenset({"unknown", "none", "not applicable", "undetermined", "indeterminate", "unclear", "unspecified"})
"""Words that may be a class or a missing value: asmil warns, but trains."""
OUTCOMES = ("label", "time", "event")
OPTIONAL = ("site", "split", "fold", "mpp", "features", "image")
"""Columns in which a missing value is treated as an empty cell."""


def is_missing(cell: str) -> bool:
    """Whether a cell contains a word that always means a missing value.

    >>> [is_missing(cell) for cell in ("N/A", "[Not Available]", "-", "-1", "unknown")]
    [True, True, True, False, False]
    """
    return folded(cell) in MISSING


def without_missing(table: Columns) -> tuple[Columns, list[str]]:
    """The table with missing values of optional columns replaced by empty cells, and a note for each such column."""
    cells, notes = dict(table.cells), []
    for column in OPTIONAL:
        words = Counter(cell for cell in cells.get(column, []) if is_missing(cell))
        if words:
            cells[column] = ["" if cell in words else cell for cell in cells[column]]
            shown = ", ".join(repr(word) for word in words)
            notes.append(f"column '{column}': {shown} in {words.total()} rows is treated as an empty cell")
    return replace(table, cells=cells), notes


def missing_problems(table: Columns, kind: TaskKind | None) -> list[Problem]:
    """Problems of outcomes and patients that mean a missing value; doubtful words are warnings."""
    problems = []
    for column in ("patient", *(OUTCOMES if kind is not None else ())):
        if (column == "label" and kind == "survival") or (column in ("time", "event") and kind != "survival"):
            continue
        for slide, cell in zip(table.cells["slide"], table.cells.get(column, []), strict=False):
            if is_missing(cell):
                what = f"the {column} '{cell}' means a missing value"
                problems.append(Problem("error", str(table.path), what, _todo(column), slide))
    if kind == "classification":
        counts = Counter(cell for cell in table.cells.get("label", []) if folded(cell) in DOUBTFUL)
        for word, count in counts.items():
            what = f"'{word}' is a class with {count} slides"
            todo = "leave these rows out if it means a missing label"
            problems.append(Problem("warning", str(table.path), what, todo))
    return problems


def _todo(column: str) -> str:
    if column == "patient":
        return "enter the patient, or leave the cell empty if the patient has no other slide"
    todo = "leave these rows out (`asmil import-manifest --drop-missing`)"
    return f"{todo}, or rename the class if it is one" if column == "label" else todo
