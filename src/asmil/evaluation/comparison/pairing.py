"""What is compared: checking the request, opening the runs, and bringing their predictions to the same rows.

Predictions are paired by slide and fold, never by order. Runs of other tasks, slides, folds, patients or targets are
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.comparison.paired_predictions import ComparedRun, PairedPredictions, Rows, pair_predictions
from asmil.evaluation.run import Run, read_run
from asmil.evaluation.run_evaluation import Role, refuse_request, rows_of
from asmil.tasks.prediction_format import PredictionFormat

KEYS = ["fold", "slide"]


def refuse_comparison(
    runs: Sequence[Path | str], role: str, resamples: int, reference: Path | str | None, all_pairs: bool, unit: str
) -> None:
    """Refuse a request that cannot be meant, before anything is read."""
    refuse_request(role, resamples, unit)
    if len(runs) < 2:
        raise AsmilError("a comparison needs two runs or more; `asmil evaluate` evaluates one")
    if reference is not None and all_pairs:
        raise AsmilError("all pairs have no reference; give either a reference or all pairs")
    known = [Path(run).resolve() for run in runs]
    twice = next((run for place, run in enumerate(runs) if known[place] in known[:place]), None)
    if twice is not None:
        raise AsmilError(f"{twice} is given twice; name every run once")
    if reference is not None and Path(reference).resolve() not in known:
        hint = did_you_mean(str(reference), map(str, runs))
        raise AsmilError(f"the reference {reference} is not among the runs: {hint}")


def open_runs(runs: Sequence[Path | str], reference: Path | str | None) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and a sentence for each that cannot; the reference must be among the former."""
    opened, problems = [], []
    for path in runs:
        try:
            opened.append(read_run(path))
        except AsmilError as error:
            if reference is not None and Path(reference).resolve() == Path(path).resolve():
                raise
            problems.append(str(error))
    if len(opened) < 2:
        left = f"; only {opened[0].path} is left, and a comparison needs two runs" if opened else ""
        raise AsmilError("; ".join(problems) + left)
    return opened, problems


def names_of(runs: Sequence[Run]) -> list[str]:
    """The folders' names, or their paths where two have the same name."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def pairs_of(
    runs: Sequence[Run], names: Sequence[str], reference: Path | str | None, all_pairs: bool
) -> list[tuple[str, str]]:
    """Pairs (run, reference): every run but the reference against it, or every run against every earlier one."""
    if all_pairs:
        return [(run, earlier) for place, earlier in enumerate(names) for run in names[place + 1 :]]
    place = 0
    if reference is not None:
        place = [run.path.resolve() for run in runs].index(Path(reference).resolve())
    return [(run, names[place]) for run in names if run != names[place]]


def pair_runs(runs: Sequence[Run], names: Sequence[str], role: Role, unit: UnitKind) -> PairedPredictions:
    """The rows that all runs share and the predictions of each; AsmilError if they share none."""
    tables = [_table(run, role, unit) for run in runs]
    _refuse_other_tasks(runs, names)
    rows, keys = _rows(runs[0], tables[0])
    compared = []
    for run, name, table in zip(runs, names, tables, strict=True):
        _refuse_other_slides(tables[0], table, names[0], name)
        _refuse_other_truth(tables[0], table, runs[0].format.truth_columns, (names[0], name))
        compared.append(_compared_run(run, name, table, keys, rows.task))
    return pair_predictions(rows, compared)


def _refuse_other_tasks(runs: Sequence[Run], names: Sequence[str]) -> None:
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


def _refuse_other_slides(first: pd.DataFrame, other: pd.DataFrame, first_name: str, name: str) -> None:
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


def _refuse_other_truth(
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


def _table(run: Run, role: Role, unit: UnitKind) -> pd.DataFrame:
    table = rows_of(run, role, unit)
    table = table.assign(slide=table["slide"].astype(str), patient=table["patient"].astype(str))
    return table.sort_values(["seed", *KEYS], ignore_index=True)


def _rows(run: Run, table: pd.DataFrame) -> tuple[Rows, pd.MultiIndex]:
    first = table.drop_duplicates(KEYS).sort_values(KEYS, ignore_index=True)
    rows = Rows(
        task=run.format,
        slides=first["slide"].to_numpy(dtype=object),
        patients=first["patient"].to_numpy(dtype=object),
        folds=first["fold"].to_numpy(dtype=np.intp),
        truth=run.format.truth(first),
    )
    return rows, pd.MultiIndex.from_frame(first[KEYS])


def _compared_run(run: Run, name: str, table: pd.DataFrame, keys: pd.MultiIndex, task: PredictionFormat) -> ComparedRun:
    columns = list(task.prediction_columns)
    seeds, predictions = [], []
    for seed, part in table.groupby("seed", sort=True):
        aligned = part.set_index(KEYS)[columns].reindex(keys)
        lacking = np.flatnonzero(aligned.isna().any(axis=1))
        if len(lacking):
            fold, slide = keys[lacking[0]]
            raise AsmilError(
                f"{name}: seed {seed} has no prediction of slide {slide} in fold {fold}, which another seed has; "
                "resume the run with the same `asmil train` command"
            )
        seeds.append(int(str(seed)))
        predictions.append(aligned.to_numpy(dtype=np.float64))
    return ComparedRun(run, name, tuple(seeds), np.stack(predictions))
