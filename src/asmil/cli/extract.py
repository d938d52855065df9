"""`asmil extract`: from slides to feature files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asmil.cli.options import Again, SlideTimeout, print_notes

if TYPE_CHECKING:
    from asmil.extraction.extract import Done
    from asmil.extraction.settings import ExtractionConfig


def extract(
    slides: Annotated[Path, typer.Argument(help="A folder of slides, one slide, or a table of slides.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the feature files.")],
    encoder: Annotated[
        str,
        typer.Option(metavar="NAME", help="One of `asmil encoders`, or your own: file.py:callable or module:callable."),
    ] = "efficientnet_lite0",
    weights: Annotated[Path | None, typer.Option(help="File with the encoder's weights.")] = None,
    tile_um: Annotated[float | None, typer.Option(help="Side of a tile in microns. Default: the encoder's.")] = None,
    tile_px: Annotated[int | None, typer.Option(help="Side of a tile in pixels. Default: the encoder's.")] = None,
    magnification: Annotated[float | None, typer.Option(help="Instead of --tile-um, e.g. 20 for 0.5 um/px.")] = None,
    overlap: Annotated[
        float | None, typer.Option(help="Overlap of neighboring tiles, as a share of their side.")
    ] = None,
    min_tissue: Annotated[float | None, typer.Option(help="Smallest share of tissue in a tile.")] = None,
    mpp: Annotated[float | None, typer.Option(help="Microns per level-0 pixel; overrides the files.")] = None,
    tissue: Annotated[
        str | None, typer.Option(metavar="METHOD", help="How tissue is found: auto, clam, or none (the whole slide).")
    ] = None,
    preset: Annotated[str | None, typer.Option(metavar="NAME", help="A preset of CLAM; implies --tissue clam.")] = None,
    lowres: Annotated[float | None, typer.Option(help="Also store tiles at this magnification, e.g. 1.25.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. tissue.min_area_um2=100000."),
    ] = None,
    engine: Annotated[str, typer.Option(metavar="ENGINE", help="local (processes on this machine) or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster; auto finds one.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Number of processes; 0: only this one. Default: one per GPU, or one per core."),
    ] = None,
    cpus: Annotated[float, typer.Option(min=0, help="For Ray: cores per worker.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="For Ray: GPUs per worker.")] = 0,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    precision: Annotated[str, typer.Option(metavar="TYPE", help="auto (bf16 on a GPU), float32 or bf16.")] = "auto",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Tiles per batch. Default: 16, on a GPU 256.")] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Only part I of N, for job arrays, e.g. 3/16.")
    ] = None,
    pictures: Annotated[
        bool,
        typer.Option("--qc/--no-qc", help="Whether to draw every slide with its tiles into OUT/qc. [default: yes]"),
    ] = True,
    item_timeout: SlideTimeout = None,
    again: Again = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Extract features from slides: find tissue, cut tiles, encode them; one HDF5 file per slide.

    Run the same command again to extract only what is missing. Slides that cannot be read are listed at the end.
    If a slide, the encoder or a setting has changed since a slide was extracted, it says which and stops.

    Example: asmil extract lab/slides --out lab/features --magnification 20
    """
    from asmil.cli.slide_progress import SlideProgress
    from asmil.errors import AsmilError
    from asmil.extraction.extract import extract as extract_slides
    from asmil.extraction.extract import identify, with_mpp
    from asmil.extraction.extract import shard as part_of
    from asmil.extraction.machine import ExtractionMachine
    from asmil.extraction.worker import WorkerPlan, parse_precision
    from asmil.settings.made_from import DoneBefore
    from asmil.slides.discovery import find_slides

    asked = {
        "tile_um": tile_um,
        "tile_px": tile_px,
        "magnification": magnification,
        "overlap": overlap,
        "min_tissue": min_tissue,
    }
    config = _config(encoder, asked, tissue, preset, lowres, settings or [])
    files = part_of(with_mpp(find_slides(slides), mpp), shard)
    if not files:
        raise AsmilError(f"--shard {shard}: there are fewer slides than parts; give fewer parts")
    worker_precision = parse_precision(precision)
    progress = SlideProgress(len(files), quiet)
    machine = ExtractionMachine(engine, address, workers, device, cpus, gpus, item_timeout)
    runner, readers = machine.prepare(len(files), progress.report)
    weights = None if weights is None else weights.absolute()
    plan = WorkerPlan(config, identify(config.encoder, weights), weights, worker_precision, batch_size, readers)
    done = DoneBefore(again)
    results = progress.follow(extract_slides(files, out, plan, runner, pictures, done))
    print_notes(done)
    _summarize(results, out)


def _config(
    encoder: str,
    tiling: dict[str, Any],
    tissue: str | None,
    preset: str | None,
    lowres: float | None,
    assignments: list[str],
) -> ExtractionConfig:
    """The settings of the options, overridden by those of `--set`."""
    from asmil.errors import AsmilError
    from asmil.extraction.settings import parse_extraction, tile_size
    from asmil.settings.config import merge, nested, parse_assignments
    from asmil.slides.encoders.registry import find_encoder

    sizes = {key: tiling.pop(key) for key in ("tile_um", "tile_px", "magnification")}
    if preset is not None and tissue not in (None, "clam"):
        raise AsmilError(f"--preset {preset} belongs to --tissue clam; leave --tissue {tissue} out")
    method = "clam" if preset is not None else tissue
    values: dict[str, Any] = {
        "encoder": encoder,
        "lowres": lowres,
        "tiling": {key: value for key, value in tiling.items() if value is not None},
        "tissue": {} if method is None else {"method": method},
    }
    if preset is not None:
        values = merge(values, nested("tissue.clam.preset", preset))
    changes = parse_assignments(assignments)
    entry = find_encoder(str(changes.get("encoder", encoder)))
    values = merge(values, {"tiling": tile_size(entry, **sizes)})
    return parse_extraction(merge(values, changes))


def _summarize(results: list[Done], out: Path) -> None:
    from asmil.errors import AsmilError

    fresh = [done for done in results if done.report is not None]
    before = sum(done.before for done in results)
    failed = [done.error for done in results if done.error is not None]
    tiles = sum(done.report.n_tiles for done in fresh if done.report is not None)
    summary = f"{len(fresh)} slide{'s' * (len(fresh) != 1)} extracted, {tiles:,} tiles: {out}"
    typer.echo(summary + (f" ({before} were already done)" if before else ""))
    for done in fresh:
        if done.report is not None:
            for note in done.report.notes:
                typer.echo(f"note: {done.slide}: {note}", err=True)
    if failed:
        listed = "\n".join(f"  - {line}" for line in failed)
        raise AsmilError(f"{len(failed)} of {len(results)} slides could not be extracted:\n{listed}")
