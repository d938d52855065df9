"""`asmil heatmap`: where a run looked, drawn on the slides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from asmil.cli import options
from asmil.cli.options import argument, option

if TYPE_CHECKING:
    from asmil.explain.heatmaps import HeatmapResult


def heatmap(
    targets: Annotated[
        list[str] | None,
        argument(
            "Run folders, then slides: names in the cohort, slide images, feature files, or folders of them. "
            "No slide: those of the test set.",
            metavar="RUN... [SLIDE...]",
        ),
    ] = None,
    out: Annotated[Path, options.out_option("Folder for the pictures.")] = Path("heatmaps"),
    slides: Annotated[list[str] | None, option("A slide, may be repeated.", "--slide", metavar="NAME")] = None,
    kind: options.MapKinds = None,
    name: options.ClassName = None,
    by: Annotated[
        Literal["method", "seed", "fold", "epoch"] | None,
        option("One map per run, seed, fold or recorded epoch, in one figure."),
    ] = None,
    scale: Annotated[
        Literal["relative", "percentile", "absolute"] | None,
        option(
            "relative: 1 is the average tile, one fixed scale for all maps (default for attention); percentile: "
            "rank within the slide; absolute (default for other kinds)."
        ),
    ] = None,
    limits: Annotated[tuple[float, float] | None, option("Ends of an absolute scale: two numbers.")] = None,
    color_map: Annotated[str | None, option("viridis, magma, inferno, cividis; with a sign PuOr_r, RdBu_r.")] = None,
    opacity: Annotated[float, option("Opacity of the map, the same for all tiles.", min=0.01, max=1)] = 0.65,
    annotations: options.Annotations = None,
    mask_value: options.MaskValue = None,
    images: Annotated[
        Path | None, option("Slide images: folder or table. Default: those of the manifest.", "--slides")
    ] = None,
    features: options.Features = None,
    scores: Annotated[
        Path | None, option("Draw these values instead of a run's: .npy, .csv (x, y, score), .h5, or a folder.")
    ] = None,
    magnification: Annotated[
        float | None, option("Draw coarser tiles, of one of the magnifications of the features, e.g. 5.")
    ] = None,
    tile_px: Annotated[float | None, option("Side of a tile at level 0, if the features lack it.")] = None,
    mpp: options.Mpp = None,
    tiles: Annotated[int, option("Highest and lowest tiles on the contact sheet; 0: none.", min=0)] = 12,
    tiff: Annotated[bool, option("Also a pyramidal TIFF of slide and map.", "--tiff")] = False,
    tiff_mpp: Annotated[float | None, option("Microns per pixel of the TIFF. Default: full resolution.")] = None,
    qupath: Annotated[bool, option("Also GeoJSON of tiles and regions for QuPath.", "--qupath")] = False,
    dicom: Annotated[
        bool, option("Also DICOM: parametric map, annotations and a report with the prediction.", "--dicom")
    ] = False,
    cut: Annotated[
        float, option("For QuPath and DICOM: share of tiles that lie below the annotated ones.", min=0, max=0.9999)
    ] = 0.9,
    role: Annotated[Literal["test", "val", "train", "all"], option("Part of the run, if no slide is named.")] = "test",
    engine: options.EngineName = "local",
    address: options.Address = None,
    workers: options.Workers = None,
    method: options.OwnMethod = None,
    device: options.Device = "auto",
    item_timeout: options.SlideTimeout = None,
    again: options.Again = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw heat maps of slides: slide, map with its scale, annotations, top and bottom tiles.

    Stored features are used; nothing is encoded again. Run the same command again to draw only what is missing.
    If the run was trained again, or features or settings have changed, it says so and stops.

    Example: asmil heatmap runs/lab lab/slides/slide-0003.tif --out maps --qupath
    """
    given = locals()
    from asmil.api import heatmaps

    runs = [Path(word) for word in given.pop("targets") or () if (Path(word) / "config.yaml").is_file()]
    words = [word for word in targets or () if Path(word) not in runs]
    _summarize(options.call(heatmaps.heatmap, given, runs=runs, slides=[*words, *(slides or ())]), out)


MOST_NAMED = 5
"""Slides that are named with a note that they share."""


def _summarize(result: HeatmapResult, out: Path) -> None:
    from asmil.console import messages, results, say

    drawn = len(result.rows)
    before = f" ({result.already_done} done before)" if result.already_done else ""
    say(results(), f"{drawn} slide{'s' * (drawn != 1)} drawn: {out}{before}")
    for alarm in result.alarms:
        say(messages(), f"alarm: {alarm}", style="red")
    noted: dict[str, list[str]] = {}
    for row in result.rows:
        noted.setdefault(row.notes, []).append(row.slide)
    for note, names in noted.items():
        if note:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            say(messages(), f"note: {', '.join(names[:MOST_NAMED])}{more}: {note}")
    options.raise_failures(result.failures, drawn + len(result.failures), "slides could not be drawn")
