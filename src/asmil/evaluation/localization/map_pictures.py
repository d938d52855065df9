"""Pictures of slides: the heat map with the outline of the tumor, and which tiles each scaling calls positive."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from asmil.evaluation.figures import STYLE, plain_text, png_bytes
from asmil.evaluation.localization.judge import Mask
from asmil.evaluation.localization.measures import SlideMeasures
from asmil.evaluation.localization.run import Localization
from asmil.evaluation.localization.scaling import THRESHOLDS
from asmil.evaluation.localization.words import scaling_title
from asmil.evaluation.stability.tile_raster import raster, tile_cells, tile_pitch
from asmil.tasks.checked_arrays import Floats

NORMAL_PICTURED = 2
MOST_CELLS = 400
"""Along the longer side of a map."""
MOST_OUTLINE_PIXELS = 800
OUTLINE, NO_TILE = "#e4312b", "#eef1f4"
CALLED = ListedColormap(["#d5dbe2", "#e08a1e"]).with_extremes(bad="white")
PANEL_WIDTH, MOST_WIDTH, PANEL_HEIGHTS, ROW_TEXT = 3.4, 11.0, (0.5, 3.2), 0.55
"""In inches; ROW_TEXT is what the words above and below a row of maps take."""


def pictured_slides(found: Localization) -> list[SlideMeasures]:
    """The first tumor slides, whose masks were kept, and the first normal ones: not chosen by how they look."""
    normal = [one for one in found.slides if one.is_normal]
    return [one for one in found.slides if one.name in found.masks] + normal[:NORMAL_PICTURED]


def map_picture(found: Localization) -> bytes | None:
    """A row a slide: the heat map, then the tiles above the cut of every scaling; a red line outlines the tumor."""
    slides = pictured_slides(found)
    if not slides:
        return None
    columns = 1 + len(found.judging.scalings)
    with rc_context({**STYLE, "axes.grid": False}):
        width = min(PANEL_WIDTH * columns, MOST_WIDTH)
        heights = [_panel_height(one, width / columns) for one in slides]
        figure = Figure(figsize=(width, sum(heights)), layout="constrained")
        panels = figure.subplots(len(slides), columns, squeeze=False, height_ratios=heights)
        for row, one in zip(panels, slides, strict=True):
            _draw_row(list(row), one, found.masks.get(one.name))
        return png_bytes(figure, 120)


def _panel_height(one: SlideMeasures, width: float) -> float:
    extent = np.ptp(one.map.coords, axis=0) + one.map.frame.tile_px
    return float(np.clip(width * extent[1] / extent[0], *PANEL_HEIGHTS)) + ROW_TEXT


def _draw_row(row: Sequence[Axes], one: SlideMeasures, tumor: Mask | None) -> None:
    minmax = one.scaled["minmax"].scores
    heat = matplotlib.colormaps["viridis"].with_extremes(bad=NO_TILE)
    _draw_map(row[0], one, minmax, heat, tumor)
    kind = f"normal, p(tumor) {one.tumor_probability:.2f}" if tumor is None else f"p(tumor) {one.tumor_probability:.2f}"
    row[0].set_title(f"{plain_text(one.name)} ({kind})", fontsize=9)
    row[0].set_xlabel("heat map, min-max", fontsize=8)
    for axes, (scaling, measures) in zip(row[1:], one.scaled.items(), strict=True):
        _draw_map(axes, one, (measures.scores >= THRESHOLDS[scaling]).astype(np.float64), CALLED, tumor)
        value = f"Dice {measures.dice:.3f}" if tumor is not None else f"specificity {measures.specificity:.3f}"
        axes.set_xlabel(f"{scaling_title(scaling)}: {value}", fontsize=8)


def _draw_map(
    axes: Axes, one: SlideMeasures, values: Floats, colors: matplotlib.colors.Colormap, tumor: Mask | None
) -> None:
    coords, tile_px = one.map.coords, one.map.frame.tile_px
    cells, shape = tile_cells(coords, MOST_CELLS)
    corner = coords.min(axis=0)
    longest = float((coords.max(axis=0) - corner).max())
    step = max(tile_pitch(coords), longest / (MOST_CELLS - 1)) if len(coords) > 1 else tile_px
    left, top = corner.tolist()
    extent = (left, left + shape[1] * step, top + shape[0] * step, top)
    axes.imshow(raster(values, cells, shape), cmap=colors, vmin=0, vmax=1, interpolation="nearest", extent=extent)
    if tumor is not None:
        _draw_outline(axes, tumor, one.map.frame.downsample)
    axes.set(xlim=extent[:2], ylim=extent[2:], xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _draw_outline(axes: Axes, tumor: Mask, downsample: int) -> None:
    every = max(1, max(tumor.shape) // MOST_OUTLINE_PIXELS)
    padded = np.pad(tumor[::every, ::every], 1).astype(np.float64)
    rows, columns = ((np.arange(length) - 0.5) * every * downsample for length in padded.shape)
    axes.contour(columns, rows, padded, levels=[0.5], colors=OUTLINE, linewidths=1.0)
