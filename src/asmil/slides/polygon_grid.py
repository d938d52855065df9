"""Find the points of a regular grid inside a polygon: `cv2.pointPolygonTest` for all points at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asmil.tables.arrays import Booleans, Integers


@dataclass(frozen=True)
class PointGrid:
    """The points (x0 + i step_x, y0 + j step_y) for i < columns, j < rows."""

    x0: int
    y0: int
    step_x: int
    step_y: int
    columns: int
    rows: int


@dataclass(frozen=True)
class Containment:
    """Columns x rows: which points lie strictly inside, and which on the boundary."""

    inside: Booleans
    boundary: Booleans


def locate_points(polygon: NDArray[np.integer], grid: PointGrid) -> Containment:
    """Locate the points of a grid by the parity of the boundary lines to their right.

    All computations use integers, so that points on the boundary are exact. Time is linear in the number of polygon
    points, of crossings with the grid's rows, and of grid points. Differences of coordinates must be below about 2^30.
    """
    start = polygon.astype(np.int64) - (grid.x0, grid.y0)
    low, high = _lines_meeting_rows(start, grid)
    crossings = np.zeros((grid.columns + 1, grid.rows), dtype=np.int64)
    boundary = np.zeros((grid.columns, grid.rows), dtype=np.bool_)
    sloped = low[:, 1] < high[:, 1]
    _count_sloped(low[sloped], high[sloped], grid, crossings, boundary)
    _mark_level(low[~sloped], high[~sloped], grid, boundary)
    to_the_right = crossings[:0:-1].cumsum(axis=0)[::-1]
    return Containment((to_the_right % 2 == 1) & ~boundary, boundary)


def _lines_meeting_rows(start: Integers, grid: PointGrid) -> tuple[Integers, Integers]:
    """The lower and upper ends of the polygon's lines, without the many short ones that lie between two rows."""
    y, next_y = start[:, 1], np.roll(start[:, 1], -1)
    lowest, highest = np.minimum(y, next_y), np.maximum(y, next_y)
    rows_below = highest // grid.step_y
    meets = (rows_below * grid.step_y >= lowest) & (highest >= 0) & (lowest <= (grid.rows - 1) * grid.step_y)
    lines = np.flatnonzero(meets)
    first, second = start[lines], start[(lines + 1) % len(start)]
    upward = (second[:, 1] >= first[:, 1])[:, None]
    return np.where(upward, first, second), np.where(upward, second, first)


def _count_sloped(low: Integers, high: Integers, grid: PointGrid, crossings: Integers, boundary: Booleans) -> None:
    """Count the crossings of lines with rows; crossings[i]: those to the right of exactly i columns."""
    first = np.maximum(_ceil_divide(low[:, 1], grid.step_y), 0)
    last = np.minimum(high[:, 1] // grid.step_y, grid.rows - 1)
    line, row = _ranges(first, last)
    low, high = low[line], high[line]
    rise = high[:, 1] - low[:, 1]
    # the crossing is at x = run / rise
    run = low[:, 0] * rise + (row * grid.step_y - low[:, 1]) * (high[:, 0] - low[:, 0])
    spacing = rise * grid.step_x
    column = run // spacing
    hit = (column * spacing == run) & (column >= 0) & (column < grid.columns)
    boundary[column[hit], row[hit]] = True
    # a line includes its lower end but not its upper one, so that each corner counts once
    owned = row * grid.step_y < high[:, 1]
    reached = np.clip(_ceil_divide(run[owned], spacing[owned]), 0, grid.columns)
    np.add.at(crossings, (reached, row[owned]), 1)


def _mark_level(low: Integers, high: Integers, grid: PointGrid, boundary: Booleans) -> None:
    """Mark the points on lines that run along a row."""
    left, right = np.minimum(low[:, 0], high[:, 0]), np.maximum(low[:, 0], high[:, 0])
    first = np.maximum(_ceil_divide(left, grid.step_x), 0)
    last = np.minimum(right // grid.step_x, grid.columns - 1)
    line, column = _ranges(first, last)
    boundary[column, (low[:, 1] // grid.step_y)[line]] = True


def _ranges(first: Integers, last: Integers) -> tuple[Integers, Integers]:
    """All (i, k) with first[i] <= k <= last[i]."""
    counts = np.maximum(last - first + 1, 0)
    line = np.repeat(np.arange(len(counts)), counts)
    begins = np.cumsum(counts) - counts
    return line, np.arange(len(line)) - begins[line] + first[line]


def _ceil_divide(numbers: Integers, by: int | Integers) -> Integers:
    return -(-numbers // by)
