"""`asmil compare`: runs side by side, with tests of their differences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.options import (
    BootstrapSeed,
    EvaluatedRole,
    Json,
    Names,
    Resamples,
    UnitName,
    argument,
    call,
    option,
    out_option,
)


def compare(
    runs: Annotated[list[Path], argument("Folders that `asmil train` wrote.", metavar="RUN RUN...")],
    role: EvaluatedRole = "test",
    reference: Annotated[Path | None, option("The run that the others are compared with. Default: the first.")] = None,
    all_pairs: Annotated[bool, option("Compare every pair of runs.", "--all-pairs")] = False,
    unit: UnitName = "slide",
    names: Names = None,
    out: Annotated[Path | None, out_option("Folder for the page and tables. Default: only print.")] = None,
    resamples: Resamples = 2000,
    seed: BootstrapSeed = 0,
    as_json: Json = False,
) -> None:
    """Compare runs on the same patients: metrics, paired differences with intervals, tests, Holm's correction.

    --out writes `comparison.{html,md,tex,csv,json}` and `differences.csv`. A run that cannot be read is reported, the
    others are compared, and the exit code is 1.

    Example: asmil compare runs/asmil runs/abmil --out comparison
    """
    given = locals()
    from asmil.api import functions
    from asmil.console import print_json, results, say
    from asmil.evaluation.comparison.report import comparison_document, comparison_to_dict
    from asmil.reporting import print_document

    comparison = call(functions.compare, given)
    if as_json:
        print_json(comparison_to_dict(comparison))
    else:
        console = results()
        print_document(comparison_document(comparison), console)
        if out is not None:
            say(console, f"page: {out / 'comparison.html'}")
    for problem in comparison.problems:
        typer.echo(f"left out: {problem}", err=True)
    if comparison.problems:
        raise typer.Exit(1)
