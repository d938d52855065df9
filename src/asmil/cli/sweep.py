"""The verb `sweep`: many trainings of one plan, one table of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asmil.cli import options
from asmil.cli.options import argument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asmil.experiments.running import JobEnd


def sweep(
    plan: Annotated[Path, argument("The plan: cohorts, variants, search, seeds.", metavar="SWEEP.yaml")],
    out: Annotated[Path, options.out_option("Folder of runs and results; an existing one is resumed.")],
    workers: options.Trainings = None,
    device: options.Device = "auto",
    engine: options.EngineName = "local",
    address: options.Address = None,
    cpus: options.Cpus = 1.0,
    gpus: options.Gpus = 0.0,
    seconds: options.Seconds = None,
    again: options.Again = False,
    quiet: options.Quiet = False,
) -> None:
    """Train every cohort, variant, point and seed of a plan, and collect all results in results.csv.

    Run the same command again to resume: finished trainings are kept, interrupted ones continue from their last
    checkpoint, failed ones are tried again. A plan that was extended trains only what is new.
    If labels, features or settings of a finished training have changed, the command says which and stops.

    Example: asmil sweep plan.yaml --out sweep
    """
    given = locals()
    from asmil.api import benchmarks
    from asmil.console import results, say
    from asmil.experiments.store import TABLE_FILE, results_table, summary_sentence, summary_table
    from asmil.reporting import print_table

    ends = options.call(benchmarks.sweep, given)
    console, table = results(), results_table(out)
    say(console, summary_sentence(table))
    print_table(summary_table(table), console)
    console.print(f"results: {out / TABLE_FILE}", markup=False, soft_wrap=True)
    exit_code(ends)


def exit_code(ends: Iterable[JobEnd]) -> None:
    """Report what is not done, and end with a code other than zero if anything failed."""
    ended = list(ends)
    failed = [end for end in ended if end.status == "failed"]
    stopped = [end for end in ended if end.status == "stopped"]
    if stopped:
        typer.echo(f"{len(stopped)} of {len(ended)} jobs are not done yet; run the same command to resume", err=True)
    for end in failed:
        typer.echo(f"failed: {end.job.name}: {end.error}", err=True)
    if failed:
        raise typer.Exit(1)
