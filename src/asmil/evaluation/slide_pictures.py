"""Pictures of slides for reports: the slide itself, and the values of its tiles drawn on it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap

from asmil.errors import AsmilError
from asmil.reporting import Figure
from asmil.reporting.drawing import new_figure, plain_text, png_bytes, raster, tile_cells, tile_pitch
from asmil.reporting.formats import format_significant
from asmil.slides.discovery import SlideFile, find_slides
from asmil.slides.opening import open_slide
from asmil.slides.overview import read_overview

Floats = npt.NDArray[np.float64]
MOST_CELLS = 400
"""Along the longer side of a map."""
OVERVIEW_PX = 700
MOST_OUTLINE_PIXELS = 800
OPACITY = 0.6
HEAT, OUTLINE, NO_TILE = "viridis", "#e4312b", "#eef1f4"
CALLED = ListedColormap(["#d5dbe2", "#e08a1e"]).with_extremes(bad="white")
PANEL_WIDTH, PANEL_HEIGHTS, TEXT_HEIGHT, DOTS_PER_INCH = 4.0, (1.0, 4.4), 0.75, 110


@dataclass(frozen=True)
class DrawnSlide:
    """A slide as it is drawn.

    coords: N x 2 corners of tiles in level-0 pixels; tile_px: their side; mpp: microns per level-0 pixel, if known
    tumor: a mask of the annotated tumor with `downsample` level-0 pixels to a mask pixel, if there is one
    image: the slide file, if there is one
    """

    name: str
    coords: npt.NDArray[np.int64]
    tile_px: float
    mpp: float | None = None
    image: SlideFile | None = None
    tumor: npt.NDArray[np.bool_] | None = None
    downsample: int = 1


def slide_files(manifest: Any) -> dict[str, SlideFile]:
    """The slide images of a cohort by name; none where they are not reachable."""
    try:
        return {file.name: file for file in find_slides(Path(str(manifest)))}
    except AsmilError:
        return {}


def slide_panels(slide: DrawnSlide, heat: Floats, label: str, calls: dict[str, npt.NDArray[np.bool_]]) -> list[Figure]:
    """The slide (where there is an image), its map with a scale in numbers, and for every title the tiles called."""
    overview = _overview(slide)
    panels = [Figure(_draw(slide, None, None, overview), f"{slide.name}: slide", "slide")] * (overview is not None)
    panels.append(Figure(_draw(slide, heat, label, overview), f"{slide.name}: map", label))
    for title, called in calls.items():
        content = _draw(slide, called.astype(np.float64), None, None)
        panels.append(Figure(content, f"{slide.name}: {title}", title))
    return panels


def _overview(slide: DrawnSlide) -> tuple[npt.NDArray[np.uint8], tuple[float, float]] | None:
    """The pixels of the whole slide, and the level-0 pixels of each; None without a readable image."""
    if slide.image is None:
        return None
    with suppress(AsmilError), open_slide(slide.image.path, slide.image.mpp) as image:
        found = read_overview(image, max_side=OVERVIEW_PX)
        return found.pixels, found.downsample
    return None


def _draw(slide: DrawnSlide, values: Floats | None, label: str | None, overview: Any) -> bytes:
    """The overview, or the values of the tiles on it (without an overview on a plain ground)."""
    left, top = (slide.coords.min(axis=0) - slide.tile_px).tolist()
    right, bottom = (slide.coords.max(axis=0) + 2 * slide.tile_px).tolist()
    height = float(np.clip(PANEL_WIDTH * (bottom - top) / (right - left), *PANEL_HEIGHTS))
    with new_figure(PANEL_WIDTH, height + TEXT_HEIGHT * (label is not None), axes_grid=False) as figure:
        axes = figure.add_subplot()
        if overview is not None:
            pixels, (step_x, step_y) = overview
            rows, columns = pixels.shape[:2]
            shown = (
                pixels if values is None else np.repeat(pixels.mean(axis=2, keepdims=True), 3, axis=2).astype(np.uint8)
            )
            axes.imshow(shown, extent=(0, columns * step_x, rows * step_y, 0))
        if values is not None:
            drawn = _draw_tiles(axes, slide, values, label, OPACITY if overview is not None else 1.0)
            if label is not None:
                bar = figure.colorbar(drawn, ax=axes, location="bottom", fraction=0.05, pad=0.03, aspect=30)
                bar.set_label(plain_text(label), fontsize=8)
        if slide.tumor is not None:
            _draw_outline(axes, slide.tumor, slide.downsample)
        axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        _draw_scale_bar(axes, slide.mpp, right - left)
        return png_bytes(figure, DOTS_PER_INCH)


def _draw_tiles(axes: Axes, slide: DrawnSlide, values: Floats, label: str | None, opacity: float) -> Any:
    import matplotlib

    colors: Colormap = CALLED if label is None else matplotlib.colormaps[HEAT].with_extremes(bad=(1, 1, 1, 0))
    cells, shape = tile_cells(slide.coords, MOST_CELLS)
    corner = slide.coords.min(axis=0)
    longest = float((slide.coords.max(axis=0) - corner).max())
    step = max(tile_pitch(slide.coords), longest / (MOST_CELLS - 1)) if len(slide.coords) > 1 else slide.tile_px
    left, top = corner.tolist()
    extent = (left, left + shape[1] * step, top + shape[0] * step, top)
    ends = (0.0, 1.0) if label is None else (float(values.min()), float(values.max()))
    return axes.imshow(
        raster(values, cells, shape),
        cmap=colors,
        vmin=ends[0],
        vmax=ends[1],
        alpha=opacity,
        interpolation="nearest",
        extent=extent,
    )


def _draw_outline(axes: Axes, tumor: npt.NDArray[np.bool_], downsample: int) -> None:
    every = max(1, max(tumor.shape) // MOST_OUTLINE_PIXELS)
    padded = np.pad(tumor[::every, ::every], 1).astype(np.float64)
    rows, columns = ((np.arange(length) - 0.5) * every * downsample for length in padded.shape)
    axes.contour(columns, rows, padded, levels=[0.5], colors=OUTLINE, linewidths=1.2)


def _draw_scale_bar(axes: Axes, mpp: float | None, width_px: float) -> None:
    """A bar of a round length, about a fifth of the picture; nothing where the resolution is unknown."""
    if mpp is None:
        return
    rough = width_px * mpp / 5
    power = 10.0 ** np.floor(np.log10(rough))
    length_um = max(step * power for step in (1, 2, 5) if step * power <= rough)
    text = f"{format_significant(length_um / 1000)} mm" if length_um >= 1000 else f"{length_um:g} µm"
    axes.plot([0.04, 0.04 + length_um / mpp / width_px], [0.03, 0.03], color="black", lw=3, transform=axes.transAxes)
    axes.text(0.04, 0.045, text, fontsize=8, transform=axes.transAxes)
