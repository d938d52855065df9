"""The verb `stability`: how the attention of runs moved while they were trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table


COLUMNS = {
    "jsd_mean": "JSD\nmean",
    "jsd_late": "JSD\nlate",
    "jsd_relative": "JSD\nrelative",
    "effective_share": "effective\nshare",
    "peak_n": "peak\nx N",
    "gini": "Gini",
    "top1_mass": "top-1 %\nmass",
}
CAPTION = (
    "late: of the last 10 recordings (the last half of fewer than 20); relative: late over what the attention says, "
    "ln N - entropy, since a flat attention has a small JSD for free; concentration: at the epoch that was kept; "
    "seeds agree: the part of the heaviest 1 % of tiles that two seeds share, and their rank correlation"
)


def stability(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that `asmil train` wrote.")],
    out: Annotated[Path | None, typer.Option(help="Folder for page and tables; default: the run's own.")] = None,
    slide: Annotated[str | None, typer.Option(help="The slide whose maps are drawn.")] = None,
    epochs: Annotated[
        str | None, typer.Option(metavar="LIST", help="Epochs whose maps are drawn, e.g. 0,1,10,50.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure the attention that runs recorded: how it moves, how concentrated it is, whether seeds agree.

    One run without --out gets `stability.html`, `stability_*.csv` and `stability.json` in its own folder; several runs
    are only printed unless --out names a folder.
    """
    import json

    from rich.console import Console

    from asmil.evaluation.stability import alarm_lines, read_stability, summary_of, write_tables
    from asmil.evaluation.stability.choice import choose_slide
    from asmil.evaluation.stability.page import write_stability_page
    from asmil.evaluation.stability.tables import run_names
    from asmil.reporting.formats import format_count

    chosen_epochs = _parse_epochs(epochs)
    found = [read_stability(run) for run in runs]
    choose_slide(found, slide)  # a name that was not recorded is told before anything is written
    folder = found[0].path if out is None and len(found) == 1 else out
    page = None
    if folder is not None:
        write_tables(found, folder)
        page = write_stability_page(found, folder, slide, chosen_epochs)
    summaries = [summary_of(one) for one in found]
    if as_json:
        typer.echo(json.dumps(summaries[0] if len(summaries) == 1 else summaries, indent=1, ensure_ascii=False))
        return
    console = Console(highlight=False)
    names = run_names(found)
    console.print(_summary(names, summaries))
    for name, summary in zip(names, summaries, strict=True):
        size = f"{format_count(summary['trainings'], 'training')}, {format_count(len(summary['slides']), 'slide')}"
        console.print(f"{name}: {summary['label']}, {size}", markup=False)
    for one, name in zip(found, names, strict=True):
        for line in alarm_lines(one):
            console.print(f"{name}: {line}" if len(found) > 1 else line, style="yellow", markup=False)
    for note in _notes(summaries, slide):
        console.print(f"note: {note}", markup=False)
    if page is not None:
        console.print(f"page: {page}", markup=False, soft_wrap=True)


def _parse_epochs(text: str | None) -> list[float] | None:
    import math

    from asmil.errors import AsmilError

    if text is None:
        return None
    try:
        values = sorted({float(part) for part in text.split(",") if part.strip()})
    except ValueError:
        values = []
    if not values or not all(value >= 0 and math.isfinite(value) for value in values):
        raise AsmilError(f"--epochs {text}: write epochs from 0 on with commas between them, e.g. 0,1,10,50")
    return values


def _summary(names: list[str], summaries: list[dict[str, Any]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from asmil.reporting.formats import format_significant

    table = Table(
        title="recorded attention, means over slides and trainings; JSD in nats",
        caption=f"{CAPTION}\n",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("run", overflow="fold")
    for header in (*COLUMNS.values(), "seeds\nagree"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, summary in zip(names, summaries, strict=True):
        values = [format_significant(summary["measures"][measure]["value"]) for measure in COLUMNS]
        agreement = summary["agreement"]
        overlap, ranks = (format_significant(agreement[name]) for name in ("top1_overlap", "rank_correlation"))
        agree = f"{overlap}\n[dim]{ranks}[/dim]"
        table.add_row(escape(name), *values, agree if agreement["pairs"] else "–")
    return table


def _notes(summaries: list[dict[str, Any]], slide: str | None) -> Iterator[str]:
    """What a reader of the table must know."""
    if any(summary["schedule"] == "cosine" for summary in summaries):
        yield (
            "the cosine schedule lowers the learning rate until nothing moves, so a small late JSD proves little; "
            "`--set training.schedule=constant` shows what the method does by itself"
        )
    if len({tuple(summary["slides"]) for summary in summaries}) > 1:
        yield "the runs did not record the same slides, so their numbers compare only roughly"
    if len({summary["every"] for summary in summaries}) > 1:
        yield "the runs did not record equally often, so their JSDs do not compare"
    for summary in summaries:
        there, asked, ended = (summary[f"trainings{which}"] for which in ("", "_asked_for", "_finished"))
        if ended < asked:
            yield f"{summary['name']}: {there} of {asked} trainings have recordings, {ended} have ended"
        if slide is not None and slide not in summary["slides"]:
            yield f"{summary['name']}: slide {slide} was not recorded"
