"""Figures of a survival report, as SVG text."""

from __future__ import annotations

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asmil.evaluation.figures import COLORS, STYLE, svg_text
from asmil.evaluation.survival.evaluate import SurvivalEvaluation, TimeCurve
from asmil.evaluation.survival.risk_groups import RiskGroups

GROUP_COLORS = {"low risk": COLORS[0], "middle risk": COLORS[4], "high risk": COLORS[1]}


def kaplan_meier_figure(groups: RiskGroups) -> str:
    """Kaplan-Meier curves of the risk groups with 95 % bands, censored patients as ticks, numbers at risk below."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7.4, 4.3 + 0.2 * len(groups.groups)), layout="constrained")
        axes, counts = figure.subplots(2, 1, sharex=True, height_ratios=[10, 0.9 * len(groups.groups)])
        for group in groups.groups:
            color = GROUP_COLORS[group.name]
            label = f"{group.name}: {group.patients} patients, {group.events} events"
            axes.step(group.times, group.survival, where="post", color=color, linewidth=1.8, label=label)
            axes.fill_between(group.times, group.low, group.high, step="post", color=color, alpha=0.14, linewidth=0)
            heights = group.survival[np.searchsorted(group.times, group.censored, side="right") - 1]
            axes.plot(group.censored, heights, "|", color=color, markersize=5, markeredgewidth=0.8)
        longest = max(group.times.max() for group in groups.groups)
        axes.set(ylim=(0, 1.02), xlim=(-0.02 * longest, 1.02 * longest), ylabel="survival")
        axes.set_title("Kaplan-Meier curves by risk group")
        axes.legend(loc="best")
        _write_counts(counts, groups)
        return svg_text(figure)


def auc_figure(evaluation: SurvivalEvaluation) -> str | None:
    """AUC(t) over the window; None where it is undefined."""
    curve = evaluation.curves.get("auc")
    if curve is None:
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(4.8, 3.4), layout="constrained")
        axes = figure.add_subplot()
        axes.axhline(0.5, color="#b9c0c8", linewidth=1, linestyle="--")
        _draw(axes, curve, COLORS[0], "mean over trainings")
        axes.set(title="AUC(t)", xlabel="months", ylabel="AUC: event by t against followed longer")
        axes.legend(loc="best")
        return svg_text(figure)


def brier_figure(evaluation: SurvivalEvaluation) -> str | None:
    """The Brier score over the window, with that of Kaplan-Meier; None without curves."""
    curve, reference = (evaluation.curves.get(name) for name in ("brier", "reference"))
    if curve is None or reference is None:
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(4.8, 3.4), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(reference.times, reference.mean, color="#39424e", linewidth=1.4, linestyle="--", label="Kaplan-Meier")
        _draw(axes, curve, COLORS[0], "model, mean over trainings")
        axes.set(title="Brier score (lower is better)", xlabel="months", ylabel="Brier score")
        axes.set_ylim(bottom=0)
        axes.legend(loc="best")
        return svg_text(figure)


def _draw(axes: Axes, curve: TimeCurve, color: str, label: str) -> None:
    if len(curve.per_training) > 1:
        for values in curve.per_training.values():
            axes.plot(curve.times, values, color=color, linewidth=0.7, alpha=0.3)
    axes.fill_between(curve.times, curve.low, curve.high, color=color, alpha=0.14, linewidth=0)
    axes.plot(curve.times, curve.mean, color=color, linewidth=1.8, label=label)


def _write_counts(axes: Axes, groups: RiskGroups) -> None:
    """The numbers at risk as text under the times they are of."""
    axes.set(ylim=(len(groups.groups) - 0.5, -0.5), xlabel="months", xticks=groups.at_risk_times)
    axes.set_yticks(range(len(groups.groups)), [group.name for group in groups.groups])
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.tick_params(axis="y", pad=10)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_title("number at risk", loc="left", fontsize=8.5, fontweight="normal")
    for row, (group, counts) in enumerate(zip(groups.groups, groups.at_risk, strict=True)):
        for t, count in zip(groups.at_risk_times, counts, strict=True):
            axes.text(t, row, str(count), ha="center", va="center", fontsize=8.5, color=GROUP_COLORS[group.name])
