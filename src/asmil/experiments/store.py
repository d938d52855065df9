"""The files of a sweep: the numbers or the error of every job, and the table of all.

A worker writes `measures.json` into its run folder when it is done, so that a killed sweep loses nothing; a failed
job leaves `failure.json` instead and is tried again by the next command. The table is made of both,
and `summary_table` shortens it: mean and spread over the trainings of each cohort, variant and point.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel

from asmil.cohort.tile_truth import TRUTH_FILE
from asmil.errors import AsmilError
from asmil.experiments.plan import RUN_FOLDER, TrainingJob, format_value
from asmil.files import replacing, write_json, write_text
from asmil.reporting import Cell, Table, jsonable
from asmil.reporting.formats import format_count, format_number
from asmil.runs.layout import PREDICTIONS_FILE
from asmil.settings.documents import read_json
from asmil.settings.made_from import MadeFrom, Record, file_content

RESULT_FILE, FAILURE_FILE, TABLE_FILE = "measures.json", "failure.json", "results.csv"
FIRST_COLUMNS = ("cohort", "variant", "method", "preset", "fold", "seed", "status", "error", "run")
SHOWN, MOST_NAMES = 3, 2
"""Columns of numbers shown in a terminal; one less if there are more than two columns of names."""
CHOOSING = ("val_auc", "val_c_index", "val_f1")
"""Columns by which rows are ranked."""
NUMBERS_FIRST = ("test_auc", "test_f1", "test_c_index", "test_accuracy", "tile_auc", "jsd_late", "effective_share")


class _Result(BaseModel):
    measures: list[str]
    rows: list[dict[str, Any]]
    made_from: Record | None = None


class _Failure(BaseModel):
    rows: list[dict[str, Any]]
    error: str
    attempts: int


def is_done(job: TrainingJob) -> bool:
    """Whether the job has all of its measures."""
    path = job.folder / RESULT_FILE
    if not path.is_file():
        return False
    try:
        return set(job.measures) <= set(_read_result(path).measures)
    except AsmilError:
        return False  # a damaged file: measured again


def measured_from(job: TrainingJob) -> MadeFrom:
    """The files that the numbers of a finished job are computed from."""
    contents = {"predictions": file_content(job.folder / PREDICTIONS_FILE)}
    if {"tiles", "froc"} & set(job.measures) and (truth := job.manifest.parent / TRUTH_FILE).is_file():
        contents["tile truth"] = file_content(truth)
    return MadeFrom(contents=contents)


def measured_record(job: TrainingJob) -> Record | None:
    """What the numbers of a finished job were computed from; None if an earlier version did not record it."""
    return _read_result(job.folder / RESULT_FILE).made_from


def write_result(job: TrainingJob, rows: list[dict[str, Any]]) -> None:
    """Store the numbers of a job, and remove an earlier failure."""
    made_from = measured_from(job).record().model_dump()
    write_json(
        job.folder / RESULT_FILE, {"measures": list(job.measures), "rows": jsonable(rows), "made_from": made_from}
    )
    (job.folder / FAILURE_FILE).unlink(missing_ok=True)


def write_failure(job: TrainingJob, error: str) -> None:
    """Record why a job has no numbers, and how often it was tried."""
    path = job.folder / FAILURE_FILE
    attempts = 1
    if path.is_file():
        try:
            attempts += _read_failure(path).attempts
        except AsmilError:
            attempts = 1
    rows = [{**job.trial.columns(), "fold": None, "seed": seed} for seed in job.seeds]
    write_json(path, {"rows": jsonable(rows), "error": error, "attempts": attempts})


def forget_result(job: TrainingJob) -> None:
    """Remove the numbers of a job that is done again, so that no table shows them any more."""
    (job.folder / RESULT_FILE).unlink(missing_ok=True)
    (job.folder / FAILURE_FILE).unlink(missing_ok=True)


def read_rows(job: TrainingJob) -> list[dict[str, Any]]:
    """The rows of a finished job."""
    return _read_result(job.folder / RESULT_FILE).rows


def results_table(out: Path) -> pd.DataFrame:
    """All rows of a sweep folder, finished and failed, in a fixed order of columns."""
    rows = []
    for folder in sorted((out / RUN_FOLDER).glob("*/*")):
        run = str(folder.relative_to(out))
        if (folder / RESULT_FILE).is_file():
            try:
                result = _read_result(folder / RESULT_FILE)
            except AsmilError:
                continue
            rows += [{**row, "status": "done", "error": None, "run": run} for row in result.rows]
        elif (folder / FAILURE_FILE).is_file():
            failure = _read_failure(folder / FAILURE_FILE)
            rows += [{**row, "status": "failed", "error": failure.error, "run": run} for row in failure.rows]
    table = pd.DataFrame(rows)
    first = [name for name in FIRST_COLUMNS if name in table]
    varied = sorted(str(name) for name in table if str(name).startswith("set."))
    return table[[*first, *varied, *(name for name in table if name not in (*first, *varied))]]


def write_table(out: Path) -> Path:
    """Write `results.csv`, whole or not at all."""
    path = out / TABLE_FILE
    write_text(path, results_table(out).to_csv(index=False))
    return path


def write_parquet(out: Path) -> Path:
    """Write `results.parquet`, whole or not at all."""
    path = out / "results.parquet"
    table = results_table(out)
    mixed = [name for name in table if table[name].dtype == object]
    with replacing(path) as partial:
        # a column of Parquet has one type; a varied setting may have words and numbers
        table.astype(dict.fromkeys(mixed, "string")).to_parquet(partial, index=False)
    return path


def _read_result(path: Path) -> _Result:
    result = read_json(path, _Result, "remove it, and the run is measured again")
    for row in result.rows:
        if "dice" in row:  # what `tile_dice` was called up to version 0.5
            row["tile_dice"] = row.pop("dice")
    return result


def _read_failure(path: Path) -> _Failure:
    return read_json(path, _Failure, "remove it")


def summary_table(results: pd.DataFrame) -> Table:
    """One row for each variant, point and cohort; mean ± standard deviation over folds and seeds."""
    done = results[results["status"] == "done"] if len(results) else results
    by = summary_columns(results)
    numbers = number_columns(done)[: SHOWN - (len(by) > MOST_NAMES)]
    rows = []
    if len(done):
        for key, part in done.groupby(by, dropna=False, sort=False):
            names: list[Cell | str] = [format_value(value) for value in key]
            rows.append([*names, *(_cell(part[name]) for name in numbers), str(len(part))])
    columns = [*short_names(by), *(name.removeprefix("test_") for name in numbers)]
    return Table([*columns, "trainings"], rows, "results", in_terminal=True)


def summary_columns(results: pd.DataFrame) -> list[str]:
    """The columns that identify a row of a summary: variant, varied settings, and the cohort if there are several."""
    several = "cohort" in results and results["cohort"].nunique() > 1
    return ["variant", *varied_columns(results), *(["cohort"] if several else [])]


def short_names(columns: Sequence[str]) -> list[str]:
    """Names of settings without their section, unless two would be the same."""
    names = [name.removeprefix("set.") for name in columns]
    last = [name.rsplit(".", 1)[-1] for name in names]
    return [short if last.count(short) == 1 else name for name, short in zip(names, last, strict=True)]


def summary_sentence(results: pd.DataFrame) -> str:
    """How many trainings have results, and which row is best on validation slides; test slides choose nothing."""
    if results.empty:
        return "No training has finished yet."
    done = results[results["status"] == "done"]
    failed = int((results["status"] == "failed").sum())
    finished = f"{format_count(len(done), 'training')} finished{f', {failed} failed' if failed else ''}."
    metric = next((name for name in CHOOSING if name in done and done[name].notna().any()), None)
    by = ["variant", *varied_columns(results)]
    if metric is None or len(means := done.groupby(by, dropna=False)[metric].mean().dropna()) < 2:
        return finished
    best = means.idxmax()
    values = dict(zip(short_names(by), best if isinstance(best, tuple) else (best,), strict=True))
    named = ", ".join(
        str(value) if name == "variant" else f"{name} {format_value(value)}" for name, value in values.items()
    )
    return f"{finished} Highest mean {metric}: {named} ({format_number(float(means.max()))})."


def number_columns(results: pd.DataFrame) -> list[str]:
    """The columns of measured numbers that any training has, the usual ones first."""
    names = [str(name) for name in results.select_dtypes("number") if name not in ("fold", "seed")]
    defined = [name for name in names if results[name].notna().any() and not name.startswith("set.")]
    return [*(name for name in NUMBERS_FIRST if name in defined), *(n for n in defined if n not in NUMBERS_FIRST)]


def varied_columns(results: pd.DataFrame) -> list[str]:
    """The columns of settings that a search varied."""
    return sorted(str(name) for name in results if str(name).startswith("set."))


def _cell(values: pd.Series[float]) -> Cell:
    known = values.dropna()
    if known.empty:
        return Cell("–")
    spread = f" ± {format_number(float(known.std()))}" if len(known) > 1 else ""
    return Cell(f"{format_number(float(known.mean()))}{spread}")
