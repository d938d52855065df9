"""The forest plot: every difference with its interval, a panel a measure."""

from __future__ import annotations

import math

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asmil.evaluation.comparison.findings import Comparison, Difference
from asmil.evaluation.comparison.measures import Measure
from asmil.evaluation.figures import COLORS, STYLE, plain_text, svg_text

LONGEST_NAME = 34


def forest_figure(found: Comparison) -> str:
    """Differences (run minus reference) as dots, 95 % intervals as lines; the line at 0 is no difference."""
    n_pairs = len(found.differences) // len(found.measures)
    with rc_context({**STYLE, "axes.grid.axis": "x", "axes.spines.left": False}):
        figure = Figure(figsize=(10.2, 1.25 + 0.42 * n_pairs), layout="constrained")
        panels = figure.subplots(1, len(found.measures), sharey=True, squeeze=False)[0]
        for axes, measure in zip(panels, found.measures, strict=True):
            _draw(axes, measure, [one for one in found.differences if one.measure == measure])
        return svg_text(figure)


def _draw(axes: Axes, measure: Measure, differences: list[Difference]) -> None:
    axes.axvline(0, color="#8a94a0", linewidth=1, linestyle="--")
    for place, one in enumerate(differences):
        low, high = one.interval
        clear = not math.isnan(low) and (low > 0 or high < 0)
        color = COLORS[0] if clear else "#8a94a0"
        axes.plot([low, high], [place, place], color=color, linewidth=2.2, solid_capstyle="round")
        axes.plot(one.value, place, "o", color=color, markersize=6)
    names = [f"{_short(one.run)} − {_short(one.reference)}" for one in differences]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    better = "larger is better" if measure.larger_is_better else "smaller is better"
    axes.set(title=plain_text(measure.title), xlabel=f"difference ({better})")


def _short(name: str) -> str:
    text = name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"
    return plain_text(text)
