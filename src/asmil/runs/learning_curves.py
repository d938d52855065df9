"""Learning curves: losses and validation metrics over the epochs of trainings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import MaxNLocator

from asmil.reporting.drawing import COLORS, new_figure, plain_text, svg_text
from asmil.runs.epochs import Training
from asmil.tables.arrays import Floats

TITLES = {
    "ce": "cross-entropy",
    "bce": "binary cross-entropy",
    "nll": "negative log-likelihood",
    "cox": "Cox partial likelihood",
    "squared": "squared error",
    "huber": "Huber loss",
    "svm": "smooth SVM",
    "kl": "Kullback-Leibler divergence",
    "cluster": "tile clustering",
    "branch": "single branches",
    "max": "highest tile",
    "tier1": "first tier (pseudo-bags)",
    "macro_f1": "macro-F1",
    "macro_auc": "macro-AUC",
    "c_index": "C-index",
    "r2": "R²",
    "mae": "MAE",
    "spearman": "Spearman",
}
"""Titles of loss parts and metrics in figures; other names are used unchanged."""


def learning_figures(trainings: Sequence[Training]) -> dict[str, str]:
    """Figures of losses and validation metrics over epochs, by title; thin lines are trainings, thick lines their mean.

    A ring (for one training: a dashed line) marks the epoch that was kept. If a method trains in stages, lines break
    and a dotted line separates the stages, which train different models. Empty if nothing was recorded.
    """
    return {title: _figure(trainings, title, columns) for title, columns in _panels(trainings) if columns}


def _figure(trainings: Sequence[Training], title: str, columns: Sequence[str]) -> str:
    with new_figure(3.7, 3.1) as figure:
        axes = figure.add_subplot()
        later = stage_starts(trainings[0])[1:]
        axes.set_xlabel("epoch" + "".join(f" (from {start:.0f}: {plain_text(name)})" for start, name in later))
        for number, column in enumerate(columns):
            name = column.partition(".")[2]
            title_of = TITLES.get(_task_loss(trainings) if name == "loss" and len(columns) == 1 else name)
            label = plain_text(title_of or name.replace("_", " "))
            _draw_course(axes, trainings, column, label, COLORS[number % len(COLORS)])
            if len(columns) == 1:
                axes.set_ylabel(label)
        if len(trainings) == 1 and trainings[0].selected_epoch is not None:
            axes.axvline(trainings[0].selected_epoch, color="#39424e", linewidth=1, linestyle="--")
        for start, _ in later:
            axes.axvline(start - 0.5, color="#8a94a0", linewidth=1, linestyle=":")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_title(title)
        if len(columns) > 1:
            axes.legend(loc="best")
        return svg_text(figure)


def _panels(trainings: Iterable[Training]) -> list[tuple[str, list[str]]]:
    """Titles and columns: parts of the training loss, the validation loss, and the validation metrics."""
    columns = list(dict.fromkeys(name for training in trainings for name in _recorded(training.epochs)))
    train = [name for name in columns if name.startswith("train.")]
    val = [name for name in columns if name.startswith("val.")]
    losses = [name for name in val if name == "val.loss"]
    # a single part is the loss itself
    alone = [name for name in train if name == "train.loss"] if len(train) <= 2 else []
    training_loss = ("training loss", alone) if alone else ("training loss and its parts", train)
    return [
        training_loss,
        ("validation loss", losses),
        ("validation metrics", [name for name in val if name not in losses]),
    ]


def _task_loss(trainings: Sequence[Training]) -> str:
    """The name of the task's own loss, the first part of the training loss; that is also the validation loss."""
    parts = (name for name in _recorded(trainings[0].epochs) if name.startswith("train.") and name != "train.loss")
    return next(parts, "").partition(".")[2]


def _recorded(epochs: pd.DataFrame) -> list[str]:
    """Columns with at least one finite number."""
    return [str(name) for name in epochs if np.isfinite(_numbers(epochs[name])).any()]


def _draw_course(axes: Axes, trainings: Sequence[Training], column: str, label: str, color: str) -> None:
    courses = [_course(training, column) for training in trainings if column in training.epochs]
    if len(courses) > 1:
        lines = [np.column_stack([course.index, course]) for course in courses]
        axes.add_collection(LineCollection(lines, colors=color, linewidths=0.7, alpha=0.3))
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
    """The first epoch and the name of every stage of a training; empty if there are no stages."""
    epochs = training.epochs
    if "stage" not in epochs:
        return []
    begins = epochs["stage"] != epochs["stage"].shift()
    return [
        (float(epoch), str(name)) for epoch, name in zip(epochs["epoch"][begins], epochs["stage"][begins], strict=True)
    ]


def _mark_selected(axes: Axes, trainings: Sequence[Training], column: str, color: str) -> None:
    kept = pd.concat(
        training.epochs.loc[training.epochs["epoch"] == training.selected_epoch, ["epoch", column]]
        for training in trainings
        if column in training.epochs
    )
    axes.plot(kept["epoch"], _numbers(kept[column]), "o", color=color, mfc="white", ms=4.5)


def _numbers(column: pd.Series[Any]) -> Floats:
    return np.asarray(pd.to_numeric(column, errors="coerce"), dtype=np.float64)
