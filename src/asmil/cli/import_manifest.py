"""`asmil import-manifest`: the tables of another tool as a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.options import Columns


def import_manifest(
    table: Annotated[Path, typer.Argument(help="A table of slides: CSV, Excel or Parquet.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The manifest to write.")] = Path("cohort.csv"),
    columns: Columns = None,
    patients: Annotated[
        Path | None, typer.Option(help="A table of patients with their outcomes (STAMP's clini table, GDC's clinical).")
    ] = None,
    sheet: Annotated[str | None, typer.Option(metavar="NAME", help="The sheet of an Excel file with several.")] = None,
    patients_sheet: Annotated[
        str | None, typer.Option(metavar="NAME", help="The sheet of the table of patients, if it has several.")
    ] = None,
    drop_missing: Annotated[bool, typer.Option("--drop-missing", help="Leave out slides without an outcome.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the manifest if it exists.")] = False,
) -> None:
    """Write a manifest from the tables of CLAM, STAMP, TCGA, MIL_BASELINE or a spreadsheet.

    Prints which columns were read as what; all others are kept. A table of patients is joined by the column `patient`.

    Example: asmil import-manifest slide.csv --patients clini.xlsx --columns label=isMSIH --out cohort.csv
    """
    from asmil.cohort import manifest_import
    from asmil.cohort.problems import listed
    from asmil.cohort.table import label_names
    from asmil.errors import AsmilError, printable
    from asmil.tables.columns import LABELS, parse_mapping

    if out.exists() and any(path is not None and path.exists() and out.samefile(path) for path in (table, patients)):
        raise AsmilError(f"--out {out}: this is the table that is read; give another file")
    if out.exists() and not force:
        raise AsmilError(f"{out} exists; give another --out, or --force to replace it")
    found = manifest_import.import_manifest(
        table, patients, parse_mapping(columns), drop_missing, sheet, patients_sheet
    )
    found.write(out)
    for note in found.notes:
        typer.echo(printable(note))
    if found.dropped:
        typer.echo(printable(f"left out, since the outcome is missing: {len(found.dropped)} ({listed(found.dropped)})"))
    if found.others:
        typer.echo(printable(f"other columns, kept as they are: {listed(found.others)}"))
    mapping = parse_mapping(columns)
    names = [label_names(row["label"]) if LABELS in mapping else {row["label"]} - {""} for row in found.rows]
    classes = sorted(set[str]().union(*names))
    shown = f", {'labels' if LABELS in mapping else 'classes'} {listed(classes)}" if 1 < len(classes) <= 20 else ""
    count = len({row["patient"] or row["slide"] for row in found.rows})
    typer.echo(printable(f"{len(found.rows)} slides of {count} patients{shown}: {out}"))
    survival = not classes and any(row["event"] for row in found.rows)
    task = " --task multilabel" if LABELS in mapping else " --task survival" if survival else ""
    typer.echo(f"next: asmil check {out} --features FOLDER{task}")
