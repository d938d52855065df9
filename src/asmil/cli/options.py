"""Options that several verbs have, each with its one help text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from asmil.settings.made_from import DoneBefore

Features = Annotated[
    Path | None,
    typer.Option(help="Where the features are: a folder, a cohort file or a pack. Default: beside the manifest."),
]
TaskName = Annotated[
    Literal["classification", "survival", "regression", "multilabel"], typer.Option(help="What is to be predicted.")
]
Again = Annotated[
    bool,
    typer.Option(
        "--again", help="Make results again that were made from other inputs or settings, instead of stopping."
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=COLUMN,...",
        help="Columns to read, e.g. patient=case_id,label=subtype; patient=tcga-barcode reads TCGA slide names; "
        "labels=ER,PR,HER2 reads one column of 0 and 1 per label.",
    ),
]
TimeUnitName = Annotated[
    Literal["days", "weeks", "months", "years"] | None,
    typer.Option(
        help="For survival: the unit of the times. Default: as the name of their column says, e.g. time_days."
    ),
]
ItemTimeout = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Leave out, and report, a feature file that takes longer than this many seconds. 0: no limit. "
        "Default: 600 for 32 files or more.",
    ),
]
SlideTimeout = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Give up on a slide after this many seconds without progress and continue with the others. 0: no limit. "
        "Default: 1800.",
    ),
]


def print_notes(done: DoneBefore) -> None:
    """Say which results of other versions of asmil were kept."""
    for note in done.notes:
        typer.echo(f"note: {note}", err=True)
