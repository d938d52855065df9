"""Figures of localization: FROC curves, the measures of single slides, and heat maps with the annotated tumor."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap

from asmil.evaluation.localization.localize import Localization
from asmil.evaluation.localization.scaling import THRESHOLDS, scaling_title
from asmil.evaluation.localization.slide_evaluator import Mask, SlideMeasures
from asmil.reporting.drawing import COLORS, new_figure, plain_text, png_bytes, raster, svg_text, tile_cells, tile_pitch
from asmil.tasks.checked_arrays import Floats

SPREAD = 0.16
"""Half the width over which the points of a scaling are spread, so that equal values stay visible."""
NORMAL_PICTURED = 2
MOST_CELLS = 400
"""Along the longer side of a map."""
MOST_OUTLINE_PIXELS = 800
OUTLINE, NO_TILE = "#e4312b", "#eef1f4"
CALLED = ListedColormap(["#d5dbe2", "#e08a1e"]).with_extremes(bad="white")
PANEL_WIDTH, MOST_WIDTH, PANEL_HEIGHTS, ROW_TEXT = 3.4, 11.0, (0.5, 3.2), 0.55
"""In inches; ROW_TEXT is the height of the text above and below a row of maps."""


def froc_figure(found: Localization) -> str | None:
    """Sensitivity over false positives per slide, one line per scaling; rings are the points that FROC averages."""
    curves = [(scaling, one.froc) for scaling, one in found.summary.scaled.items() if not one.froc.reason]
    if not curves:
        return None
    with new_figure(5.4, 3.6) as figure:
        axes = figure.add_subplot()
        for number, (scaling, froc) in enumerate(curves):
            color = COLORS[number % len(COLORS)]
            fp, sensitivity = froc.average_fp[::-1], froc.sensitivity[::-1]
            last = max(*froc.fp_targets, fp[-1])
            # between two points as the rule reads them, so that the rings lie on the line
            steps = {"linear": "default", "up": "steps-pre", "down": "steps-post"}[froc.options.rule]
            axes.plot(
                np.append(fp, last),
                np.append(sensitivity, sensitivity[-1]),
                color=color,
                linewidth=1.6,
                drawstyle=steps,
                label=f"{scaling}  {froc.score:.3f}",
            )
            axes.plot(froc.fp_targets, froc.sensitivities, "o", color=color, mfc="white", ms=5)
        over = "normal slide" if curves[0][1].options.fp_slides == "normal" else "slide"
        axes.set_xscale("symlog", base=2, linthresh=0.25, linscale=0.5)
        axes.set_xticks(curves[0][1].fp_targets, [f"{target:g}" for target in curves[0][1].fp_targets])
        axes.set_xticks([], minor=True)
        axes.set(
            xlim=(0, 16), ylim=(-0.02, 1.02), xlabel=f"false positives per {over}", ylabel="sensitivity for lesions"
        )
        axes.set_title(f"FROC, preset {found.settings.preset}, {found.settings.conversion}")
        axes.legend(loc="upper left")
        return svg_text(figure)


def slides_figure(found: Localization) -> str | None:
    """Dice of every tumor slide and specificity of every normal one, one column per scaling; bars are means."""
    panels = []
    if found.summary.n_tumor:
        panels.append(("Dice of tumor slides", "dice"))
    if found.summary.n_normal:
        panels.append(("specificity of normal slides", "specificity"))
    with new_figure(5.4, 3.6) as figure:
        for place, (title, measure) in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), place + 1)
            for number, scaling in enumerate(found.protocol.scalings):
                values = np.array([getattr(one.scaled[scaling], measure) for one in found.slides])
                _draw_points(axes, number, values[~np.isnan(values)])
            names = [scaling_title(scaling).replace(", ", "\n") for scaling in found.protocol.scalings]
            axes.set_xticks(range(len(names)), names)
            axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(-0.03, 1.03))
            axes.set_title(title)
            axes.grid(visible=False, axis="x")
        return svg_text(figure)


def _draw_points(axes: Axes, place: int, values: np.ndarray) -> None:
    color = COLORS[place % len(COLORS)]
    spread = np.linspace(-SPREAD, SPREAD, len(values)) if len(values) > 1 else np.zeros(len(values))
    axes.plot(place + spread, values, "o", color=color, alpha=0.6, ms=4, markeredgewidth=0)
    if len(values):
        axes.hlines(values.mean(), place - 0.3, place + 0.3, color=color, linewidth=2)


def pictured_slides(found: Localization) -> list[SlideMeasures]:
    """The first tumor slides, whose masks were kept, and the first normal ones."""
    normal = [one for one in found.slides if one.is_normal]
    return [one for one in found.slides if one.name in found.masks] + normal[:NORMAL_PICTURED]


def maps_figure(found: Localization) -> bytes | None:
    """One row per slide: the heat map, then the tiles above the cut of each scaling; a red line outlines the tumor."""
    slides = pictured_slides(found)
    if not slides:
        return None
    columns = 1 + len(found.protocol.scalings)
    width = min(PANEL_WIDTH * columns, MOST_WIDTH)
    heights = [_panel_height(one, width / columns) for one in slides]
    with new_figure(width, sum(heights), axes_grid=False) as figure:
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


def _draw_map(axes: Axes, one: SlideMeasures, values: Floats, colors: Colormap, tumor: Mask | None) -> None:
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
