"""The figure of attention during training: movement, cross-entropy and concentration over epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from asmil.evaluation.figures import COLORS, STYLE, plain_text, svg_text
from asmil.evaluation.run import setting
from asmil.evaluation.stability.analysis import RunStability
from asmil.evaluation.stability.figures import legend_names, make_logarithmic
from asmil.reporting import Figure
from asmil.tasks.checked_arrays import Floats

LineStyle = Literal["-", "--", ":"]

PANELS = {
    "jsd_previous": ("movement", "JSD to the previous recording (nats)"),
    "ce": ("fit", "cross-entropy (nats)"),
    "effective_share": ("concentration", "effective share of tiles, exp(H) / N"),
}
LEGEND_COLUMNS = 3
LINE_STYLES: tuple[LineStyle, ...] = ("-", "--", ":")
LOGARITHMIC_FROM = 30.0
"""An axis is logarithmic if the largest value is more than this many times the smallest."""
MAX_POINTS = 400
"""Lines with more recordings are drawn through means of neighbors."""


def course_figure(stabilities: Sequence[RunStability]) -> Figure:
    """JSD, cross-entropy and effective share over epochs, one color per run."""
    names = legend_names(stabilities)
    lines = "Lines are means over the recorded slides."
    if any(len(stability.trainings) > 1 for stability in stabilities):
        lines = "Thin lines are single trainings (means over slides), thick lines the mean over trainings."
    schedules: dict[str, list[str]] = {}
    for name, stability in zip(names, stabilities, strict=True):
        schedules.setdefault(schedule_sentence(stability.config), []).append(name)
    of_all = len(schedules) == 1
    rates = " ".join(
        f"Learning rate: {schedule}" if of_all else f"Learning rate of {', '.join(runs)}: {schedule}"
        for schedule, runs in schedules.items()
    )
    caption = (
        f"{lines} Rings mark the epochs that were kept. Read the first panel together with the last: a flat attention "
        "(share near 1) hardly moves; it is stable but useless. "
        f"{rates}"
    )
    return Figure(_draw(stabilities, names), "Attention during training", caption)


def schedule_sentence(config: Mapping[str, Any]) -> str:
    """The learning-rate schedule of a run, and what it means for the movement at the end."""
    schedule, lr = setting(config, "training", "schedule"), setting(config, "training", "lr")
    if schedule is None or lr is None:
        return "unknown."
    drops = setting(config, "training", "lr_drops") or []
    factor = setting(config, "training", "lr_drop_factor")
    fall = f", times {factor} after epoch {', '.join(map(str, drops))}" if drops else ""
    if schedule == "cosine":
        return (
            f"cosine from {lr:g} to {setting(config, 'training', 'lr_min') or 0:g}{fall}; the steps become so small "
            "that any attention stops moving, so little movement at the end proves little."
        )
    meaning = "any attention moves less after a drop" if drops else "the step size stays the same"
    return f"{schedule}, {lr:g}{fall}; {meaning}."


def _draw(stabilities: Sequence[RunStability], names: Sequence[str]) -> str:
    looks = [_look(number) for number in range(len(stabilities))]
    with rc_context(STYLE):
        figure = Drawing(figsize=(11.2, 3.2 + 0.22 * -(-len(stabilities) // LEGEND_COLUMNS)), layout="constrained")
        # survival and regression have no cross-entropy
        classifies = any(stability.times["ce"].notna().any() for stability in stabilities)
        panels = {column: words for column, words in PANELS.items() if column != "ce" or classifies}
        for place, (column, (title, label)) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), place)
            drawn = [_draw_run(axes, run, column, *look) for run, look in zip(stabilities, looks, strict=True)]
            axes.set(title=title, xlabel="epoch", ylabel=label)
            _scale(axes, np.concatenate(drawn), share=column == "effective_share")
            _scale_epochs(axes)
        handles = [
            Line2D([], [], color=color, linestyle=style, linewidth=1.9, label=plain_text(name))
            for name, (color, style) in zip(names, looks, strict=True)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(LEGEND_COLUMNS, len(handles)))
        return svg_text(figure)


def _look(number: int) -> tuple[str, LineStyle]:
    return COLORS[number % len(COLORS)], LINE_STYLES[number // len(COLORS) % len(LINE_STYLES)]


def _draw_run(axes: Axes, stability: RunStability, column: str, color: str, style: LineStyle) -> Floats:
    """Draw the run; return the values of its mean line."""
    times = stability.times
    by_training = times.groupby(["fold", "seed", "epoch"])[column].mean()
    if len(stability.trainings) > 1:
        for training in stability.trainings:
            one = _thinned(by_training.loc[training.fold, training.seed].dropna())
            axes.plot(one.index, one, color=color, linestyle=style, linewidth=0.7, alpha=0.35)
    mean = _thinned(by_training.groupby("epoch").mean().dropna())
    marker = "o" if len(mean) == 1 else ""
    axes.plot(mean.index, mean, color=color, linestyle=style, linewidth=1.9, marker=marker, markersize=4)
    for training in stability.trainings:
        epoch = float(training.record.epochs[training.kept])
        value = by_training.get((training.fold, training.seed, epoch), np.nan)
        axes.plot(epoch, value, "o", color=color, markerfacecolor="white", markersize=4)
    return np.asarray(mean, dtype=np.float64)


def _thinned(course: pd.Series[float]) -> pd.Series[float]:
    size = -(-len(course) // MAX_POINTS)
    if size <= 1:
        return course
    groups = np.arange(len(course)) // size
    epochs = pd.Series(course.index.to_numpy(dtype=np.float64)).groupby(groups).mean()
    return pd.Series(course.to_numpy()).groupby(groups).mean().set_axis(epochs)


def _scale(axes: Axes, values: Floats, share: bool) -> None:
    positive = values[values > 0]
    if not len(values):
        axes.text(0.5, 0.5, "one recording only:\nno movement to show", ha="center", transform=axes.transAxes)
        axes.set_yticks([])
    elif len(positive) and positive.max() / positive.min() > LOGARITHMIC_FROM:
        make_logarithmic(axes, "y")
    else:
        axes.set_ylim(bottom=0)
    if share:
        axes.set_ylim(top=1.05)


def _scale_epochs(axes: Axes) -> None:
    low, high = axes.get_xlim()
    if high - low < 1:
        axes.set_xlim((low + high) / 2 - 0.5, (low + high) / 2 + 0.5)
    elif high - low > 2:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
