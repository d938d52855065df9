"""The verb `compare`: runs side by side, and what their differences are worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from asmil.evaluation.comparison import Comparison, Score


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Folders that `asmil train` wrote.")],
    role: Annotated[Literal["test", "val"], typer.Option(help="Part of the cohort to compare on.")] = "test",
    reference: Annotated[
        Path | None, typer.Option(help="The run that the others are held against; default: the first.")
    ] = None,
    all_pairs: Annotated[bool, typer.Option("--all-pairs", help="Every run against every other.")] = False,
    unit: Annotated[
        Literal["slide", "patient"],
        typer.Option(help="What is judged; patient: the mean prediction of a patient's slides."),
    ] = "slide",
    out: Annotated[Path | None, typer.Option(help="Folder for page and tables; default: none are written.")] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Draws behind an interval.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of those draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Compare runs on the same patients: scores, paired differences with intervals, tests, Holm's correction.

    --out writes `comparison.{html,md,tex,csv,json}` and `differences.csv`. A run that cannot be read is named, the
    others are compared, and the command ends with a code other than zero.
    """
    import json

    from rich.console import Console

    from asmil.evaluation.comparison import compare_runs, write_comparison
    from asmil.evaluation.comparison.as_json import comparison_to_dict
    from asmil.evaluation.comparison.words import notes_of

    found = compare_runs(runs, role, resamples, seed, reference=reference, all_pairs=all_pairs, unit=unit)
    page = None if out is None else write_comparison(found, out)
    if as_json:
        typer.echo(json.dumps(comparison_to_dict(found), indent=1, ensure_ascii=False))
    else:
        console = Console(highlight=False)
        console.print(_methods(found))
        console.print(_differences(found))
        for note in notes_of(found):
            console.print(f"- {note}", style="yellow" if note in found.warnings else "", markup=False)
        if page is not None:
            console.print(f"page: {page}", markup=False, soft_wrap=True)
    for problem in found.problems:
        typer.echo(f"left out: {problem}", err=True)
    if found.problems:
        raise typer.Exit(1)


def _methods(found: Comparison) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from asmil.evaluation.comparison.tables import format_sizes

    optimistic = " (optimistic if it chose the epoch)" if found.role == "val" else ""
    title = f"{found.role} part{optimistic}: {format_sizes(found)}; mean over seeds, 95 % interval by patient"
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("run", overflow="fold")
    for measure in found.measures:
        table.add_column(measure.title, justify="right", no_wrap=True)
    table.add_column("seeds", justify="right")
    for method in found.methods:
        values = [_score(method.scores[measure.name], method.name in found.best(measure)) for measure in found.measures]
        about = f"{escape(method.name)}\n[dim]{escape(method.method)}[/dim]"
        table.add_row(about, *values, str(len(method.seeds)))
    return table


def _score(score: Score, best: bool) -> str:
    import math

    from asmil.evaluation.comparison.tables import spread_of
    from asmil.evaluation.tables import format_interval, format_number

    value = format_number(score.value)
    over, sd = spread_of(score)
    spread = "" if math.isnan(sd) else f" ±{format_number(sd)} ({over})"
    shown = f"[bold]{value}[/bold]" if best else value
    return f"{shown}{spread}\n[dim]{format_interval(score.interval, '–')}[/dim]"


def _differences(found: Comparison) -> Table:
    import math

    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from asmil.evaluation.comparison.tables import format_difference, format_difference_interval, format_p

    tested = any(one.ensemble is not None for one in found.differences)
    folded = any(one.folds is not None for one in found.differences)
    table = Table(title="differences: run minus reference; seeds and patients drawn", box=SIMPLE_HEAD)
    table.add_column("run\n[dim]reference[/dim]", overflow="fold")
    headers = ["measure", "difference\n[dim]95 % interval[/dim]"]
    headers += ["p of the\nensembles", f"p (Holm,\n{found.family} tests)"] if tested else []
    headers += ["p over\nfolds"] if folded else []
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for one in found.differences:
        interval = format_difference_interval(one.interval)
        cells = [one.measure.title, f"{format_difference(one.value)}\n[dim]{interval}[/dim]"]
        if tested:
            cells += [format_p(math.nan if one.ensemble is None else one.ensemble.p), format_p(one.p_holm)]
        if folded:
            cells.append(format_p(math.nan if one.folds is None else one.folds.p))
        table.add_row(f"{escape(one.run)}\n[dim]{escape(one.reference)}[/dim]", *cells)
    return table
