"""`asmil tissue`: where slides have tissue, as pictures to check before features are extracted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asmil.cli.options import Again, Json, Mpp, SettingsOption, SlideTimeout, argument, call, option, out_option

if TYPE_CHECKING:
    from asmil.slides.survey import SurveyResult

MOST_ROWS = 40


def tissue(
    slides: Annotated[Path, argument("A folder of slides, one slide, or a table of slides.", metavar="SLIDES")],
    out: Annotated[Path, out_option("Folder for masks, contours and pictures.")],
    mpp: Mpp = None,
    method: Annotated[
        str | None,
        option(
            "auto (default), clam, none (the whole slide), or a folder of outlines or masks.", metavar="NAME|FOLDER"
        ),
    ] = None,
    preset: Annotated[
        str | None, option("A preset of CLAM: default, bwh_biopsy, bwh_resection or tcga.", metavar="NAME")
    ] = None,
    tile_um: Annotated[float | None, option("Side of the counted tiles in microns.")] = None,
    tile_px: Annotated[int | None, option("Side of the tiles in pixels, as an encoder gets them.")] = None,
    quality: Annotated[
        bool, option("Count blurred and folded tiles, which reads all of their pixels.", "--quality")
    ] = False,
    settings: SettingsOption = None,
    workers: Annotated[
        int | None, option("Number of slides processed at the same time. Default: up to 4.", min=1)
    ] = None,
    item_timeout: SlideTimeout = None,
    again: Again = False,
    as_json: Json = False,
) -> None:
    """Find the tissue of every slide: masks, contours for QuPath, overlays and a contact sheet.

    Run the same command again to do what is missing; other settings or replaced slides are refused, unless --again.

    Example: asmil tissue lab/slides --out qc
    """
    given = locals()
    from asmil.api import slides as functions
    from asmil.console import print_json

    result = call(functions.tissue, given)
    if as_json:
        print_json(_as_dict(result, out))
    else:
        _print_result(result, out)
    if result.failures:
        raise typer.Exit(1)


def _as_dict(result: SurveyResult, out: Path) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "out": str(out),
        "already_done": result.already_done,
        "slides": [asdict(row) for row in result.rows],
        "failures": [{"slide": str(failure.slide), "reason": failure.reason} for failure in result.failures],
    }


def _print_result(result: SurveyResult, out: Path) -> None:
    from asmil.console import results, say
    from asmil.reporting import Table, print_table

    console = results()
    if len(result.rows) <= MOST_ROWS:
        shown = [
            [
                row.slide,
                f"{row.mpp:.4g}" if row.mpp is not None else "",
                f"{row.tissue_share:.1%}",
                f"{row.tissue_mm2:.4g}" if row.tissue_mm2 is not None else "",
                str(row.regions),
                str(row.tiles) if row.tiles is not None else "",
            ]
            for row in result.rows
        ]
        print_table(Table(("slide", "mpp", "tissue", "mm2", "pieces", "tiles"), shown), console)
    noted = [row for row in result.rows if row.notes]
    for row in noted[:MOST_ROWS]:
        say(console, f"note: {row.slide}: {row.notes}", style="yellow")
    if len(noted) > MOST_ROWS:
        say(console, f"note: {len(noted) - MOST_ROWS} more slides have notes, see tissue.csv", style="yellow")
    for failure in result.failures:
        say(console, f"failed: {failure.reason}", style="red")
    again = f" ({result.already_done} were already done)" if result.already_done else ""
    failed = f", {len(result.failures)} failed" if result.failures else ""
    say(console, f"{len(result.rows)} slides done{again}{failed}; open {out / 'contact_sheet.html'}")
