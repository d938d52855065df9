"""`asmil tissue`: where the tissue of slides is, as pictures to check before features are extracted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asmil.cli.item_timeout import SLIDE_TIMEOUT_HELP

if TYPE_CHECKING:
    from asmil.slides.survey import SurveyConfig, SurveyResult

MOST_ROWS = 40


def tissue(
    slides: Annotated[
        Path, typer.Argument(metavar="SLIDES", help="A slide, a folder of slides, or a table with column slide.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for masks, contours and pictures.")],
    mpp: Annotated[float | None, typer.Option(help="Microns per pixel of the slides; wins over the files.")] = None,
    method: Annotated[str | None, typer.Option(help="auto (default), clam, or none: the whole slide.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="CLAM's parameters: default, bwh_biopsy, bwh_resection or tcga.")
    ] = None,
    tile_um: Annotated[float | None, typer.Option(help="Side of the tiles that are counted, microns.")] = None,
    tile_px: Annotated[int | None, typer.Option(help="Side of the tiles as an encoder gets them, pixels.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. tissue.min_area_um2=10000."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Slides at once; default: up to 4.")] = None,
    item_timeout: Annotated[float | None, typer.Option(min=0, help=SLIDE_TIMEOUT_HELP)] = None,
) -> None:
    """Find the tissue of every slide: masks, contours for QuPath, overlays, a table and a contact sheet.

    The same command again does what is missing; other settings are refused.
    """
    import os

    from rich.console import Console
    from rich.progress import Progress

    from asmil.slides.discovery import find_slides
    from asmil.slides.survey import SurveyFolder, survey_engine, survey_slides

    config = _config(mpp, method, preset, tile_um, tile_px, assignments or [])
    files = find_slides(slides)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("slides", total=len(files))
        result = survey_slides(
            files,
            SurveyFolder(out),
            config,
            survey_engine(workers or min(4, os.cpu_count() or 1), item_timeout),
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    _print_result(result, out)
    if result.failures:
        raise typer.Exit(1)


def _config(
    mpp: float | None,
    method: str | None,
    preset: str | None,
    tile_um: float | None,
    tile_px: int | None,
    assignments: list[str],
) -> SurveyConfig:
    from asmil.config import merge, parse_assignments, parse_settings
    from asmil.errors import AsmilError
    from asmil.slides.survey import SurveyConfig

    if preset is not None and method not in (None, "clam"):
        raise AsmilError(f"--preset {preset} is one of CLAM's, but --method is {method}; leave one of them out")
    tissue: dict[str, Any] = {}
    if preset is not None:
        tissue = {"method": "clam", "clam": {"preset": preset}}
    elif method is not None:
        tissue = {"method": method}
    tiling = {"tile_um": tile_um, "tile_px": tile_px}
    asked: dict[str, Any] = {
        "mpp": mpp,
        "tissue": tissue,
        "tiling": {key: value for key, value in tiling.items() if value is not None},
    }
    return parse_settings(SurveyConfig, merge(asked, parse_assignments(assignments)))


def _print_result(result: SurveyResult, out: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if len(result.rows) <= MOST_ROWS:
        table = Table()
        for name in ("slide", "mpp", "tissue", "mm2", "pieces", "tiles"):
            table.add_column(name, justify="left" if name == "slide" else "right")
        for row in result.rows:
            table.add_row(
                escape(row.slide),
                f"{row.mpp:.4g}" if row.mpp is not None else "",
                f"{row.tissue_share:.1%}",
                f"{row.tissue_mm2:.4g}" if row.tissue_mm2 is not None else "",
                str(row.regions),
                str(row.tiles) if row.tiles is not None else "",
            )
        console.print(table)
    noted = [row for row in result.rows if row.notes]
    for row in noted[:MOST_ROWS]:
        console.print(f"[yellow]note[/yellow] {escape(row.slide)}: {escape(row.notes)}", soft_wrap=True)
    if len(noted) > MOST_ROWS:
        console.print(f"[yellow]note[/yellow] {len(noted) - MOST_ROWS} more slides have notes, see tissue.csv")
    for failure in result.failures:
        console.print(f"[red]failed[/red] {escape(failure.reason)}", soft_wrap=True)
    again = f" ({result.already_done} of them before)" if result.already_done else ""
    failed = f", {len(result.failures)} failed" if result.failures else ""
    page = escape(str(out / "contact_sheet.html"))
    console.print(f"{len(result.rows)} slides done{again}{failed}; look at {page}", soft_wrap=True)
