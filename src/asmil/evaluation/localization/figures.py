"""Localization figures: FROC curves, metrics of single slides, and heat maps with the annotated tumor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from asmil.evaluation.localization.localize import Localization
from asmil.evaluation.localization.scaling import THRESHOLDS, Scaling, scaling_title
from asmil.evaluation.localization.slide_evaluator import SlideMeasures
from asmil.explain.report_panels import slide_panels
from asmil.explain.tile_map import TileMap
from asmil.reporting import Figure as Picture
from asmil.reporting.drawing import COLORS, ONE_COLUMN, new_figure, svg_text
from asmil.slides.annotations import trace_outlines
from asmil.slides.discovery import SlideFile

SPREAD = 0.16
"""Half the width of the horizontal jitter of points, so that equal values stay visible."""
NORMAL_PICTURED = 2


def froc_figure(localization: Localization) -> str | None:
    """Sensitivity over false positives per slide, one line per scaling; rings are the points that FROC averages."""
    curves = [
        (scaling, summary.froc) for scaling, summary in localization.summary.scaled.items() if not summary.froc.reason
    ]
    if not curves:
        return None
    with new_figure(ONE_COLUMN, 3.6) as figure:
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


def slides_figure(localization: Localization) -> str | None:
    """Dice of every tumor slide and specificity of every normal one, one column per scaling; bars are means."""
    panels = []
    if localization.summary.n_tumor:
        panels.append(("Dice of tumor slides", "dice"))
    if localization.summary.n_normal:
        panels.append(("specificity of normal slides", "specificity"))
    with new_figure(ONE_COLUMN, 3.6) as figure:
        for column, (title, measure) in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), column + 1)
            for number, scaling in enumerate(localization.protocol.scalings):
                values = np.array([getattr(slide.scaled[scaling], measure) for slide in localization.slides])
                _draw_points(axes, number, values[~np.isnan(values)])
            names = [scaling_title(scaling).replace(", ", "\n") for scaling in localization.protocol.scalings]
            axes.set_xticks(range(len(names)), names)
            axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(-0.03, 1.03))
            axes.set_title(title)
            axes.grid(visible=False, axis="x")
        return svg_text(figure)


def _draw_points(axes: Axes, column: int, values: np.ndarray) -> None:
    color = COLORS[column % len(COLORS)]
    spread = np.linspace(-SPREAD, SPREAD, len(values)) if len(values) > 1 else np.zeros(len(values))
    axes.plot(column + spread, values, "o", color=color, alpha=0.6, ms=4, markeredgewidth=0)
    if len(values):
        axes.hlines(values.mean(), column - 0.3, column + 0.3, color=color, linewidth=2)


def pictured_slides(localization: Localization) -> list[SlideMeasures]:
    """The first tumor slides, whose masks were kept, and the first normal slides."""
    normal = [slide for slide in localization.slides if slide.is_normal]
    return [slide for slide in localization.slides if slide.name in localization.masks] + normal[:NORMAL_PICTURED]


def slide_figures(localization: Localization, slide: SlideMeasures, images: Mapping[str, SlideFile]) -> list[Picture]:
    """The slide, its heat map, and the tiles above the threshold of each scaling, with the outline of the tumor.

    Scalings that mark the same tiles share a panel.
    """
    frame, mask = slide.map.frame, localization.masks.get(slide.name)
    panels: dict[bytes, tuple[np.ndarray, list[Scaling]]] = {}
    for scaling, measures in slide.scaled.items():
        marked = measures.scores >= THRESHOLDS[scaling]
        panels.setdefault(marked.tobytes(), (marked, []))[1].append(scaling)
    calls = {}
    for marked, scalings in panels.values():
        measures = slide.scaled[scalings[0]]
        value = f"Dice {measures.dice:.3f}" if mask is not None else f"specificity {measures.specificity:.3f}"
        calls[f"{' and '.join(map(scaling_title, scalings))}: {value}"] = marked
    return slide_panels(
        frame,
        images.get(slide.name),
        TileMap(slide.map.heat, localization.map_kind, title=f"heat map: {localization.map_kind}"),
        calls,
        None if mask is None else trace_outlines(mask, frame.downsample),
        [f"{alarm.name}." for alarm in localization.alarms],
    )
