"""`asmil synthetic-slides`: slides that look like H&E, with known tumor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from asmil.cli.options import Again, Processes, argument, call, option


def synthetic_slides(
    folder: Annotated[Path, argument("Folder for the slides.", metavar="DIR")],
    slides: Annotated[int, option("Number of slides, split 5:2:3 into train, val and test.")] = 40,
    seed: Annotated[int, option("Seed; the same seed makes the same slides.")] = 0,
    mpp: Annotated[float, option("Microns per pixel.")] = 0.5,
    side_mm_min: Annotated[float, option("Shortest side of a slide, mm.")] = 1.8,
    side_mm_max: Annotated[float, option("Longest side of a slide, mm.")] = 2.4,
    tumor: Annotated[float, option("Share of slides with tumor.")] = 0.5,
    micro: Annotated[float, option("Share of the tumor slides that have only foci below 0.3 mm.")] = 0.15,
    sites: Annotated[int, option("Number of sites; each has its own stain.")] = 3,
    pen: Annotated[float, option("Share of slides with pen marks.")] = 0.2,
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
