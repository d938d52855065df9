"""`asmil init`: a settings file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.options import Force, call


def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("run.yaml"),
    cohort: Annotated[str, typer.Option(metavar="PATH", help="The manifest, relative to the file.")] = "cohort.csv",
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="PATH", show_default="runs/METHOD", help="The run folder, relative to the file."
        ),
    ] = None,
    method: Annotated[str, typer.Option("--method", "-m", metavar="NAME", help="See `asmil methods`.")] = "asmil",
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="paper, recommended, or a preset of the method.")
    ] = "paper",
    force: Force = False,
) -> None:
    """Write a settings file for `asmil train FILE`, with every setting, its default and its meaning.

    Example: asmil init run.yaml --method asmil --cohort cohort.csv
    """
    given = locals()
    import shlex

    from asmil.api import cohorts

    call(cohorts.init, given)
    typer.echo(f"wrote {file}; edit it, then run: asmil train {shlex.quote(str(file))}")
