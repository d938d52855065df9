"""Bringing the predictions of several runs to the same rows: paired by slide and fold, never by order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError
from asmil.evaluation.comparison.measures import Floats, Truth
from asmil.evaluation.comparison.same_cohort import (
    refuse_other_slides,
    refuse_other_tasks,
    refuse_other_truth,
)
from asmil.evaluation.patients import join_patients
from asmil.evaluation.run import Run, columns_of
from asmil.evaluation.run_evaluation import Role

Unit = Literal["slide", "patient"]
KEYS = ["fold", "slide"]


@dataclass(frozen=True)
class Rows:
    """What all runs are judged on: n rows, each a slide (or a patient) in the fold that evaluates it.

    truth: n class indices (classification), n values (regression), n x L labels 0/1 (multilabel) or n x 2 times and
    events (survival)
    """

    kind: str
    classes: tuple[str, ...]
    slides: npt.NDArray[np.object_]
    patients: npt.NDArray[np.object_]
    folds: npt.NDArray[np.intp]
    truth: Truth

    @property
    def folds_overlap(self) -> bool:
        """Whether a slide is evaluated in several folds (repeated splits)."""
        return len(set(self.slides)) < len(self.slides)


@dataclass(frozen=True)
class Entrant:
    """A run on those rows: predictions are S x n x C, one S a seed."""

    run: Run
    name: str
    seeds: tuple[int, ...]
    predictions: Floats


def pair_runs(runs: Sequence[Run], names: Sequence[str], role: Role, unit: Unit) -> tuple[Rows, list[Entrant]]:
    """The rows that all runs share and the predictions of each; AsmilError where they do not share them."""
    tables = [_table(run, role, unit) for run in runs]
    refuse_other_tasks(runs, names)
    rows, keys = _rows(runs[0], tables[0])
    entrants = []
    for run, name, table in zip(runs, names, tables, strict=True):
        refuse_other_slides(tables[0], table, names[0], name)
        refuse_other_truth(tables[0], table, runs[0].truth_columns, (names[0], name))
        entrants.append(_entrant(run, name, table, keys, rows.classes))
    return rows, entrants


def by_slide(rows: Rows, prediction: Floats) -> tuple[Rows, Floats]:
    """One row a slide: predictions n x C of the folds that share a slide are averaged."""
    names, first, place = np.unique(rows.slides.astype(str), return_index=True, return_inverse=True)
    total = np.zeros((len(names), prediction.shape[1]))
    np.add.at(total, place, prediction)
    joined = replace(
        rows,
        slides=rows.slides[first],
        patients=rows.patients[first],
        folds=np.zeros(len(names), dtype=np.intp),
        truth=rows.truth[first],
    )
    return joined, total / np.bincount(place)[:, None]


def _table(run: Run, role: Role, unit: Unit) -> pd.DataFrame:
    table = run.predictions[run.predictions["role"] == role]
    if table.empty:
        others = ", ".join(sorted(set(run.predictions["role"].astype(str)))) or "none at all"
        raise AsmilError(f"{run.path}: there are no {role} predictions, only {others}; give --role of what is there")
    table = table.assign(slide=table["slide"].astype(str), patient=table["patient"].astype(str))
    if unit == "patient":
        table = join_patients(run, table)
    return table.sort_values(["seed", *KEYS], ignore_index=True)


def _rows(run: Run, table: pd.DataFrame) -> tuple[Rows, pd.MultiIndex]:
    first = table.drop_duplicates(KEYS).sort_values(KEYS, ignore_index=True)
    columns = list(run.truth_columns)
    truth: Truth
    if run.kind == "classification":
        truth = run.targets(first)
    else:
        truth = first[columns].to_numpy(dtype=np.float64)
        truth = truth[:, 0] if columns == ["target"] else truth
    rows = Rows(
        kind=run.kind,
        classes=run.classes,
        slides=first["slide"].to_numpy(dtype=object),
        patients=first["patient"].to_numpy(dtype=object),
        folds=first["fold"].to_numpy(dtype=np.intp),
        truth=truth,
    )
    return rows, pd.MultiIndex.from_frame(first[KEYS])


def _entrant(run: Run, name: str, table: pd.DataFrame, keys: pd.MultiIndex, classes: Sequence[str]) -> Entrant:
    columns = list(columns_of(run.kind, tuple(classes))[1])
    seeds, predictions = [], []
    for seed, part in table.groupby("seed", sort=True):
        aligned = part.set_index(KEYS)[columns].reindex(keys)
        lacking = np.flatnonzero(aligned.isna().any(axis=1))
        if len(lacking):
            fold, slide = keys[lacking[0]]
            raise AsmilError(
                f"{name}: seed {seed} has no prediction of slide {slide} in fold {fold}, which another seed has; "
                "finish the run by giving its `asmil train` command again"
            )
        seeds.append(int(str(seed)))
        predictions.append(aligned.to_numpy(dtype=np.float64))
    return Entrant(run, name, tuple(seeds), np.stack(predictions))
