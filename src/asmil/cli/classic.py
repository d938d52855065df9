"""The verb `classic`: small benchmark sets, from files to a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from asmil.classic.bag_set import BagSet
    from asmil.classic.jobs import Job
    from asmil.classic.leak import ColumnScores
    from asmil.classic.running import Done
    from asmil.engine import Engine


def classic(
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA...", help="Sets, or folders of sets: .npz, .mat, UCI text, .csv, SVM-light."),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", help="A method, mi_svm or bag_forest; repeatable. Default: the usual eleven."),
    ] = None,
    preset: Annotated[
        list[str] | None, typer.Option(help="paper (default), recommended, ...; repeatable, a row for each.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. training.epochs=20.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeats, with seeds SEED, SEED + 1, ...")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="The first seed, of folds, weights and order.")] = 0,
    folds: Annotated[int, typer.Option(min=2, help="Folds of a repeat.")] = 10,
    optimistic: Annotated[
        bool, typer.Option("--optimistic", help="Show the best test epoch too: an upper bound, not a result.")
    ] = False,
    drop_last_column: Annotated[
        bool, typer.Option("--drop-last-column", help="Leave out the last feature of every set, if it is the label.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for results; a benchmark begun there goes on.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Benchmark methods on small sets of bags: repeated stratified cross-validation, accuracy.

    A set in which one column alone predicts the label is refused. With --out, every finished seed is kept at once, the
    same command goes on where it stopped, and classic.json, .csv and .md are written.
    """
    import json

    from asmil.classic.running import make_jobs, run_jobs
    from asmil.classic.settings import DEFAULT_METHODS, contenders
    from asmil.classic.summary import describe_set, make_report
    from asmil.config import parse_assignments
    from asmil.errors import AsmilError
    from asmil.folder_settings import claim_folder

    changes = parse_assignments(assignments or [])
    rows = contenders(method or DEFAULT_METHODS, preset or ["paper"], changes)
    sets, unreadable = _read(data, drop_last_column)
    if not sets:
        raise AsmilError("; ".join(unreadable))
    described = [describe_set(one, scores) for one, scores in _checked(sets, folds)]
    if out is not None:
        note = {"folds": folds, "drop_last_column": drop_last_column, "set": changes}
        claim_folder(out / "settings.yaml", note, "a benchmark")
    jobs = make_jobs(sets, rows, range(seed, seed + seeds), folds, out)
    results = run_jobs(jobs, {one.name: one for one in sets}, _engine(workers))
    done = _follow(results, len(jobs), quiet, kept=out is not None)
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
        typer.echo(json.dumps(report, indent=1, ensure_ascii=False))
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
    """Every set with the scores of its columns; leaks, and sets too small for the folds, are told before any work."""
    from asmil.classic.folds import make_folds
    from asmil.classic.leak import refuse_leaks

    for one in sets:
        make_folds(one, folds, seed=0)
        yield one, refuse_leaks(one)


def _follow(results: Iterator[Done], total: int, quiet: bool, kept: bool) -> list[Done]:
    """All results, shown while they come; an interruption ends the command."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, quiet=quiet)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    seen: list[Done] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total)
        try:
            for done in results:
                seen.append(done)
                news = "failed" if done.error is not None else "was done before" if done.before else "done"
                progress.update(task, completed=len(seen), description=f"{done.name}: {news}")
        except KeyboardInterrupt:
            what = "what is finished is kept: give the same command again to go on" if kept else "nothing was kept"
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
    from rich.console import Console

    from asmil.classic.tables import paper_grid, rule_grid, rule_title, rules_of

    console = Console(highlight=False)
    for rule in rules_of(report):
        console.print(rule_title(report, rule), markup=False)
        console.print(rule_grid(report, rule))
    printed = paper_grid(report)
    if printed is not None:
        console.print("what the paper prints", printed)
        console.print("the paper's figures cannot be compared with ours:", markup=False)
        for reason in report["paper"]["why_not_comparable"]:
            console.print(f"- {reason}", markup=False)
    if out is not None:
        console.print(f"results: {out / 'classic.json'}, .csv and .md", markup=False, soft_wrap=True)
