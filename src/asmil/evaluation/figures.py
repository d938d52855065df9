"""What figures share (style, tiles as an image, SVG and PNG), and the learning curves."""

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
from asmil.tasks.checked_arrays import Floats

Integers = npt.NDArray[np.int64]

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


def tile_pitch(coords: Integers) -> float:
    """The distance between neighboring tiles, in the unit of the coordinates: the median over tiles.

    It is the larger of the distances in x and y to the nearest other tile, so on a grid it is the step.
    """
    places = np.unique(coords, axis=0)
    if len(places) == 1:
        return 1.0
    from scipy.spatial import cKDTree

    distances, _ = cKDTree(places).query(places, k=2, p=np.inf)
    return float(np.median(distances[:, 1]))


def tile_cells(coords: Integers, max_cells: int) -> tuple[Integers, tuple[int, int]]:
    """The cell of each tile in a flattened image, and the rows and columns of that image.

    If more than `max_cells` tiles lie along the longer side, several share a cell.
    """
    corner = coords.min(axis=0)
    extent = (coords.max(axis=0) - corner).astype(np.float64)
    pitch = max(tile_pitch(coords), float(extent.max()) / (max_cells - 1))
    places = np.floor((coords - corner) / pitch + 1e-6).astype(np.int64)
    columns, rows = (places.max(axis=0) + 1).tolist()
    return places[:, 1] * columns + places[:, 0], (rows, columns)


def raster(values: Floats, cells: Integers, shape: tuple[int, int]) -> Floats:
    """An image of the tiles' values: the largest of each cell, NaN where there is no tile."""
    image = np.full(shape[0] * shape[1], -np.inf)
    np.maximum.at(image, cells, values)
    image[np.isneginf(image)] = np.nan
    return image.reshape(shape)
