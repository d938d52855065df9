"""`asmil stability`: how the attention of runs changed during training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from asmil.cli.options import Json, RunFolders, call, option, out_option


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


def stability(
    runs: RunFolders,
    out: Annotated[Path | None, out_option("Folder for the page and tables. Default: the run folder.")] = None,
    slide: Annotated[str | None, option("The slide whose maps are drawn.", metavar="NAME")] = None,
    epochs: Annotated[
        str | None, option("Epochs whose maps are drawn, e.g. 0,1,10,50.", metavar="LIST", callback=_parse_epochs)
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure attention over a training: how it changes, how concentrated it is, whether seeds agree.

    One run without --out gets `stability.html`, `stability_*.csv` and `stability.json` in its own folder; several runs
    are only printed unless --out names a folder.

    Example: asmil stability runs/asmil runs/abmil --out stability
    """
    given = locals()
    from asmil.api import results as functions
    from asmil.console import print_json, results, say
    from asmil.evaluation.stability import summary_of
    from asmil.evaluation.stability.report import stability_document
    from asmil.reporting import print_document

    stabilities = call(functions.stability, given)
    if as_json:
        summaries = [summary_of(stability) for stability in stabilities]
        print_json(summaries[0] if len(summaries) == 1 else summaries)
        return
    console, folder = results(), runs[0] if out is None and len(runs) == 1 else out
    print_document(stability_document(stabilities, slide), console)
    say(console, "for the page use --out FOLDER" if folder is None else f"page: {folder / 'stability.html'}")
