"""`asmil compare`: runs side by side, with tests of their differences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from asmil.cli.run_warnings import warn_of_changed_labels


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Folders that `asmil train` wrote.")],
    role: Annotated[Literal["test", "val"], typer.Option(help="Part of the cohort to compare on.")] = "test",
    reference: Annotated[
        Path | None, typer.Option(help="The run that the others are compared with. Default: the first.")
    ] = None,
    all_pairs: Annotated[bool, typer.Option("--all-pairs", help="Compare every pair of runs.")] = False,
    unit: Annotated[
        Literal["slide", "patient"],
        typer.Option(help="patient: average the predictions of a patient's slides first."),
    ] = "slide",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the page and tables. Default: only print.")
    ] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Bootstrap resamples.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Compare runs on the same patients: metrics, paired differences with intervals, tests, Holm's correction.

    --out writes `comparison.{html,md,tex,csv,json}` and `differences.csv`. A run that cannot be read is reported, the
    others are compared, and the exit code is 1.

    Example: asmil compare runs/asmil runs/abmil --out comparison
    """
    from asmil.console import print_json, results, say
    from asmil.evaluation.comparison import compare_runs, write_comparison
    from asmil.evaluation.comparison.report import comparison_document, comparison_to_dict
    from asmil.reporting import print_document

    found = compare_runs(runs, role, resamples, seed, reference=reference, all_pairs=all_pairs, unit=unit)
    warn_of_changed_labels([run for run in runs if (run / "config.yaml").is_file()])
    page = None if out is None else write_comparison(found, out)
    if as_json:
        print_json(comparison_to_dict(found))
    else:
        console = results()
        print_document(comparison_document(found), console)
        if page is not None:
            say(console, f"page: {page}")
    for problem in found.problems:
        typer.echo(f"left out: {problem}", err=True)
    if found.problems:
        raise typer.Exit(1)
