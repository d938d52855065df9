"""Read a manifest as a table of text, and check its columns and cells."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from asmil.cohort.problems import Problem, listed
from asmil.errors import did_you_mean
from asmil.tables.columns import COLUMNS, PARTS, ColumnMapping, Columns, understand_columns
from asmil.tables.names import folded
from asmil.tables.text_table import read_text_table
from asmil.tasks.base import TaskKind

OUTCOME_COLUMNS: dict[TaskKind, tuple[str, ...]] = {
    "classification": ("label",),
    "survival": ("time", "event"),
    "regression": ("label",),
    "multilabel": ("label",),
}
"""The outcome columns of the manifest for each task."""
EVENTS = {"1": True, "0": False, "1.0": True, "0.0": False, "true": True, "false": False}
"""Values of the event column; pandas writes integers with decimals if some are missing."""
LABEL_SEPARATOR, NO_LABEL, UNKNOWN_LABEL = ";", "none", "=?"
"""In a multi-label manifest: `a;c` for two labels, `none` for none, `a;b=?` if b is unknown."""
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


def read_table(path: Path, mapping: ColumnMapping | None = None) -> Columns:
    """The cells of a manifest as text, by column; mapping: the columns chosen by the user."""
    return understand_columns(path, read_text_table(path), mapping)


def column_problems(path: Path, columns: list[str], required: list[str]) -> list[Problem]:
    """Problems of missing required columns, and of columns that look like a misspelled known one."""
    others = [column for column in columns if column not in COLUMNS]
    problems = []
    explained = set()
    for name in required:
        if name in columns:
            continue
        near = get_close_matches(name, [column.lower() for column in columns if column not in COLUMNS], n=1)
        nearest = next((column for column in columns if [column.lower()] == near), None)
        explained.add(nearest)
        if nearest:
            todo = f"give --columns {name}={nearest}"
        elif name == "label" and {"time", "event"} <= set(columns):
            todo = "the table has times and events: use --task survival, or add labels"
        elif name == "slide" and "patient" in columns:
            todo = (
                f"a table of patients is joined to one of slides: asmil import-manifest SLIDES --patients {path.name}"
            )
        elif others:
            todo = f"choose one of the table's columns with --columns {name}=COLUMN: {listed(others)}"
        else:
            todo = f"add it; the table has {listed(columns)}"
            if "patient" in columns:
                todo = f"join the table of patients: asmil import-manifest {path.name} --patients TABLE"
        problems.append(Problem("error", str(path), f"column '{name}' is missing", todo))
    for column in columns:
        near = get_close_matches(column.lower(), COLUMNS, n=1, cutoff=0.8)
        if column in COLUMNS or column in explained or not near or near[0] in columns:
            continue
        todo = f"give --columns {near[0]}={column}, or rename it to something less like '{near[0]}'"
        problems.append(Problem("error", str(path), f"column '{column}' is unknown", todo))
    return problems


def row_problems(path: Path, rows: list[dict[str, str]], kind: TaskKind | None) -> list[Problem]:
    """Problems of invalid cells: empty or repeated names, outcomes of a task (None: not needed), splits, mpp."""
    problems = []
    lines: dict[str, list[int]] = {}
    for line, row in enumerate(rows, start=2):
        lines.setdefault(row["slide"], []).append(line)

    def report(name: str | None, what: str, todo: str) -> None:
        problems.append(Problem("error", str(path), what, todo, name))

    for name, where in lines.items():
        numbers = ", ".join(map(str, where[:5]))
        if not name:
            report(None, f"column 'slide' is empty in line {numbers}", "give every slide a name")
        elif len(where) > 1:
            report(name, f"the slide is in several lines ({numbers})", "keep one row per slide")
    has_split, has_fold = (any(row.get(key) for row in rows) for key in ("split", "fold"))
    if has_split and has_fold:
        report(None, "columns 'split' and 'fold' are both filled", "keep only one of them")
    for row in rows:
        name, split, fold = row["slide"], row.get("split", ""), row.get("fold", "")
        for what, todo in _outcome_problems(row, kind):
            report(name, what, todo)
        if has_split and split not in PARTS:
            report(name, f"split '{split}' is not train, val or test", did_you_mean(split.lower(), PARTS))
        if has_fold and whole_number(fold) is None:
            report(name, f"fold '{fold}' is not a number", "number the folds 0, 1, 2, ...")
        if row.get("mpp") and positive(row["mpp"]) is None:
            todo = _point(row["mpp"], "give microns per level-0 pixel")
            report(name, f"mpp '{row['mpp']}' is not a positive number", todo)
    folds = sorted({number for row in rows if has_fold and (number := whole_number(row["fold"])) is not None})
    if folds and folds != list(range(max(2, len(folds)))):
        report(None, f"column 'fold' has the values {listed(folds)}", "number two or more folds 0, 1, 2, ...")
    return problems


def _outcome_problems(row: dict[str, str], kind: TaskKind | None) -> list[tuple[str, str]]:
    """The error in the outcome of a row, and what to do."""
    for column in () if kind is None else OUTCOME_COLUMNS[kind]:
        if column in row and not row[column]:
            return [(f"the {column} is empty", "fill in the cell or leave the slide out")]
        if column in row and is_missing(row[column]):
            return []  # reported together with all other missing values
    if kind == "regression" and "label" in row and number(row["label"]) is None:
        return [(f"the label '{row['label']}' is not a number", _point(row["label"], "a regression needs numbers"))]
    if kind != "survival":
        return []
    problems = []
    time = number(row.get("time", "0"))
    if time is None or time < 0:
        todo = _point(row["time"], "give the follow-up time as a number")
        problems.append((f"the time '{row['time']}' is not a non-negative number", todo))
    if row.get("event", "0").lower() not in EVENTS:
        problems.append((f"the event '{row['event']}' is neither 1 nor 0", "write 1 for an event, 0 for censored"))
    return problems


def _point(cell: str, todo: str) -> str:
    return "write decimals with a point" if re.fullmatch(r"-?\d+,\d+", cell) else todo


def label_names(cell: str) -> set[str]:
    """The labels in a cell of a multi-label manifest."""
    names = {name.strip() for name in cell.split(LABEL_SEPARATOR)}
    return {name for name in names if name not in ("", NO_LABEL) and not name.endswith(UNKNOWN_LABEL)}


def unknown_labels(cell: str) -> set[str]:
    """The labels of which a cell of a multi-label manifest states that they are unknown.

    >>> sorted(label_names("a;b=?;c")), unknown_labels("a;b=?;c")
    (['a', 'c'], {'b'})
    """
    names = (name.strip() for name in cell.split(LABEL_SEPARATOR))
    return {name.removesuffix(UNKNOWN_LABEL).strip() for name in names if name.endswith(UNKNOWN_LABEL)}


def whole_number(text: str) -> int | None:
    """The non-negative integer in a cell; None for anything else."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def number(text: str) -> float | None:
    """The finite number in a cell; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    # only Python parses 1_0 as ten
    if "_" in text:
        return None
    return value if math.isfinite(value) else None


def cell_of(value: object) -> str:
    """A value as the text of a cell; numbers are written in one way, so that the levels 1 and 1.0 are the same."""
    text = "" if value is None else str(value).strip()
    as_number = number(text)
    return text if as_number is None else f"{as_number:.15g}"


def positive(text: str) -> float | None:
    """The positive number in a cell; None for anything else."""
    value = number(text)
    return value if value is not None and value > 0 else None


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
