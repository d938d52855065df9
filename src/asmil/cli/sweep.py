"""The verb `sweep`: many trainings of one plan, one table of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asmil.cli.options import Again, print_notes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asmil.experiments.running import JobEnd


def sweep(
    plan: Annotated[Path, typer.Argument(metavar="SWEEP.yaml", help="The plan: cohorts, variants, search, seeds.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of runs and results; an existing one is resumed.")],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Trainings at the same time. Default: one per GPU, or one.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda (all GPUs) or cuda:1.")] = "auto",
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster, e.g. auto.")] = None,
    cpus: Annotated[float, typer.Option(help="For Ray: CPU cores per training.")] = 1.0,
    gpus: Annotated[float, typer.Option(help="For Ray: GPUs per training; fractions share one.")] = 0.0,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Start no training after this time; resume with the same command.")
    ] = None,
    again: Again = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Train every cohort, variant, point and seed of a plan, and collect all results in results.csv.

    Run the same command again to resume: finished trainings are kept, interrupted ones continue from their last
    checkpoint, failed ones are tried again. A plan that was extended trains only what is new.
    If labels, features or settings of a finished training have changed, the command says which and stops.

    Example: asmil sweep plan.yaml --out sweep
    """
    from asmil.console import results, say
    from asmil.experiments.agreement import write_agreement
    from asmil.experiments.running import TrainingMachine, sweep_folder
    from asmil.experiments.settings import read_sweep
    from asmil.experiments.store import TABLE_FILE, results_table, summary_sentence, summary_table
    from asmil.reporting import print_table
    from asmil.settings.made_from import DoneBefore

    config = read_sweep(plan)
    chosen, on_gpu = TrainingMachine(engine, address, workers, device, cpus, gpus).prepare()
    folder = sweep_folder(config, out, on_gpu)
    done = DoneBefore(again)
    ends = follow(folder.run(chosen, seconds, done), quiet)
    print_notes(done)
    if "attention" in config.measures:
        write_agreement(out)
    console = results()
    table = results_table(out)
    say(console, summary_sentence(table))
    print_table(summary_table(table), console)
    console.print(f"results: {out / TABLE_FILE}", markup=False, soft_wrap=True)
    exit_code(ends)


def follow(ends: Iterable[JobEnd], quiet: bool) -> list[JobEnd]:
    """All ends of jobs, shown as they come."""
    from asmil.console import messages

    console = messages(quiet)
    seen = []
    for end in ends:
        seen.append(end)
        text = f"{len(seen)}: {end.job.name}: {end.status}{f': {end.error}' if end.error else ''}"
        console.print(text, markup=False, soft_wrap=True)
    return seen


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
