"""Figures of localization: the FROC curves, and the slides one by one."""

from __future__ import annotations

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asmil.evaluation.figures import COLORS, STYLE, svg_text
from asmil.evaluation.localization.run import Localization
from asmil.evaluation.localization.words import scaling_title

SPREAD = 0.16
"""Half the width over which the points of a scaling are spread, so that equal ones can be told apart."""


def froc_figure(found: Localization) -> str | None:
    """Sensitivity over false positives a slide, a line a scaling; rings are the six points that the score averages."""
    curves = [(scaling, one.froc) for scaling, one in found.summary.scaled.items() if not one.froc.reason]
    if not curves:
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(5.4, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for number, (scaling, froc) in enumerate(curves):
            color = COLORS[number % len(COLORS)]
            fp, sensitivity = froc.average_fp[::-1], froc.sensitivity[::-1]
            last = max(*froc.fp_targets, fp[-1])
            steps = "default" if froc.options.rule == "linear" else "steps-post"
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
        axes.set(xlim=(0, 16), ylim=(-0.02, 1.02), xlabel=f"false positives a {over}", ylabel="lesions found")
        axes.set_title(f"FROC, preset {found.settings.preset}, {found.settings.conversion}")
        axes.legend(loc="upper left")
        return svg_text(figure)


def slides_figure(found: Localization) -> str | None:
    """Dice of every tumor slide and specificity of every normal one, a column a scaling; bars are the means."""
    panels = []
    if found.summary.n_tumor:
        panels.append(("Dice of tumor slides", "dice"))
    if found.summary.n_normal:
        panels.append(("specificity of normal slides", "specificity"))
    with rc_context(STYLE):
        figure = Figure(figsize=(5.4, 3.6), layout="constrained")
        for place, (title, measure) in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), place + 1)
            for number, scaling in enumerate(found.judging.scalings):
                values = np.array([getattr(one.scaled[scaling], measure) for one in found.slides])
                _draw_points(axes, number, values[~np.isnan(values)])
            names = [scaling_title(scaling).replace(", ", "\n") for scaling in found.judging.scalings]
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
