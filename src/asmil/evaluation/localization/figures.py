"""Localization figures: FROC curves, metrics of single slides, and heat maps with the annotated tumor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from asmil.evaluation.localization.localize import Localization
from asmil.evaluation.localization.scaling import THRESHOLDS, Scaling, scaling_title
from asmil.evaluation.localization.slide_evaluator import SlideMeasures
from asmil.explain.report_panels import slide_panels
from asmil.explain.tile_map import SlideFrame, TileMap
from asmil.reporting import Figure as Picture
from asmil.reporting.drawing import COLORS, new_figure, svg_text
from asmil.slides.annotations import trace_outlines
from asmil.slides.discovery import SlideFile

SPREAD = 0.16
"""Half the width of the horizontal jitter of points, so that equal values stay visible."""
NORMAL_PICTURED = 2


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
            # connect points by the same rule as the metric, so that the rings lie on the line
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
        axes.set_title("FROC")
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
    """The first tumor slides, whose masks were kept, and the first normal slides."""
    normal = [one for one in found.slides if one.is_normal]
    return [one for one in found.slides if one.name in found.masks] + normal[:NORMAL_PICTURED]


def slide_figures(found: Localization, one: SlideMeasures, images: Mapping[str, SlideFile]) -> list[Picture]:
    """The slide, its heat map, and the tiles above the threshold of each scaling, with the outline of the tumor.

    Scalings that mark the same tiles share a panel.
    """
    frame, mask = one.map.frame, found.masks.get(one.name)
    scalings_of: dict[bytes, list[Scaling]] = {}
    marked_tiles: dict[bytes, np.ndarray] = {}
    for scaling, measures in one.scaled.items():
        marked = measures.scores >= THRESHOLDS[scaling]
        marked_tiles[marked.tobytes()] = marked
        scalings_of.setdefault(marked.tobytes(), []).append(scaling)
    calls = {}
    for key, scalings in scalings_of.items():
        measures = one.scaled[scalings[0]]
        value = f"Dice {measures.dice:.3f}" if mask is not None else f"specificity {measures.specificity:.3f}"
        calls[f"{' and '.join(map(scaling_title, scalings))}: {value}"] = marked_tiles[key]
    return slide_panels(
        SlideFrame(one.name, one.map.coords, frame.tile_px, frame.size_px, frame.mpp),
        images.get(one.name),
        TileMap(one.map.heat, found.map_kind, title=f"heat map: {found.map_kind}"),
        calls,
        None if mask is None else trace_outlines(mask, frame.downsample),
        [f"{alarm.name}." for alarm in found.alarms],
    )
