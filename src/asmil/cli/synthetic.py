"""The verb `synthetic`: a cohort of made-up slides with known truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def synthetic(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the cohort.")],
    slides: Annotated[int, typer.Option(help="Slides in all, split 200:65:100 into train, val, test.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed; the same seed makes the same slides.")] = 0,
    classes: Annotated[int, typer.Option(help="2 (normal, tumor) or 3 (benign, atypical, malignant).")] = 2,
    width: Annotated[int, typer.Option(help="Features of a tile.")] = 384,
    difficulty: Annotated[str, typer.Option(help="easy, medium, hard, or a number (medium: 1).")] = "medium",
    tiles_min: Annotated[int, typer.Option(help="Fewest tiles of a slide.")] = 200,
    tiles_max: Annotated[int, typer.Option(help="Most tiles of a slide.")] = 5000,
    witness_min: Annotated[float, typer.Option(help="Smallest share of lesion tiles.")] = 0.005,
    witness_max: Annotated[float, typer.Option(help="Largest share of lesion tiles.")] = 0.20,
    sites: Annotated[int, typer.Option(help="Sites of training and validation; test has one more.")] = 4,
) -> None:
    """Make a synthetic cohort: feature files, cohort.csv, and the truth of every tile.

    The same command again makes what is missing; other settings are refused.
    """
    from rich.console import Console
    from rich.progress import Progress

    from asmil.cohort.synthetic import SyntheticConfig, write_synthetic
    from asmil.config import parse_settings

    config = parse_settings(
        SyntheticConfig,
        {
            "slides": slides,
            "seed": seed,
            "classes": classes,
            "width": width,
            "difficulty": _number_or_word(difficulty),
            "tiles_min": tiles_min,
            "tiles_max": tiles_max,
            "witness_min": witness_min,
            "witness_max": witness_max,
            "sites": sites,
        },
    )
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("slides", total=slides)
        manifest = write_synthetic(folder, config, lambda done, total: progress.update(task, completed=done))
    _print_summary(manifest)


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _print_summary(manifest: Path) -> None:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    cohort = pd.read_csv(manifest)
    labels = list(dict.fromkeys(sorted(cohort["label"])))
    table = Table(title="synthetic cohort")
    for name in ("part", "slides", "patients", *labels, "sites"):
        table.add_column(name, justify="left" if name in ("part", "sites") else "right")
    for part, rows in cohort.groupby("split", sort=False):
        counts = [str(int((rows["label"] == label).sum())) for label in labels]
        sites = ", ".join(sorted(set(rows["site"])))
        table.add_row(str(part), str(len(rows)), str(rows["patient"].nunique()), *counts, sites)
    console = Console()
    console.print(table)
    console.print(f"manifest: {manifest}", markup=False, soft_wrap=True)
