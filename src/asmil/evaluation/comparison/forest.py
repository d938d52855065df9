"""The forest plot: every difference with its interval, one panel per metric."""

from __future__ import annotations

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asmil.evaluation.comparison.findings import Comparison, Difference
from asmil.evaluation.figures import COLORS, STYLE, plain_text, svg_text
from asmil.tasks.prediction_format import Metric

LONGEST_NAME = 34


def forest_figure(found: Comparison) -> str:
    """Differences (run minus reference) as dots, 95 % intervals as lines; the line at 0 is no difference."""
    n_pairs = len(found.differences) // len(found.metrics)
    with rc_context({**STYLE, "axes.grid.axis": "x", "axes.spines.left": False}):
        figure = Figure(figsize=(10.2, 1.25 + 0.42 * n_pairs), layout="constrained")
        panels = figure.subplots(1, len(found.metrics), sharey=True, squeeze=False)[0]
        for axes, metric in zip(panels, found.metrics, strict=True):
            _draw(axes, metric, [one for one in found.differences if one.metric == metric])
        return svg_text(figure)


def _draw(axes: Axes, metric: Metric, differences: list[Difference]) -> None:
    axes.axvline(0, color="#8a94a0", linewidth=1, linestyle="--")
    for place, one in enumerate(differences):
        color = COLORS[0] if one.interval.excludes_zero else "#8a94a0"
        axes.plot(list(one.interval), [place, place], color=color, linewidth=2.2, solid_capstyle="round")
        axes.plot(one.value, place, "o", color=color, markersize=6)
    names = [f"{_short(one.run)} − {_short(one.reference)}" for one in differences]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    better = "larger is better" if metric.larger_is_better else "smaller is better"
    axes.set(title=plain_text(metric.title), xlabel=f"difference ({better})")


def _short(name: str) -> str:
    text = name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"
    return plain_text(text)
