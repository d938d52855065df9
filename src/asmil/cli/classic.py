"""`asmil classic`: small benchmark sets, from files to a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asmil.cli.options import Again, print_notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from asmil.classic.bag_set import BagSet
    from asmil.classic.jobs import Done, Job
    from asmil.classic.leak import ColumnScores
    from asmil.engine import Engine


def classic(
    data: Annotated[
        list[Path],
        typer.Argument(
            metavar="DATA...", help="Benchmark sets, or folders of them: .npz, .mat, UCI text, .csv, SVM-light."
        ),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            metavar="NAME",
            help="A method, mi_svm or bag_forest; may be repeated. Default: the usual eleven.",
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="paper (default), recommended, ...; may be repeated, one row each."),
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. training.epochs=20.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, with seeds SEED, SEED + 1, ...")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="First seed: of folds, initial weights and order of bags.")] = 0,
    folds: Annotated[int, typer.Option(min=2, help="Folds per repetition.")] = 10,
    optimistic: Annotated[
        bool, typer.Option("--optimistic", help="Also show the best test epoch: an upper bound, not a result.")
    ] = False,
    drop_last_column: Annotated[
        bool, typer.Option("--drop-last-column", help="Leave out the last feature of every set, where it is the label.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the results; an interrupted benchmark in it is resumed."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes. Default: one per core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    again: Again = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Benchmark methods on small sets of bags: accuracy in repeated stratified cross-validation.

    A set in which one column alone predicts the label is refused. With --out, every finished seed is saved, the same
    command resumes an interrupted benchmark, and classic.json, .csv and .md are written.

    Example: asmil classic musk1.mat --method abmil --method asmil --out classic
    """
    from asmil.classic.jobs import make_jobs, run_jobs
    from asmil.classic.settings import DEFAULT_METHODS, contenders
    from asmil.classic.summary import describe_set, make_report
    from asmil.console import print_json
    from asmil.errors import AsmilError
    from asmil.settings.config import parse_assignments
    from asmil.settings.folder_settings import claim_folder
    from asmil.settings.made_from import DoneBefore

    changes = parse_assignments(assignments or [])
    rows = contenders(method or DEFAULT_METHODS, preset or ["paper"], changes)
    sets, unreadable = _read(data, drop_last_column)
    if not sets:
        raise AsmilError("; ".join(unreadable))
    described = [describe_set(one, scores) for one, scores in _checked(sets, folds)]
    before = DoneBefore(again)
    if out is not None:
        note = {"folds": folds, "drop_last_column": drop_last_column, "set": changes}
        claim_folder(out / "settings.yaml", note, "a benchmark", again)
    jobs = make_jobs(sets, rows, range(seed, seed + seeds), folds, out)
    results = run_jobs(jobs, {one.name: one for one in sets}, _engine(workers), before)
    done = _follow(results, len(jobs), quiet, kept=out is not None)
    print_notes(before)
    found = _in_order(done, jobs)
    rules = ("last", "val", "optimistic") if optimistic else ("last", "val")
    protocol = {
        "command": _command(),
        "folds": folds,
        "seeds": list(range(seed, seed + seeds)),
        "drop_last_column": drop_last_column,
    }
    report = make_report(found, rules, described, rows, protocol)
    failed = [*unreadable, *(f"{one.name}: {one.error}" for one in done if one.error is not None)]
    if out is not None and found:
        _write(report, out)
    if as_json:
        print_json(report)
    elif found:
        _print(report, out)
    if failed:
        for sentence in failed:
            typer.echo(f"failed: {sentence}", err=True)
        raise typer.Exit(1)


def _engine(workers: int | None) -> Engine:
    """One worker is this process; several have one thread each."""
    from asmil.engine import InlineEngine, LocalEngine
    from asmil.engine.local import usable_cores

    n_workers = workers or usable_cores()
    return InlineEngine() if n_workers == 1 else LocalEngine(n_workers, concurrency=1, threads_per_worker=1)


def _read(data: list[Path], drop_last_column: bool) -> tuple[list[BagSet], list[str]]:
    """The sets that can be read, and what is wrong with the others."""
    from asmil.classic.reading import find_sets, read_set
    from asmil.errors import AsmilError

    sets, unreadable = [], []
    for path in find_sets(data):
        try:
            one = read_set(path)
            sets.append(one.without_last_column() if drop_last_column else one)
        except AsmilError as error:
            unreadable.append(str(error))
    return sets, unreadable


def _checked(sets: list[BagSet], folds: int) -> Iterator[tuple[BagSet, ColumnScores]]:
    """Every set with the scores of its columns; leaks, and sets too small for the folds, are refused first."""
    from asmil.classic.folds import make_folds
    from asmil.classic.leak import refuse_leaks

    for one in sets:
        make_folds(one, folds, seed=0)
        yield one, refuse_leaks(one)


def _follow(results: Iterator[Done], total: int, quiet: bool, kept: bool) -> list[Done]:
    """All results, shown while they come; an interruption ends the command."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from asmil.console import messages

    console = messages(quiet)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    seen: list[Done] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total)
        try:
            for done in results:
                seen.append(done)
                status = "failed" if done.error is not None else "already done" if done.before else "done"
                progress.update(task, completed=len(seen), description=f"{done.name}: {status}")
        except KeyboardInterrupt:
            what = "run the same command again to resume" if kept else "nothing was saved, since --out was not given"
            typer.echo(f"interrupted; {what}", err=True)
            raise typer.Exit(130) from None
    return seen


def _in_order(done: Sequence[Done], jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The results in the order of the jobs, whichever ended first: the same command gives the same table."""
    found = {(one.job.set_name, one.job.contender.name, one.job.seed): one.result for one in done}
    results = (found.get((job.set_name, job.contender.name, job.seed)) for job in jobs)
    return [result for result in results if result is not None]


def _command() -> str:
    import shlex
    import sys

    return shlex.join(["asmil", *sys.argv[1:]])


def _write(report: dict[str, Any], out: Path) -> None:
    from asmil.classic.tables import csv_table, markdown_report
    from asmil.files import write_json, write_text

    write_json(out / "classic.json", report)
    write_text(out / "classic.csv", csv_table(report))
    write_text(out / "classic.md", markdown_report(report))


def _print(report: dict[str, Any], out: Path | None) -> None:
    from asmil.classic.tables import paper_grid, rule_grid, rule_title, rules_of
    from asmil.console import results, say
    from asmil.reporting import print_table

    console = results()
    for rule in rules_of(report):
        say(console, rule_title(report, rule))
        print_table(rule_grid(report, rule), console)
    printed = paper_grid(report)
    if printed is not None:
        say(console, "what the paper reports")
        print_table(printed, console)
        say(console, "the paper's numbers cannot be compared with ours:")
        for reason in report["paper"]["why_not_comparable"]:
            say(console, f"- {reason}")
    if out is not None:
        say(console, f"results: {out / 'classic.json'}, .csv and .md")
