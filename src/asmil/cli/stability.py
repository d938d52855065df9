"""`asmil stability`: how the attention of runs changed during training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.run_warnings import warn_of_changed_labels


def stability(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that `asmil train` wrote.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the page and tables. Default: the run folder.")
    ] = None,
    slide: Annotated[str | None, typer.Option(metavar="NAME", help="The slide whose maps are drawn.")] = None,
    epochs: Annotated[
        str | None, typer.Option(metavar="LIST", help="Epochs whose maps are drawn, e.g. 0,1,10,50.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure attention over a training: how it changes, how concentrated it is, whether seeds agree.

    One run without --out gets `stability.html`, `stability_*.csv` and `stability.json` in its own folder; several runs
    are only printed unless --out names a folder.

    Example: asmil stability runs/asmil runs/abmil --out stability
    """
    from asmil.console import print_json, results, say
    from asmil.evaluation.stability import read_stability, summary_of, write_tables
    from asmil.evaluation.stability.figures import choose_slide
    from asmil.evaluation.stability.report import stability_document, write_stability_page
    from asmil.reporting import print_document

    warn_of_changed_labels(runs)
    chosen_epochs = _parse_epochs(epochs)
    found = [read_stability(run) for run in runs]
    choose_slide(found, slide)  # an unknown name is an error before anything is written
    folder = found[0].path if out is None and len(found) == 1 else out
    page = None
    if folder is not None:
        write_tables(found, folder)
        page = write_stability_page(found, folder, slide, chosen_epochs)
    if as_json:
        summaries = [summary_of(one) for one in found]
        print_json(summaries[0] if len(summaries) == 1 else summaries)
        return
    console = results()
    print_document(stability_document(found, slide), console)
    say(console, "for the page use --out FOLDER" if page is None else f"page: {page}")


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
        raise AsmilError(f"--epochs {text}: give epochs from 0 on, separated by commas, e.g. 0,1,10,50")
    return values
