"""Refusing runs that cannot be compared: other tasks, slides, folds, patients or targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError
from asmil.evaluation.run import Run


def refuse_other_tasks(runs: Sequence[Run], names: Sequence[str]) -> None:
    """All runs must be of the task and classes of the first."""
    first, kind = runs[0], runs[0].kind
    for run, name in zip(runs[1:], names[1:], strict=True):
        if run.kind != kind:
            raise AsmilError(f"{name} is a run of {run.kind}, {names[0]} one of {kind}; compare runs of one task")
        if set(run.classes) != set(first.classes):
            raise AsmilError(
                f"{name} has the classes {', '.join(run.classes)}, {names[0]} has {', '.join(first.classes)}; "
                "compare runs of the same classes"
            )


def refuse_other_slides(first: pd.DataFrame, other: pd.DataFrame, first_name: str, name: str) -> None:
    """Both tables of predictions must hold the same slides in the same folds."""
    known, found = (
        {str(slide): set(part) for slide, part in table.groupby("slide")["fold"]} for table in (first, other)
    )
    for here, there, has, lacks in ((known, found, first_name, name), (found, known, name, first_name)):
        missing = sorted(set(here) - set(there))
        if missing:
            raise AsmilError(
                f"{lacks} has no prediction of slide {missing[0]} ({len(missing)} such), which {has} has; compare runs "
                "that were evaluated on the same slides"
            )
    for slide, folds in known.items():
        if folds != found[slide]:
            in_first, in_other = (" and ".join(map(str, sorted(numbers))) for numbers in (folds, found[slide]))
            raise AsmilError(
                f"{name} evaluates slide {slide} in fold {in_other}, {first_name} in fold {in_first}; compare runs "
                "with the same splits"
            )


def refuse_other_truth(
    first: pd.DataFrame, other: pd.DataFrame, columns: Sequence[str], names: tuple[str, str]
) -> None:
    """Both tables, which hold the same slides, must name the same patient and target for each."""
    known, found = (table.drop_duplicates("slide").set_index("slide") for table in (first, other))
    for column in ("patient", *columns):
        if column not in found:
            raise AsmilError(f"{names[1]}: its predictions lack the column {column}; train it again")
        here, there = known[column], found[column].reindex(known.index)
        differs = np.flatnonzero(_differ(here, there))
        if len(differs):
            raise AsmilError(
                f"slide {known.index[differs[0]]} has the {column} {there.iloc[differs[0]]} in {names[1]} and "
                f"{here.iloc[differs[0]]} in {names[0]}; compare runs of the same cohort"
            )


def _differ(known: pd.Series[Any], found: pd.Series[Any]) -> npt.NDArray[np.bool_]:
    if pd.api.types.is_numeric_dtype(known) and pd.api.types.is_numeric_dtype(found):
        here, there = (part.to_numpy(dtype=np.float64) for part in (known, found))
        return np.asarray(~np.isclose(here, there, rtol=1e-9, atol=0))
    return np.asarray(known.astype(str).to_numpy() != found.astype(str).to_numpy())
