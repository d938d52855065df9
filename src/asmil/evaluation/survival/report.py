"""Sections of the report that only survival runs have: risk groups, single times, and curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from asmil.evaluation.survival.evaluate import SurvivalEvaluation, TimeCurve
from asmil.reporting import Block, Cell, Figure, Heading, Row, SideBySide, Table, estimate_cell
from asmil.reporting.drawing import COLORS, GUIDE, ONE_COLUMN, TEXT, new_figure, svg_text
from asmil.reporting.formats import format_p, format_times
from asmil.tables.time_units import UNKNOWN_UNIT
from asmil.tasks.risk_groups import RiskGroups

GROUP_COLORS = {"low risk": COLORS[0], "middle risk": COLORS[4], "high risk": COLORS[1]}


def kaplan_meier_figure(groups: RiskGroups, unit: str = UNKNOWN_UNIT) -> str:
    """Kaplan-Meier curves of the risk groups with 95 % bands, censored patients as ticks, numbers at risk below."""
    with new_figure(ONE_COLUMN, 3.9 + 0.2 * len(groups.groups)) as figure:
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
        _write_counts(counts, groups, unit)
        return svg_text(figure)


def time_figure(evaluation: SurvivalEvaluation, name: str, title: str, label: str) -> str | None:
    """AUC(t), or the Brier score of model and Kaplan-Meier, over the window with its band; None if undefined."""
    curve, reference = evaluation.curves.get(name), evaluation.curves.get("reference")
    if curve is None:
        return None
    with new_figure(ONE_COLUMN, 3.4) as figure:
        axes = figure.add_subplot()
        if name == "auc":
            axes.axhline(0.5, color=GUIDE, linewidth=1, linestyle="--")
        elif reference is not None:
            axes.plot(reference.times, reference.mean, "--", color=TEXT, linewidth=1.4, label="Kaplan-Meier")
        _draw(axes, curve, COLORS[0], "model" + ", mean over trainings" * (len(curve.per_training) > 1))
        axes.set(title=title, xlabel=evaluation.run.time_unit, ylabel=label)
        if name == "brier":
            axes.set_ylim(bottom=0)
        axes.legend(loc="best")
        return svg_text(figure)


def _draw(axes: Axes, curve: TimeCurve, color: str, label: str) -> None:
    if len(curve.per_training) > 1:
        for values in curve.per_training.values():
            axes.plot(curve.times, values, color=color, linewidth=0.7, alpha=0.3)
    axes.fill_between(curve.times, curve.low, curve.high, color=color, alpha=0.14, linewidth=0)
    axes.plot(curve.times, curve.mean, color=color, linewidth=1.8, label=label)


def _write_counts(axes: Axes, groups: RiskGroups, unit: str) -> None:
    """The numbers at risk as text below their times."""
    axes.set(ylim=(len(groups.groups) - 0.5, -0.5), xlabel=unit, xticks=groups.at_risk_times)
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


def survival_blocks(evaluation: SurvivalEvaluation) -> list[Block]:
    """Risk groups, single times and curves of one run."""
    groups = evaluation.risk_groups
    curves = kaplan_meier_figure(groups, evaluation.run.time_unit)
    auc = time_figure(evaluation, "auc", "AUC(t)", "AUC: event by t against followed longer")
    brier = time_figure(evaluation, "brier", "Brier score (lower is better)", "Brier score")
    return [
        Heading("Risk groups"),
        _risk_groups(evaluation),
        Figure(
            curves, "Kaplan-Meier curves by risk group", f"Bands: 95 % intervals; ticks: censored. {_log_rank(groups)}"
        ),
        Heading("At single times"),
        _times(evaluation),
        SideBySide([Figure(auc, "AUC over time"), Figure(brier, "Brier score over time")]),
        "Bands: 95 % patient-level bootstrap intervals."
        + " Thin lines: single trainings." * (evaluation.n_trainings > 1),
    ]


def _risk_groups(evaluation: SurvivalEvaluation) -> Table:
    groups = evaluation.risk_groups
    rows: list[Row] = []
    for group in groups.groups:
        median = Cell(format_times(group.median), interval=format_times(*group.median_interval))
        rows.append([group.name, str(group.patients), str(group.events), median])
    caption = (
        f"Cut at the {groups.cut} of the predicted risks within each fold; the groups of all folds are joined. "
        f"{_log_rank(groups)} Intervals: 95 %."
    )
    columns = ["group", "patients", "events", f"median survival, {evaluation.run.time_unit}"]
    return Table(
        columns, rows, title=f"risk groups; {_log_rank(groups).lower().rstrip('.')}", caption=caption, in_terminal=True
    )


def _log_rank(groups: RiskGroups) -> str:
    p = "undefined" if math.isnan(groups.p) else f"p {'' if groups.p < 0.001 else '= '}{format_p(groups.p)}"
    return f"Log-rank test: {p}."


def _times(evaluation: SurvivalEvaluation) -> Table:
    rows: list[Row] = [
        [f"{t:.1f} {evaluation.run.time_unit}", estimate_cell(auc), estimate_cell(evaluation.brier_at[t])]
        for t, auc in evaluation.auc_at.items()
    ]
    low, high = evaluation.window
    unit = evaluation.run.time_unit
    over = "" if math.isnan(low) else f" Curves and their means cover {low:.1f} to {high:.1f} {unit}."
    value = "Mean over folds and seeds" if evaluation.n_trainings > 1 else "Value"
    caption = f"{value} with its 95 % patient-level bootstrap interval.{over}"
    return Table(["time", "AUC(t)", "Brier score"], rows, caption=caption)


def survival_reading(evaluations: Sequence[SurvivalEvaluation]) -> list[str]:
    """How to read the numbers; see docs/survival_evaluation.md for details."""
    cuts = " or ".join(dict.fromkeys(evaluation.risk_groups.cut for evaluation in evaluations))
    return [
        "One sample is one patient. Risks of different trainings have no common scale, so each training is evaluated "
        "on the test patients of its own fold, and values are means over folds and seeds. Intervals are 95 % "
        "percentile intervals of a bootstrap over patients; folds share training patients, so they are not intervals "
        "for a new training.",
        "C-index: the share of comparable pairs of patients that the risk orders correctly; 0.5 is chance level. The "
        "strict form leaves out equal times and counts equal risks as wrong.",
        "AUC(t) separates patients with the event by time t from patients followed longer than t. The Brier score is "
        "the squared error of the predicted survival at t; lower is better. Its reference is the Kaplan-Meier curve of "
        "the evaluated patients, the same for every patient. Both weight patients by the inverse probability of being "
        "followed, which assumes that censoring does not depend on the risk.",
        f"Risk groups: cut at the {cuts} of the predicted risks within a fold, without any outcome; groups of folds "
        "are joined. A single new patient needs a cut fixed beforehand. The log-rank test ignores that folds share "
        "training patients; with cross-validation its p-value is somewhat too small.",
    ]
