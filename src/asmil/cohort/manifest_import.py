"""Convert tables of other tools to a manifest: map columns, and join a table of patients."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asmil.cohort.problems import Problem, fail, listed, raise_errors
from asmil.cohort.table import is_missing, without_missing
from asmil.columns import COLUMNS, TCGA_BARCODE, ColumnMapping, Columns, has_column, understand_columns
from asmil.errors import AsmilError, did_you_mean
from asmil.files import replacing
from asmil.text_table import TextTable, read_text_table

OF_PATIENTS = ("label", "time", "event", "site", "split", "fold")
"""Columns of a table of patients that apply to all slides of a patient."""
OUTCOMES = ("label", "time", "event")


@dataclass(frozen=True)
class ImportedManifest:
    """A manifest with asmil's columns.

    dropped: slides that were left out because their outcome is missing
    unused: columns of the tables that were not used
    """

    rows: list[dict[str, str]]
    notes: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The columns of the manifest."""
        return [name for name in COLUMNS if any(row.get(name) for row in self.rows)]

    def write(self, path: Path) -> None:
        """Write the manifest as CSV, atomically."""
        with replacing(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore", restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)


def import_manifest(
    slides: Path, patients: Path | None = None, columns: ColumnMapping | None = None, drop_missing: bool = False
) -> ImportedManifest:
    """Read a table of slides and, if the outcomes are in another table, a table of patients.

    columns: which columns to read, by asmil's names, from whichever table has them
    drop_missing: leave out slides without an outcome, or whose patient is not in the table of patients; otherwise they
        are an error
    """
    tables = [(path, read_text_table(path)) for path in (slides, patients) if path is not None]
    mappings = _shared_out(tables, columns or {})
    understood = [
        without_missing(understand_columns(path, table, own))
        for (path, table), own in zip(tables, mappings, strict=True)
    ]
    table = understood[0][0]
    if "slide" not in table.cells:
        names = [name for name in table.cells if name != "patient"]
        fail(slides, "there is no slide column", f"choose it with --columns slide=COLUMN: {listed(names)}")
    notes = [f"{one.path}: {note}" for one, filled in understood for note in (*one.understood, *filled)]
    rows = [_absolute(row, slides.parent) for row in table.rows]
    unused = [name for one, _ in understood for name in one.cells if name not in COLUMNS]
    missing: list[Problem] = []
    if patients is not None:
        missing += _join(rows, slides, understood[1][0])
        if not any(row.get(name) for row in rows for name in OUTCOMES):
            what = "neither table has an outcome column (label, or time and event)"
            fail(patients, what, f"choose it with --columns label=COLUMN: {listed(unused)}")
    missing += _without_outcome(rows, slides)
    if not drop_missing:
        raise_errors(missing)
    dropped = {problem.slide for problem in missing}
    kept = [row for row in rows if row["slide"] not in dropped]
    if not kept:
        fail(slides, "no slide has an outcome", "choose the column with --columns label=COLUMN")
    return ImportedManifest(
        kept, tuple(notes), tuple(row["slide"] for row in rows if row["slide"] in dropped), tuple(unused)
    )


def _shared_out(tables: list[tuple[Path, TextTable]], columns: ColumnMapping) -> list[dict[str, str]]:
    """The part of the mapping that applies to each table; a column that no table has is an error."""
    shares: list[dict[str, str]] = [{} for _ in tables]
    for name, column in columns.items():
        holders = [n for n, (_, table) in enumerate(tables) if has_column(table, column)]
        if column == TCGA_BARCODE:
            holders = [0]
        if not holders:
            known = [given.strip() for _, table in tables for given in table.names]
            where = " and ".join(str(path) for path, _ in tables)
            raise AsmilError(
                f"{where}: there is no column '{column}' (--columns {name}={column}); {did_you_mean(column, known)}"
            )
        for n in holders:
            shares[n][name] = column
    return shares


def _join(rows: list[dict[str, str]], slides: Path, patients: Columns) -> list[Problem]:
    """Add the patient's data to every slide; return problems for slides whose patient is unknown."""
    if "patient" not in patients.cells:
        fail(patients.path, "there is no patient column", "choose it with --columns patient=COLUMN")
    if not any(row.get("patient") for row in rows):
        fail(
            slides,
            "there is no column with the patients of the slides",
            f"choose it with --columns patient=COLUMN, or --columns patient={TCGA_BARCODE} for slides of TCGA",
        )
    known = _by_patient(patients)
    problems = []
    for row in rows:
        found = known.get(row.get("patient", ""))
        if found is None:
            what = f"the patient '{row.get('patient', '')}' is not in {patients.path}"
            problems.append(
                Problem("error", str(slides), what, "add the patient, or give --drop-missing", row["slide"])
            )
            continue
        for name, value in found.items():
            row[name] = row.get(name) or value
    if len(problems) == len(rows):
        mine, theirs = rows[0].get("patient", ""), next(iter(known), "")
        what = f"no patient is in both tables, e.g. '{mine}' here and '{theirs}' in {patients.path}"
        fail(slides, what, "choose the column with matching names with --columns patient=COLUMN")
    return problems


def _by_patient(table: Columns) -> dict[str, Mapping[str, str]]:
    """The row of each patient; if a patient has two rows (two diagnoses), their outcomes must agree."""
    found: dict[str, Mapping[str, str]] = {}
    for row in table.rows:
        own = {name: row[name] for name in OF_PATIENTS if name in row}
        other = found.setdefault(row["patient"], own)
        differing = next((name for name in own if own[name] != other[name]), None)
        if differing is not None:
            values = f"'{other[differing]}', '{own[differing]}'"
            what = f"patient '{row['patient']}' has two rows that differ in {differing} ({values})"
            fail(table.path, what, "keep one row per patient")
    return found


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
                problems.append(
                    Problem("error", str(slides), what, "give --drop-missing to leave it out", row["slide"])
                )
    return problems


def _absolute(row: Mapping[str, str], folder: Path) -> dict[str, str]:
    """A row with absolute paths, which are valid wherever the manifest is written."""
    paths = {
        name: str((folder / row[name]).absolute())
        for name in ("features", "image")
        if row.get(name) and not Path(row[name]).is_absolute()
    }
    return {**row, **paths}
