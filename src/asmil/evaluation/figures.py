"""Figures of a report, drawn without a display and returned as SVG text; the style of all figures."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asmil.evaluation.run import Training
from asmil.evaluation.summary import Evaluation

Floats = npt.NDArray[np.float64]

COLORS = ("#2563a8", "#c2571a", "#3f8f5f", "#8a4fa3", "#b58a00", "#5a6472", "#a83250", "#1f8a99")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a94a0",
    "axes.labelcolor": "#39424e",
    "axes.grid": True,
    "grid.color": "#e6e9ed",
    "xtick.color": "#39424e",
    "ytick.color": "#39424e",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "asmil",
}
RATE_GRID = np.linspace(0, 1, 201)


def roc_points(positive: npt.NDArray[np.bool_], score: Floats) -> tuple[Floats, Floats]:
    """False and true positive rates from (0, 0) to (1, 1), a point for every distinct score."""
    order = np.argsort(-score, kind="stable")
    last_of_tie = np.r_[np.flatnonzero(np.diff(score[order])), len(score) - 1]
    true = np.cumsum(positive[order])[last_of_tie]
    false = np.cumsum(~positive[order])[last_of_tie]
    return np.r_[0.0, false / false[-1]], np.r_[0.0, true / true[-1]]


def roc_figure(evaluation: Evaluation) -> str | None:
    """ROC curves, a color a class: thin lines are seeds, the thick one is their mean (true positive rate).

    Two classes mirror each other, so only the second is drawn. None when no class has a curve.
    """
    names = evaluation.run.classes
    labels = [1] if len(names) == 2 else range(len(names))
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6, 4.2), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color="#b9c0c8", linewidth=1, linestyle="--")
        drawn = [_draw_roc(axes, evaluation, label, COLORS[label % len(COLORS)]) for label in labels]
        if not any(drawn):
            return None
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal", title="ROC curves")
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        axes.legend(loc="lower right")
        return svg_text(figure)


def learning_figure(trainings: Sequence[Training]) -> str | None:
    """Losses and validation metrics over epochs: thin lines are trainings, thick ones their mean.

    A ring (one training: a dashed line) marks the epoch that was kept. Where a method trains in stages, lines break
    and a dotted line stands between them: they are of different models. None when nothing was recorded.
    """
    panels = [panel for panel in _panels(trainings) if panel[1]]
    if not panels:
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(3.7 * len(panels), 3.1), layout="constrained")
        for index, (title, columns) in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), index + 1)
            later = stage_starts(trainings[0])[1:]
            axes.set_xlabel("epoch" + "".join(f" (from {start:.0f}: {plain_text(name)})" for start, name in later))
            for number, column in enumerate(columns):
                _draw_course(axes, trainings, column, COLORS[number % len(COLORS)])
            if len(trainings) == 1 and trainings[0].selected_epoch is not None:
                axes.axvline(trainings[0].selected_epoch, color="#39424e", linewidth=1, linestyle="--")
            for start, _ in later:
                axes.axvline(start - 0.5, color="#8a94a0", linewidth=1, linestyle=":")
            axes.set_title(title)
            axes.legend(loc="best")
        return svg_text(figure)


def _draw_roc(axes: Axes, evaluation: Evaluation, label: int, color: str) -> bool:
    curves = []
    for part in evaluation.replicates:
        positive = part.target == label
        if positive.any() and not positive.all():
            false, true = roc_points(positive, part.probabilities[:, label])
            curves.append(np.interp(RATE_GRID, false, true))
            if len(evaluation.replicates) > 1:
                axes.plot(false, true, color=color, linewidth=0.7, alpha=0.35)
    if not curves:
        return False
    mean = np.mean(curves, axis=0)
    row = evaluation.classes[label]
    text = f"{plain_text(row.name)}  AUC {row.metrics['auc'][0]:.3f}"
    axes.plot(np.r_[0.0, RATE_GRID], np.r_[0.0, mean], color=color, linewidth=1.8, label=text)
    return True


def _panels(trainings: Iterable[Training]) -> list[tuple[str, list[str]]]:
    """Titles and columns: parts of the training loss, the validation loss, and the validation metrics."""
    columns = list(dict.fromkeys(name for training in trainings for name in _recorded(training.epochs)))
    train = [name for name in columns if name.startswith("train.")]
    val = [name for name in columns if name.startswith("val.")]
    losses = [name for name in val if name == "val.loss"]
    return [
        ("training loss and its parts", train),
        ("validation loss", losses),
        ("validation metrics", [name for name in val if name not in losses]),
    ]


def _recorded(epochs: pd.DataFrame) -> list[str]:
    """Columns with at least one finite number."""
    return [str(name) for name in epochs if np.isfinite(_numbers(epochs[name])).any()]


def _draw_course(axes: Axes, trainings: Sequence[Training], column: str, color: str) -> None:
    courses = [_course(training, column) for training in trainings if column in training.epochs]
    label = plain_text(column.partition(".")[2].replace("_", " "))
    if len(courses) > 1:
        for course in courses:
            axes.plot(course.index, course, color=color, linewidth=0.7, alpha=0.3)
    mean = pd.concat(courses, axis=1).mean(axis=1).sort_index()
    marker = "o" if len(mean) == 1 else ""
    axes.plot(mean.index, mean, color=color, linewidth=1.7, marker=marker, markersize=3, label=label)
    if column.startswith("val."):
        _mark_selected(axes, trainings, column, color)


def _course(training: Training, column: str) -> pd.Series[float]:
    """A column over the epochs, with a gap before every new stage."""
    course = pd.Series(_numbers(training.epochs[column]), index=training.epochs["epoch"].astype(float))
    gaps = pd.Series(np.nan, index=[start - 0.5 for start, _ in stage_starts(training)[1:]], dtype=float)
    return pd.concat([course, gaps]).sort_index() if len(gaps) else course


def stage_starts(training: Training) -> list[tuple[float, str]]:
    """The first epoch and the name of every stage of a training; none where there are no stages."""
    epochs = training.epochs
    if "stage" not in epochs:
        return []
    begins = epochs["stage"] != epochs["stage"].shift()
    return [
        (float(epoch), str(name)) for epoch, name in zip(epochs["epoch"][begins], epochs["stage"][begins], strict=True)
    ]


def _mark_selected(axes: Axes, trainings: Sequence[Training], column: str, color: str) -> None:
    for training in trainings:
        if column in training.epochs:
            kept = training.epochs[training.epochs["epoch"] == training.selected_epoch]
            axes.plot(kept["epoch"], _numbers(kept[column]), "o", color=color, mfc="white", ms=4.5)


def _numbers(column: pd.Series[Any]) -> Floats:
    return np.asarray(pd.to_numeric(column, errors="coerce"), dtype=np.float64)


def plain_text(text: str) -> str:
    """Text that matplotlib does not read as a formula."""
    return text.replace("\\", "\\\\").replace("$", r"\$")


def svg_text(figure: Figure) -> str:
    """The figure as SVG, the same text for the same figure."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def png_bytes(figure: Figure, dots_per_inch: int) -> bytes:
    """The figure as PNG, for what is made of many small squares or dots."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dots_per_inch, metadata={"Software": None})
    return buffer.getvalue()
