"""Attention maps of one slide during training: one row per run, one column per epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import SubFigure

from asmil.errors import AsmilError
from asmil.evaluation.stability.analysis import RunStability, TrainingStability
from asmil.evaluation.stability.figures import default_epochs, legend_names, nearest_recording, training_of
from asmil.explain.color_scale import RELATIVE_TICKS
from asmil.reporting import Figure
from asmil.reporting.drawing import (
    ANY_GROUND,
    COLORS,
    TWO_COLUMNS,
    new_figure,
    plain_text,
    png_bytes,
    raster,
    tile_cells,
)
from asmil.reporting.formats import format_share, format_small
from asmil.tables.arrays import Floats

Size = tuple[float, float]

LOW, HIGH = RELATIVE_TICKS[0], RELATIVE_TICKS[-1]
STRIP_BINS = 200
DOTS_PER_INCH = 230
FIGURE_WIDTHS, PANEL_HEIGHTS, ROW_TEXT = (5.0, TWO_COLUMNS), (0.45, 2.4), 0.95
"""In inches; ROW_TEXT is the height of the text above and below a row of maps."""


@dataclass(frozen=True)
class Row:
    """The maps of one run: its training and the recording shown in each column."""

    name: str
    stability: RunStability
    training: TrainingStability
    slide: int
    recordings: tuple[int | None, ...]


def maps_figure(stabilities: Sequence[RunStability], slide: str, epochs: Sequence[float] | None = None) -> Figure:
    """The maps of a slide at the given epochs; by default from start to end, including the kept epoch."""
    rows = map_rows(stabilities, slide, epochs)
    record, slide_index = rows[0].training.record, rows[0].slide
    caption = (
        f"Slide {slide} ({record.classes[record.targets[slide_index]]}, {record.n_tiles[slide_index]} tiles). "
        f"Colors show attention × N (1: the average tile) on one scale for all runs and epochs, from {LOW:g} to "
        f"{HIGH:g}; values beyond have the color of the end. If tiles share a cell, the largest value is shown. Below "
        "each map: the JSD to the previous recording, and the effective share of tiles. A map that does not change is "
        "useful only if it is not flat."
    )
    if any(row.training.record.coords(row.slide) is None for row in rows):
        caption += (
            " Features without coordinates have no map: their tiles are sorted by their final weight, largest on the "
            "left."
        )
    missing = [name for name in legend_names(stabilities) if name not in {row.name for row in rows}]
    if missing:
        caption += f" Not recorded by {', '.join(missing)}."
    return Figure(_draw(rows), "Attention maps", caption)


def map_rows(stabilities: Sequence[RunStability], slide: str, epochs: Sequence[float] | None = None) -> list[Row]:
    """The non-empty rows, in order of time; given epochs are the columns of all rows."""
    named = zip(legend_names(stabilities), stabilities, strict=True)
    recorded = [(name, run, training) for name, run in named if (training := training_of(run, slide)) is not None]
    trainings = [training for _, _, training in recorded]
    wanted = default_epochs(trainings) if epochs is None else list(epochs)
    chosen = [
        _unrepeated([nearest_recording(training.record.epochs, epoch) for epoch in wanted]) for training in trainings
    ]
    if epochs is None:
        # the kept epoch is inserted in order of time, so the columns of two runs may show different epochs
        shown = [
            sorted({training.kept, *(recording for recording in known if recording is not None)})
            for known, training in zip(chosen, trainings, strict=True)
        ]
        chosen = [[*known, *[None] * (max(map(len, shown)) - len(known))] for known in shown]
    columns = [column for column in zip(*chosen, strict=True) if any(recording is not None for recording in column)]
    if not columns:
        last = max(float(training.record.epochs[-1]) for training in trainings)
        asked = ", ".join(f"{epoch:g}" for epoch in wanted)
        raise AsmilError(f"nothing was recorded at the epochs {asked}; choose epochs from 0 to {last:g}")
    return [
        Row(name, stability, training, training.record.slides.index(slide), recordings)
        for (name, stability, training), recordings in zip(recorded, zip(*columns, strict=True), strict=True)
        if any(recording is not None for recording in recordings)
    ]


def _unrepeated(recordings: Sequence[int | None]) -> list[int | None]:
    return [None if recording in recordings[:index] else recording for index, recording in enumerate(recordings)]


def _draw(rows: Sequence[Row]) -> bytes:
    n_columns = len(rows[0].recordings)
    width = float(np.clip(2.4 * n_columns + 1, *FIGURE_WIDTHS))
    sizes = [_panel_size(row, (width - 1) / n_columns) for row in rows]
    heights = [height + ROW_TEXT for _, height in sizes]
    with new_figure(width, sum(heights), axes_grid=False, **ANY_GROUND) as figure:
        parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)
        for part, row, size in zip(parts.flat, rows, sizes, strict=True):
            _draw_row(part, row, size)
        return png_bytes(figure, DOTS_PER_INCH)


def _panel_size(row: Row, width: float) -> Size:
    """Width and height in inches: a map fills the width of its column, within limits."""
    coords = row.training.record.coords(row.slide)
    low, high = PANEL_HEIGHTS
    if coords is None:
        return width, (low + high) / 2
    extent = np.ptp(coords, axis=0) + 1
    return width, float(np.clip(width * extent[1] / extent[0], low, high))


def _most_cells(coords: npt.NDArray[np.int64], size: Size) -> int:
    """Cells along the longer side of a map of this size, about one per dot."""
    extent = np.ptp(coords, axis=0) + 1
    inches = extent.max() * (np.array(size) / extent).min()
    return max(2, int(0.9 * DOTS_PER_INCH * inches))


def _draw_row(part: SubFigure, row: Row, size: Size) -> None:
    record = row.training.record
    shown = [recording for recording in row.recordings if recording is not None]
    weights = record.attention(row.slide, [*shown, len(record.epochs) - 1]) * int(record.n_tiles[row.slide])
    order = np.argsort(-weights[-1], kind="stable")
    panels = [part.add_subplot(1, len(row.recordings), column + 1) for column in range(len(row.recordings))]
    alarms = ", ".join(alarm.name for alarm in row.stability.alarms)
    title = f"{row.name} ({row.stability.fold_names[row.training.fold]}, seed {row.training.seed})"
    part.suptitle(
        plain_text(f"{title}; alarm: {alarms}" if alarms else title),
        x=0.005,
        ha="left",
        fontsize=10,
        fontweight="bold",
    )
    coords = record.coords(row.slide)
    cells, shape = (None, (0, 0)) if coords is None else tile_cells(coords, _most_cells(coords, size))
    for axes in panels:
        axes.set_axis_off()
    drawn = [axes for axes, recording in zip(panels, row.recordings, strict=True) if recording is not None]
    for axes, recording, values in zip(drawn, shown, weights, strict=False):
        axes.set_axis_on()
        if cells is None:
            _draw_strip(axes, values[order])
        else:
            _draw_map(axes, raster(values, cells, shape))
        _label(axes, row, recording)
    if cells is None:
        drawn[0].set_ylabel("attention × N")
    else:
        scale = drawn[0].images[0]
        bar = part.colorbar(scale, ax=panels, label="attention × N", extend="both", fraction=0.02, pad=0.01, aspect=12)
        bar.set_ticks(list(RELATIVE_TICKS), labels=[f"{tick:g}" for tick in RELATIVE_TICKS])
        bar.minorticks_off()


def _draw_map(axes: Axes, image: Floats) -> None:
    axes.imshow(
        np.clip(image, LOW, HIGH),  # a logarithmic scale has no color for 0
        cmap=matplotlib.colormaps["viridis"].with_extremes(bad="#eef1f4"),
        norm=LogNorm(LOW, HIGH),
        interpolation="nearest",
    )
    axes.set(xticks=[], yticks=[], anchor="W")
    axes.spines[:].set_visible(False)


def _draw_strip(axes: Axes, weights: Floats) -> None:
    bins = np.array_split(weights, min(STRIP_BINS, len(weights)))
    heights = np.clip([part.max() for part in bins], LOW, HIGH) - LOW
    starts = np.linspace(0, 1, len(bins), endpoint=False)
    axes.bar(starts, heights, width=1 / len(bins), bottom=LOW, align="edge", color=COLORS[0])
    axes.axhline(1, color="#8a94a0", linewidth=0.8, linestyle=":")
    axes.set(xlim=(0, 1), yscale="log", ylim=(LOW, 1.02 * HIGH), xticks=[])
    axes.set_yticks(list(RELATIVE_TICKS), labels=[f"{tick:g}" for tick in RELATIVE_TICKS])
    axes.minorticks_off()


def _label(axes: Axes, row: Row, recording: int) -> None:
    epoch = float(row.training.record.epochs[recording])
    kept = recording == row.training.kept
    axes.set_title(f"epoch {epoch:.4g}{', kept' if kept else ''}", fontsize=9, fontweight="bold" if kept else "normal")
    times = row.stability.times
    here = times[
        (times["fold"] == row.training.fold)
        & (times["seed"] == row.training.seed)
        & (times["slide"] == row.training.record.slides[row.slide])
        & (times["epoch"] == epoch)
    ].iloc[0]
    moved = "" if np.isnan(here["jsd_previous"]) else f"JSD {format_small(here['jsd_previous'])}"
    axes.set_xlabel(f"{moved}\neffective {format_share(here['effective_share'])}", fontsize=8)
