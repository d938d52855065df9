"""Refusing names that leave their folder, change a terminal, or are one name in two spellings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from asmil.cohort.problems import Problem
from asmil.cohort.table import label_names, number
from asmil.names import folded, lookalikes, name_problem, spelled, text_problem
from asmil.tasks.base import TaskKind

NAMED = {"slide": name_problem, "patient": name_problem, "label": text_problem, "site": text_problem}
"""The columns whose cells are shown or become file names, and what each may not be."""


def naming_problems(path: Path, columns: Mapping[str, list[str]], kind: TaskKind | None) -> list[Problem]:
    """Names that cannot be used, and spellings that would make two slides, patients, classes or sites of one."""
    problems = []
    for column, reason_of in NAMED.items():
        # values are numbers, of which 1e5 and 1E5 are the same
        if column == "label" and kind in (None, "survival", "regression"):
            continue
        names = {cell for cell in columns.get(column, []) if cell}
        if column == "label" and kind == "multilabel":
            names = {name for cell in names for name in label_names(cell)}
        problems += [
            Problem("error", str(path), f"the {column} '{name}' {reason}", "rename it")
            for name in sorted(names)
            if (reason := reason_of(name))
        ]
        for spellings in lookalikes(sorted(names), _class_key if column == "label" else folded):
            what = f"column '{column}' spells one name in {len(spellings)} ways: {spelled(spellings)}"
            problems.append(Problem("error", str(path), what, "write it in one way, or rename what differs"))
    return problems


def _class_key(name: str) -> str:
    """What spellings of one class share: `small-cell` and `Small cell`, `1` and `1.0`, but not `HER2+` and `HER2-`.

    >>> _class_key("Small-Cell") == _class_key("small cell"), _class_key("1.0") == _class_key("1")
    (True, True)
    """
    value = number(name)
    return f"{value:g}" if value is not None else re.sub(r"(?<=\w)[-_\s]+(?=\w)", " ", folded(name))
