"""Convert tables of other tools to a manifest: map columns, and join a table of patients."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asmil.cohort.follow_up import with_follow_up
from asmil.cohort.problems import Problem, fail, listed, raise_errors
from asmil.cohort.table import OUTCOMES, is_missing, number, row_problems, without_missing
from asmil.cohort.wide_labels import with_wide_labels
from asmil.errors import AsmilError, did_you_mean
from asmil.files import replacing
from asmil.tables.columns import (
    COLUMNS,
    TCGA_BARCODE,
    ColumnMapping,
    Columns,
    columns_of,
    has_column,
    names_patients,
    understand_columns,
)
from asmil.tables.text_table import TextTable, read_text_table
from asmil.tables.time_units import TimeUnit

OF_PATIENTS = ("label", "time", "event", "site", "split", "fold")
"""Columns of a table of patients that apply to all slides of a patient."""


@dataclass(frozen=True)
class ImportedManifest:
    """A manifest with asmil's columns, and the other columns of the tables as they are.

    others: columns that asmil does not read, such as age and sex
    dropped: slides that were left out because their outcome is missing
    time_unit: of survival times, if it is known; the name of their column states it
    """

    rows: list[dict[str, str]]
    notes: tuple[str, ...]
    others: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    time_unit: TimeUnit | None = None

    @property
    def columns(self) -> list[str]:
        return [*(name for name in COLUMNS if any(row.get(name) for row in self.rows)), *self.others]

    def write(self, path: Path) -> None:
        """Write the manifest as CSV, atomically."""
        with replacing(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore", restval="", lineterminator="\n")
            times = f"time_{self.time_unit}" if self.time_unit else "time"
            writer.writerow({name: times if name == "time" else name for name in self.columns})
            writer.writerows(self.rows)


def import_manifest(
    slides: Path,
    patients: Path | None = None,
    columns: ColumnMapping | None = None,
    drop_missing: bool = False,
    sheet: str | None = None,
    patients_sheet: str | None = None,
) -> ImportedManifest:
    """Read a table of slides and, if the outcomes are in another table, a table of patients.

    columns: which columns to read, by asmil's names, from whichever table has them
    drop_missing: leave out slides without an outcome, or whose patient is not in the table of patients; otherwise they
        are an error
    sheet, patients_sheet: the sheets of Excel files with several
    """
    tables = [(slides, read_text_table(slides, sheet))]
    if patients is not None:
        tables.append((patients, read_text_table(patients, patients_sheet)))
    understood, notes = _understood(tables, columns or {})
    table = understood[0]
    if "slide" not in table.cells:
        names = [name for name in table.cells if name != "patient"]
        fail(slides, "there is no slide column", f"choose it with --columns slide=COLUMN: {listed(names)}")
    rows = [_absolute(row, slides.parent) for row in table.rows]
    named = list(dict.fromkeys(name for table in understood for name in table.cells if name not in COLUMNS))
    others = [name for name in named if not names_patients(name)]
    if doubled := [name for name in named if names_patients(name)]:
        notes.append(f"columns that also name patients are left out: {listed(doubled)}")
    missing: list[Problem] = []
    if patients is not None:
        people, differing = _by_patient(understood[1], others)
        if differing:
            what = "columns that differ between rows of one patient are left out"
            notes.append(f"{patients}: {what}: {listed(differing)}")
            others = [name for name in others if name not in differing or name in table.cells]
        missing += _join(rows, slides, understood[1], people)
        if not any(row.get(name) for row in rows for name in OUTCOMES):
            what = "neither table has an outcome column (label, or time and event)"
            fail(patients, what, f"choose it with --columns label=COLUMN: {listed(others)}")
    missing += _without_outcome(rows, slides)
    if not drop_missing:
        raise_errors(missing)
    dropped = {problem.slide for problem in missing}
    kept = [{**dict.fromkeys(COLUMNS, ""), **row} for row in rows if row["slide"] not in dropped]
    if not kept:
        fail(slides, "no slide has an outcome", "choose the column with --columns label=COLUMN")
    survival = any(row["time"] or row["event"] for row in kept)
    raise_errors([*row_problems(slides, kept, "survival" if survival else None), *_infinite_labels(kept, slides)])
    left_out = tuple(row["slide"] for row in rows if row["slide"] in dropped)
    time_unit = next((table.time_unit for table in understood if "time" in table.cells), None)
    return ImportedManifest(kept, tuple(notes), tuple(others), left_out, time_unit)


def _understood(tables: Sequence[tuple[Path, TextTable]], columns: ColumnMapping) -> tuple[list[Columns], list[str]]:
    """The tables with asmil's columns, and how they were read."""
    understood: list[Columns] = []
    notes = []
    for (path, text), own in zip(tables, _shared_out(tables, columns), strict=True):
        if understood and "patient" not in own:
            own |= _same_patients(understood[0], text)
        read, filled = without_missing(understand_columns(path, text, own))
        read, counted, problems = with_wide_labels(read)
        raise_errors(problems)
        understood.append(read)
        notes += [f"{path}: {note}" for note in (*read.understood, *filled, *counted)]
    has_labels = any(any(table.cells.get("label", [])) for table in understood)
    for index, table in enumerate(understood):
        # beside a label, follow-up is an outcome only if it has its own columns
        if not has_labels or {"time", "event"} <= table.cells.keys():
            understood[index], read_as = with_follow_up(table)
            notes += [f"{table.path}: {note}" for note in read_as]
    return understood, notes


def _same_patients(slides: Columns, patients: TextTable) -> dict[str, str]:
    """Which column of a table of patients has most of the patients of the slides, if several could name them."""
    known = set(slides.cells.get("patient", [])) - {""}
    named = {name: set(cells) for name, cells in zip(patients.names, patients.cells, strict=True)}
    candidates = [name for name in named if names_patients(name)]
    best = max(candidates, key=lambda name: len(known & named[name]), default=None)
    return {"patient": best} if best is not None and len(candidates) > 1 and known & named[best] else {}


def _infinite_labels(rows: Sequence[Mapping[str, str]], slides: Path) -> list[Problem]:
    """Labels that are infinite among labels that are numbers."""
    infinite = {cell for cell in {row["label"] for row in rows} if _is_infinite(cell)}
    if any(row["label"] not in infinite and number(row["label"]) is None for row in rows):
        return []
    todo = "correct the value, or leave the slide out"
    return [
        Problem("error", str(slides), f"the label '{row['label']}' is not a finite number", todo, row["slide"])
        for row in rows
        if row["label"] in infinite
    ]


def _is_infinite(cell: str) -> bool:
    try:
        return math.isinf(float(cell))
    except ValueError:
        return False


def _shared_out(tables: Sequence[tuple[Path, TextTable]], columns: ColumnMapping) -> list[dict[str, str]]:
    """The part of the mapping that applies to each table; a column that no table has is an error."""
    shares: list[dict[str, str]] = [{} for _ in tables]
    for name, column in columns.items():
        wanted = columns_of(name, column)
        holders = [
            n for n, (_, table) in enumerate(tables) if all(has_column(table, name_there) for name_there in wanted)
        ]
        if column == TCGA_BARCODE:
            holders = [0]
        if not holders:
            known = [given.strip() for _, table in tables for given in table.names]
            column = next(
                (name_there for name_there in wanted if not any(has_column(table, name_there) for _, table in tables)),
                column,
            )
            where = " and ".join(str(path) for path, _ in tables)
            raise AsmilError(
                f"{where}: there is no column '{column}' (--columns {name}={column}); {did_you_mean(column, known)}"
            )
        for n in holders:
            shares[n][name] = column
    return shares


def _join(
    rows: list[dict[str, str]], slides: Path, patients: Columns, people: Mapping[str, Mapping[str, str]]
) -> list[Problem]:
    """Add the patient's data to every slide; return problems for slides whose patient is unknown."""
    if not any(row.get("patient") for row in rows):
        todo = f"choose it with --columns patient=COLUMN, or --columns patient={TCGA_BARCODE} for slides of TCGA"
        fail(slides, "there is no column with the patients of the slides", todo)
    problems = []
    for row in rows:
        person = people.get(row.get("patient", ""))
        if person is None:
            what = f"the patient '{row.get('patient', '')}' is not in {patients.path}"
            todo = "add the patient, or give --drop-missing"
            problems.append(Problem("error", str(slides), what, todo, row["slide"]))
        else:
            row |= {name: row.get(name) or value for name, value in person.items()}
    if len(problems) == len(rows):
        mine, theirs = rows[0].get("patient", ""), next(iter(people), "")
        what = f"no patient is in both tables, e.g. '{mine}' here and '{theirs}' in {patients.path}"
        fail(slides, what, "choose the column with matching names with --columns patient=COLUMN")
    return problems


def _by_patient(table: Columns, others: Sequence[str]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The row of each patient, and the other columns in which rows of one patient differ, which are left out.

    If a patient has two rows (two diagnoses), their outcomes must agree.
    """
    if "patient" not in table.cells:
        fail(table.path, "there is no patient column", "choose it with --columns patient=COLUMN")
    rows: dict[str, dict[str, str]] = {}
    differing: dict[str, None] = {}
    for row in table.rows:
        own = {name: row[name] for name in (*OF_PATIENTS, *others) if name in row}
        other = rows.setdefault(row["patient"], own)
        for name in (name for name in own if own[name] != other[name]):
            if name in OF_PATIENTS:
                values = f"'{other[name]}', '{own[name]}'"
                what = f"patient '{row['patient']}' has two rows that differ in {name} ({values})"
                fail(table.path, what, "keep one row per patient")
            differing[name] = None
    for row in rows.values():
        for name in differing.keys() & row.keys():
            del row[name]
    return rows, list(differing)


def _without_outcome(rows: list[dict[str, str]], slides: Path) -> list[Problem]:
    """Problems of slides without an outcome, if other slides have one."""
    problems = []
    for name in OUTCOMES:
        if not any(row.get(name) for row in rows):
            continue
        for row in rows:
            value = row.get(name, "")
            if not value or is_missing(value):
                what = f"the {name} is missing" + (f" ('{value}')" if value else "")
                todo = "give --drop-missing to leave it out"
                problems.append(Problem("error", str(slides), what, todo, row["slide"]))
    return problems


def _absolute(row: Mapping[str, str], folder: Path) -> dict[str, str]:
    """A row with absolute paths, which are valid wherever the manifest is written."""
    paths = {
        name: str((folder / row[name]).absolute())
        for name in ("features", "image")
        if row.get(name) and not Path(row[name]).is_absolute()
    }
    return {**row, **paths}
