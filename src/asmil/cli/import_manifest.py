"""`asmil import-manifest`: the tables of another tool as a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.options import Columns, Force, argument, call, option, out_option


def import_manifest(
    table: Annotated[Path, argument("A table of slides: CSV, Excel or Parquet.")],
    out: Annotated[Path, out_option("The manifest to write.")] = Path("cohort.csv"),
    columns: Columns = None,
    patients: Annotated[
        Path | None, option("A table of patients with their outcomes (STAMP's clini table, GDC's clinical).")
    ] = None,
    sheet: Annotated[str | None, option("The sheet of an Excel file with several.", metavar="NAME")] = None,
    patients_sheet: Annotated[
        str | None, option("The sheet of the table of patients, if it has several.", metavar="NAME")
    ] = None,
    drop_missing: Annotated[bool, option("Leave out slides without an outcome.", "--drop-missing")] = False,
    force: Force = False,
) -> None:
    """Write a manifest from the tables of CLAM, STAMP, TCGA, MIL_BASELINE or a spreadsheet.

    Prints which columns were read as what; all others are kept. A table of patients is joined by the column `patient`.

    Example: asmil import-manifest slide.csv --patients clini.xlsx --columns label=isMSIH --out cohort.csv
    """
    given = locals()
    from asmil.api import cohorts
    from asmil.cohort.problems import listed
    from asmil.cohort.table import label_names
    from asmil.errors import printable
    from asmil.tables.columns import LABELS

    manifest = call(cohorts.import_manifest, given)
    for note in manifest.notes:
        typer.echo(printable(note))
    if manifest.dropped:
        typer.echo(
            printable(f"left out, since the outcome is missing: {len(manifest.dropped)} ({listed(manifest.dropped)})")
        )
    if manifest.others:
        typer.echo(printable(f"other columns, kept as they are: {listed(manifest.others)}"))
    mapping = columns or ""
    names = [label_names(row["label"]) if LABELS in mapping else {row["label"]} - {""} for row in manifest.rows]
    classes = sorted(set[str]().union(*names))
    shown = f", {'labels' if LABELS in mapping else 'classes'} {listed(classes)}" if 1 < len(classes) <= 20 else ""
    count = len({row["patient"] or row["slide"] for row in manifest.rows})
    typer.echo(printable(f"{len(manifest.rows)} slides of {count} patients{shown}: {out}"))
    survival = not classes and any(row["event"] for row in manifest.rows)
    task = " --task multilabel" if LABELS in mapping else " --task survival" if survival else ""
    typer.echo(f"next: asmil check {out} --features FOLDER{task}")
