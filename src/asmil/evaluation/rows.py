"""Select and group the predictions of a run for evaluation: by role, slide or patient, training or seed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError
from asmil.runs.run import Run
from asmil.tables.arrays import Floats
from asmil.tasks.base import PredictionFormat, Truth


def rows_of(run: Run, role: str, unit: UnitKind = "slide") -> pd.DataFrame:
    """The predictions with one role; with `unit` patient, the mean prediction of each patient's slides."""
    rows = part_of(run, role, unit)
    if rows.empty:
        others = sorted(set(run.predictions["role"].astype(str)))
        hint = "; `--role val` evaluates the validation set" if role == "test" and "val" in others else ""
        raise AsmilError(
            f"{run.path}: there are no {role} predictions (available: {', '.join(others) or 'none'}){hint}"
        )
    return rows


def part_of(run: Run, role: str, unit: UnitKind = "slide") -> pd.DataFrame:
    """As `rows_of`, but returns an empty table if there are no predictions."""
    rows = run.predictions[run.predictions["role"] == role]
    return _join_patients(run, rows) if unit == "patient" else rows


def different_targets(run: Run, table: pd.DataFrame) -> str | None:
    """The first patient whose slides have different targets, in words; None if there is none."""
    truth = list(run.format.truth_columns)
    for patient, part in table[["patient", *truth]].drop_duplicates().groupby("patient"):
        if len(part) > 1:
            targets = " and ".join(", ".join(map(str, row)) for row in part[truth].itertuples(index=False))
            return f"the slides of patient {patient} have different targets ({targets})"
    return None


def _join_patients(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """One row per patient, fold and seed: the mean prediction of the patient's slides, named after the patient."""
    truth = list(run.format.truth_columns)
    different = different_targets(run, table)
    if different is not None:
        raise AsmilError(f"{run.path}: {different}; evaluate slides instead (--unit slide)")
    kept = dict.fromkeys(run.format.prediction_columns, "mean") | dict.fromkeys(truth, "first")
    joined = table.groupby(["patient", "fold", "seed", "role"], as_index=False, sort=False).agg(kept)
    return joined.assign(slide=joined["patient"])


def trainings_of(rows: pd.DataFrame) -> dict[tuple[int, int], pd.DataFrame]:
    """The rows of every training, by (fold, seed)."""
    groups = rows.groupby(["fold", "seed"], sort=True)
    return {(int(part["fold"].iloc[0]), int(part["seed"].iloc[0])): part for _, part in groups}


def by_slide(task: PredictionFormat, rows: pd.DataFrame) -> tuple[list[str], Truth, Floats]:
    """Slide names, their truth, and their predictions averaged over trainings (n x C)."""
    first = rows.drop_duplicates("slide").sort_values("slide")
    means = rows.groupby("slide", sort=True)[list(task.prediction_columns)].mean()
    return first["slide"].astype(str).tolist(), task.truth(first), means.to_numpy(dtype=np.float64)


def folds_are_disjoint(rows: pd.DataFrame) -> bool:
    """Whether no slide is evaluated in two folds of a seed."""
    return not rows.duplicated(["slide", "seed"]).any()


def replicates_of(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Groups of rows that are evaluated together: all folds of a seed, or each training if folds share slides."""
    if folds_are_disjoint(rows):
        return [part for _, part in rows.groupby("seed", sort=True)]
    return list(trainings_of(rows).values())
