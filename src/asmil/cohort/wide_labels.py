"""Labels of a multi-label table with one column per label: 1 and 0, yes and no, positive and negative, + and -."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from asmil.cohort.problems import Problem
from asmil.cohort.table import DOUBTFUL, LABEL_SEPARATOR, NO_LABEL, UNKNOWN_LABEL, is_missing
from asmil.tables.columns import Columns
from asmil.tables.names import folded

WORDS = {
    **dict.fromkeys(("1", "1.0", "yes", "y", "true", "positive", "pos", "+", "present"), True),
    **dict.fromkeys(("0", "0.0", "no", "n", "false", "negative", "neg", "-", "absent"), False),
}
UNKNOWN = DOUBTFUL | {"equivocal", "not performed", "not tested", "not done", "performed but not available"}
"""Words for unknown values, besides those that always mean a missing value."""


def with_wide_labels(table: Columns) -> tuple[Columns, list[str], list[Problem]]:
    """The table with its columns of labels joined in `label`, how they were read, and the problems of their cells.

    A slide with ER, without PR and with unknown HER2 has the label `ER;HER2=?`.
    """
    names = table.labels
    if not names:
        return table, [], []
    problems = []
    values: dict[str, list[bool | None]] = {}
    counted = []
    for name in names:
        if LABEL_SEPARATOR in name or UNKNOWN_LABEL in name or folded(name) == NO_LABEL:
            what = f"column '{name}' cannot be a label: '{LABEL_SEPARATOR}' separates labels, '{NO_LABEL}' means none"
            problems.append(Problem("error", str(table.path), what, "rename it"))
        cells = table.cells[name]
        values[name] = _values(cells)
        problems += _cell_problems(table, name, values[name])
        counts = Counter(values[name])
        words = sorted({cell for cell, value in zip(cells, values[name], strict=True) if value is None and cell})
        unknown = f", {counts[None]} unknown" + (f": {', '.join(map(repr, words))}" if words else "")
        counted.append(f"'{name}' ({counts[True]} with, {counts[False]} without{unknown * (counts[None] > 0)})")
        if not counts[True] or not counts[False]:
            what = f"label '{name}' is {'positive' if counts[True] else 'negative'} wherever it is known"
            problems.append(Problem("error", str(table.path), what, "leave it out of --columns labels"))
    labels = [_joined(names, row) for row in zip(*values.values(), strict=True)]
    return replace(table, cells={**table.cells, "label": labels}), [f"labels are {', '.join(counted)}"], problems


def is_single_binary(cells: Sequence[str]) -> bool:
    """Whether a column of labels holds only 1 and 0, or other words for yes and no, instead of names of labels."""
    words = {folded(cell) for cell in cells if cell and not is_missing(cell)} - UNKNOWN
    return bool(words) and words <= WORDS.keys()


def _values(cells: Sequence[str]) -> list[bool | None]:
    # a dash is a missing value, unless plus signs show what it means
    words = WORDS if "+" in cells else {word: value for word, value in WORDS.items() if word != "-"}
    return [words.get(folded(cell)) for cell in cells]


def _cell_problems(table: Columns, name: str, values: Sequence[bool | None]) -> list[Problem]:
    slides, cells = table.cells.get("slide", [""] * len(values)), table.cells[name]
    todo = "write 1 or 0, and leave unknown cells empty"
    return [
        Problem("error", str(table.path), f"label '{name}' is '{cell}', neither yes nor no", todo, slide or None)
        for slide, cell, value in zip(slides, cells, values, strict=True)
        if value is None and cell and not is_missing(cell) and folded(cell) not in UNKNOWN
    ]


def _joined(names: Sequence[str], values: Sequence[bool | None]) -> str:
    """The labels of a slide in one cell; empty if none of them is known."""
    if all(value is None for value in values):
        return ""
    known = [name for name, value in zip(names, values, strict=True) if value]
    unknown = [f"{name}{UNKNOWN_LABEL}" for name, value in zip(names, values, strict=True) if value is None]
    return LABEL_SEPARATOR.join([*known, *unknown]) or NO_LABEL
