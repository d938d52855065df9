"""`asmil heatmap`: where a run looked, drawn on the slides."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from asmil.cli.options import Again, SlideTimeout, print_notes
from asmil.cli.run_warnings import warn_of_changed_labels
from asmil.cli.slide_engine import slide_engine

if TYPE_CHECKING:
    from asmil.explain.heatmaps import HeatmapResult


def heatmap(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN... [SLIDE...]",
            help="Run folders, then slides: names in the cohort, slide images, feature files, or folders of them. "
            "No slide: those of the test set.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the pictures.")] = Path("heatmaps"),
    slide: Annotated[list[str] | None, typer.Option("--slide", help="A slide, may be repeated.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Kind of map, may be repeated: attention, attention_logit, leave_one_out, gradient, "
            "integrated_gradients, or one of the method. Default: the method's own."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--class", help="Class or label to explain. Default: the predicted one.")
    ] = None,
    by: Annotated[
        Literal["method", "seed", "fold", "epoch"] | None,
        typer.Option(help="One map per run, seed, fold or recorded epoch, in one figure."),
    ] = None,
    scale: Annotated[
        Literal["relative", "percentile", "absolute"] | None,
        typer.Option(
            help="relative: 1 is the average tile, one fixed scale for all maps (default for attention); percentile: "
            "rank within the slide; absolute (default for other kinds)."
        ),
    ] = None,
    limits: Annotated[tuple[float, float] | None, typer.Option(help="Ends of an absolute scale: two numbers.")] = None,
    color_map: Annotated[
        str | None, typer.Option(help="viridis, magma, inferno, cividis; with a sign PuOr_r, RdBu_r.")
    ] = None,
    opacity: Annotated[float, typer.Option(min=0.01, max=1, help="Opacity of the map, the same for all tiles.")] = 0.65,
    annotations: Annotated[
        Path | None,
        typer.Option(help="Outlines to draw: a folder or file of ASAP or Aperio XML, GeoJSON or mask TIFFs."),
    ] = None,
    mask_value: Annotated[int | None, typer.Option(help="Value of tumor in mask TIFFs. Default: all but 0.")] = None,
    slides: Annotated[
        Path | None, typer.Option(help="Slide images: folder or table. Default: those of the manifest.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Folder or file of features. Default: those of the manifest.")
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(help="Draw these values instead of a run's: .npy, .csv (x, y, score), .h5, or a folder."),
    ] = None,
    tile_px: Annotated[float | None, typer.Option(help="Side of a tile at level 0, if the features lack it.")] = None,
    mpp: Annotated[float | None, typer.Option(help="Microns per level-0 pixel; overrides the files.")] = None,
    tiles: Annotated[int, typer.Option(min=0, help="Highest and lowest tiles on the contact sheet; 0: none.")] = 12,
    tiff: Annotated[bool, typer.Option("--tiff", help="Also a pyramidal TIFF of slide and map.")] = False,
    tiff_mpp: Annotated[
        float | None, typer.Option(help="Microns per pixel of the TIFF. Default: full resolution.")
    ] = None,
    qupath: Annotated[bool, typer.Option("--qupath", help="Also GeoJSON of tiles and regions for QuPath.")] = False,
    cut: Annotated[
        float, typer.Option(min=0, max=0.9999, help="For QuPath: share of tiles that lie below the regions.")
    ] = 0.9,
    role: Annotated[
        Literal["test", "val", "train", "all"], typer.Option(help="Part of the run, if no slide is named.")
    ] = "test",
    engine: Annotated[str, typer.Option(help="local (processes of this machine) or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster; auto finds one.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes. Default: one per core; 0: this one.")] = None,
    method: Annotated[
        str | None, typer.Option("--method", metavar="NAME", help="Confirm the runs' method if it is your own code.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    item_timeout: SlideTimeout = None,
    again: Again = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Draw heat maps of slides: slide, map with its scale, annotations, top and bottom tiles.

    Stored features are used; nothing is encoded again. Run the same command again to draw only what is missing.
    If the run was trained again, or features or settings have changed, it says so and stops.

    Example: asmil heatmap runs/lab lab/slides/slide-0003.tif --out maps --qupath
    """
    from asmil.api.heatmaps import HeatmapRequest, draw
    from asmil.console import progress_bar
    from asmil.explain.settings import HeatmapSettings
    from asmil.settings.config import parse_settings
    from asmil.settings.made_from import DoneBefore

    settings = parse_settings(
        HeatmapSettings,
        {
            "kinds": tuple(kind or ()),
            "name": name,
            "by": by,
            "scale": scale,
            "limits": limits,
            "color_map": color_map,
            "opacity": opacity,
            "tiles": tiles,
            "tiff": tiff,
            "tiff_mpp": tiff_mpp,
            "qupath": qupath,
            "cut": cut,
            "tile_px": tile_px,
        },
    )
    runs = [Path(word) for word in targets or () if (Path(word) / "config.yaml").is_file()]
    words = [word for word in targets or () if Path(word) not in runs] + list(slide or ())
    request = HeatmapRequest(
        runs, words, out, settings, slides, features, scores, annotations, role, mpp, device, method, mask_value
    )
    done = DoneBefore(again)
    with progress_bar("slides", quiet) as show:
        result = draw(
            request,
            lambda n_slides: slide_engine(engine, address, workers, device, item_timeout, n_slides),
            show,
            done,
        )
    print_notes(done)
    warn_of_changed_labels(runs)
    _summarize(result, out)


MOST_NAMED = 5
"""Slides that are named with a note that they share."""


def _summarize(result: HeatmapResult, out: Path) -> None:
    from asmil.console import messages, results, say
    from asmil.errors import AsmilError

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
    if result.failures:
        listed = "\n".join(f"  - {line}" for line in result.failures)
        total = drawn + len(result.failures)
        raise AsmilError(f"{len(result.failures)} of {total} slides could not be drawn:\n{listed}")
