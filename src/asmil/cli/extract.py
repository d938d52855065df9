"""`asmil extract`: from slides to feature files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from asmil.cli import options
from asmil.cli.options import argument, option


def _numbers(text: str | None) -> Any:
    from asmil.errors import AsmilError

    try:
        return None if text is None else [float(number) for number in text.split(",")]
    except ValueError:
        raise AsmilError(f"--magnification {text}: give numbers separated by commas, e.g. 5,20") from None


def extract(
    slides: Annotated[Path, argument("A folder of slides, one slide, or a table of slides.")],
    out: Annotated[Path, options.out_option("Folder for the feature files.")],
    encoder: Annotated[
        str, option("One of `asmil encoders`, or your own: file.py:callable or module:callable.", metavar="NAME")
    ] = "efficientnet_lite0",
    weights: Annotated[Path | None, option("File with the encoder's weights.")] = None,
    tile_um: Annotated[float | None, option("Side of a tile in microns. Default: the encoder's.")] = None,
    tile_px: Annotated[int | None, option("Side of a tile in pixels. Default: the encoder's.")] = None,
    magnification: Annotated[
        str | None,
        option(
            "Instead of --tile-um, e.g. 20 for 0.5 um/px; several, e.g. 5,20, for nested tiles.",
            metavar="NUMBER,...",
            callback=_numbers,
        ),
    ] = None,
    overlap: Annotated[float | None, option("Overlap of neighboring tiles, as a share of their side.")] = None,
    min_tissue: Annotated[float | None, option("Smallest share of tissue in a tile.")] = None,
    mpp: options.Mpp = None,
    tissue: Annotated[
        str | None,
        option(
            "How tissue is found: auto, clam, none (the whole slide), or a folder of outlines or masks.",
            metavar="METHOD|FOLDER",
        ),
    ] = None,
    preset: Annotated[str | None, option("A preset of CLAM; implies --tissue clam.", metavar="NAME")] = None,
    leave_out: Annotated[
        str | None, option("Leave out tiles that are blurred, folded, or either: blurred,folded.", metavar="NAMES")
    ] = None,
    lowres: Annotated[float | None, option("Also store tiles at this magnification, e.g. 1.25.")] = None,
    settings: options.SettingsOption = None,
    engine: options.EngineName = "local",
    address: options.Address = None,
    workers: options.Workers = None,
    cpus: options.Cpus = 1,
    gpus: options.Gpus = 0,
    device: options.Device = "auto",
    precision: Annotated[str, option("auto (bf16 on a GPU), float32 or bf16.", metavar="TYPE")] = "auto",
    batch_size: Annotated[int | None, option("Tiles per batch. Default: 16, on a GPU 256.", min=1)] = None,
    shard: Annotated[str | None, option("Only part I of N, for job arrays, e.g. 3/16.", metavar="I/N")] = None,
    pictures: Annotated[
        bool, option("Whether to draw every slide with its tiles into OUT/qc. [default: yes]", "--qc/--no-qc")
    ] = True,
    item_timeout: options.SlideTimeout = None,
    again: options.Again = False,
    quiet: options.Quiet = False,
) -> None:
    """Extract features from slides: find tissue, cut tiles, encode them; one HDF5 file per slide.

    Run the same command again to extract only what is missing. Slides that cannot be read are listed at the end.
    If a slide, the encoder or a setting has changed since a slide was extracted, it says which and stops.

    Example: asmil extract lab/slides --out lab/features --magnification 20
    """
    given = {**locals(), "leave_out": [name.strip() for name in (leave_out or "").split(",") if name.strip()]}
    from asmil.api import slides as functions

    results = options.call(functions.extract, given)
    reports = {done.slide: done.report for done in results if done.report is not None}
    tiles = sum(report.n_tiles for report in reports.values())
    typer.echo(options.done_line(results, len(reports), f"extracted, {tiles:,} tiles", out))
    for slide, report in reports.items():
        for note in report.notes:
            typer.echo(f"note: {slide}: {note}", err=True)
    failures = [done.error for done in results if done.error is not None]
    options.raise_failures(failures, len(results), "slides could not be extracted")
