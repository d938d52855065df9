"""`asmil synthetic-slides`: slides that look like H&E, with known tumor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.options import Again, Processes, call


def synthetic_slides(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the slides.")],
    slides: Annotated[int, typer.Option(help="Number of slides, split 5:2:3 into train, val and test.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed; the same seed makes the same slides.")] = 0,
    mpp: Annotated[float, typer.Option(help="Microns per pixel.")] = 0.5,
    side_mm_min: Annotated[float, typer.Option(help="Shortest side of a slide, mm.")] = 1.8,
    side_mm_max: Annotated[float, typer.Option(help="Longest side of a slide, mm.")] = 2.4,
    tumor: Annotated[float, typer.Option(help="Share of slides with tumor.")] = 0.5,
    micro: Annotated[float, typer.Option(help="Share of the tumor slides that have only foci below 0.3 mm.")] = 0.15,
    sites: Annotated[int, typer.Option(help="Number of sites; each has its own stain.")] = 3,
    pen: Annotated[float, typer.Option(help="Share of slides with pen marks.")] = 0.2,
    workers: Processes = None,
    again: Again = False,
) -> None:
    """Make slides that look like H&E: pyramidal TIFFs, tumor annotations and cohort.csv.

    Run the same command again to make what is missing; other settings are refused, unless --again replaces the slides.

    Example: asmil synthetic-slides lab --slides 12
    """
    given = locals()
    from asmil.api import cohorts

    _print_summary(call(cohorts.synthetic_slides, given))


def _print_summary(manifest: Path) -> None:
    import pandas as pd

    from asmil.console import results, say
    from asmil.reporting import Table, print_table

    cohort = pd.read_csv(manifest).merge(pd.read_csv(manifest.with_name("truth.csv")), on="slide")
    columns = ("part", "slides", "patients", "normal", "tumor", "tissue mm²", "tumor mm²", "foci")
    shown = []
    for part, rows in cohort.groupby("split", sort=False):
        counts = [
            len(rows),
            rows["patient"].nunique(),
            *((rows["label"] == label).sum() for label in ("normal", "tumor")),
        ]
        areas = [f"{rows[name].sum():.1f}" for name in ("tissue_mm2", "tumor_mm2")]
        shown.append([str(part), *map(str, counts), *areas, str(rows["foci"].sum())])
    megabytes = sum(path.stat().st_size for path in (manifest.parent / "slides").glob("*.tif")) / 1e6
    console = results()
    print_table(Table(columns, shown, title="synthetic slides"), console)
    say(console, f"manifest: {manifest} ({megabytes:.0f} MB of slides)")
