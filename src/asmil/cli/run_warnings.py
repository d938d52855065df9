"""Warnings about runs that several verbs print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer


def warn_of_changed_labels(runs: Sequence[Path]) -> None:
    """Print a warning for each run whose manifest has other labels than it was trained with."""
    from asmil.errors import printable
    from asmil.runs.run import Run
    from asmil.runs.stored_labels import label_changes

    for run in runs:
        changes = label_changes(Run(run))
        if changes is not None:
            sentence = changes.sentence(f"the models of {run} were trained with the old ones")
            typer.secho(printable(f"warning: {sentence}"), fg=typer.colors.YELLOW, err=True)
