"""`asmil init`: a settings file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.options import Force, argument, call, option


def init(
    file: Annotated[Path, argument("The file to write.")] = Path("run.yaml"),
    cohort: Annotated[str, option("The manifest, relative to the file.", metavar="PATH")] = "cohort.csv",
    out: Annotated[
        str | None,
        option("The run folder, relative to the file.", "--out", "-o", metavar="PATH", show_default="runs/METHOD"),
    ] = None,
    method: Annotated[str, option("See `asmil methods`.", "--method", "-m", metavar="NAME")] = "asmil",
    preset: Annotated[str, option("paper, or another preset of the method.", metavar="NAME")] = "paper",
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
