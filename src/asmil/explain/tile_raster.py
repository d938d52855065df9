"""Tiles as a small image of tile numbers, one pixel per tile; pictures of maps are lookups in it.

The raster contains no values: every map of the slide is `values[raster.index]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.tables.arrays import Booleans, Floats, Integers

TileNumbers = npt.NDArray[np.int32]

NO_TILE = -1
FINER = 8
"""Pixels along the side of a tile, if the tiles are not on a common grid."""
MOST_PIXELS = 64_000_000
LARGEST_STRAY = 0.02
"""Largest distance of a tile from its position on the grid, as a share of the step (or one pixel, if that is more)."""


@dataclass(frozen=True)
class TileRaster:
    """The tile at each position of a slide.

    index: rows x columns, the number of the tile at each pixel; NO_TILE where there is none
    left, top: level-0 position of its upper left corner
    cell: width and height of a pixel, in level-0 pixels
    """

    index: TileNumbers
    left: float
    top: float
    cell: tuple[float, float]

    def at(self, x: npt.ArrayLike, y: npt.ArrayLike) -> TileNumbers:
        """The tiles at the level-0 positions of the columns `x` and rows `y` of a picture, len(y) x len(x)."""
        columns, inside_x = _cells(np.asarray(x, dtype=np.float64), self.left, self.cell[0], self.index.shape[1])
        rows, inside_y = _cells(np.asarray(y, dtype=np.float64), self.top, self.cell[1], self.index.shape[0])
        tiles = self.index[rows][:, columns]
        tiles[~inside_y] = NO_TILE
        tiles[:, ~inside_x] = NO_TILE
        return tiles


def tile_raster(coords: npt.ArrayLike, tile_px: float, most_pixels: int = MOST_PIXELS) -> TileRaster:
    """The raster of tiles with the upper left corners `coords` (N x 2, x and y) and the side `tile_px`, at level 0.

    Tiles on a common grid become one pixel each. If they overlap, each is drawn as a square of one step in its middle.
    Tiles without a common grid (one grid per piece of tissue) are drawn on a finer raster, 8 pixels per side, or fewer
    if it would have more than `most_pixels`.
    """
    corners = np.asarray(coords, dtype=np.float64).reshape(-1, 2)
    if len(corners) == 0:
        raise AsmilError("there are no tiles to draw")
    if not tile_px > 0:
        raise AsmilError(f"tiles of {tile_px:g} level-0 pixels cannot be drawn; give their side with --tile-px")
    grid = _common_grid(corners, tile_px, most_pixels)
    return _finer_raster(corners, tile_px, most_pixels) if grid is None else grid


def _common_grid(corners: Floats, tile_px: float, most_pixels: int) -> TileRaster | None:
    """One pixel per tile; None if the tiles are not on a common grid, or if two of them are at the same position."""
    # a step wider than a tile is a gap between tiles: the step of the grid is then the side of a tile
    widest = max(tile_px * (1 + LARGEST_STRAY), tile_px + 1)
    measured = [_step(corners[:, axis]) for axis in (0, 1)]
    steps = np.array([tile_px if step is None or step > widest else step for step in measured])
    corner = corners.min(axis=0)
    positions = (corners - corner) / steps
    whole = np.rint(positions)
    stray = np.abs(positions - whole) * steps
    if (stray > np.maximum(1.0, LARGEST_STRAY * steps)).any():
        return None
    columns, rows = whole.astype(np.int64).T
    shape = (int(rows.max()) + 1, int(columns.max()) + 1)
    if shape[0] * shape[1] > most_pixels:
        return None
    index = np.full(shape, NO_TILE, dtype=np.int32)
    index[rows, columns] = np.arange(len(corners))
    if np.count_nonzero(index >= 0) < len(corners):
        return None
    left, top = corner + (tile_px - steps) / 2
    return TileRaster(index, float(left), float(top), (float(steps[0]), float(steps[1])))


def _step(positions: Floats) -> float | None:
    """The step of a grid along one axis, None for a single row or column.

    The median difference, adjusted to the extent, since fractional steps were rounded for every tile.
    """
    differences = np.diff(np.unique(positions))
    differences = differences[differences > 0.5]
    if len(differences) == 0:
        return None
    usual = float(np.median(differences))
    extent = float(positions.max() - positions.min())
    return extent / max(1, round(extent / usual))


def _finer_raster(corners: Floats, tile_px: float, most_pixels: int) -> TileRaster:
    """Several pixels per tile. Where tiles overlap, the middle of a tile is drawn over the borders of the others."""
    corner = corners.min(axis=0)
    extent = corners.max(axis=0) - corner + tile_px
    cell = max(tile_px / FINER, float(np.sqrt(extent[0] * extent[1] / most_pixels)))
    columns, rows = (max(1, int(np.ceil(side / cell))) for side in extent)
    index = np.full((rows, columns), NO_TILE, dtype=np.int32)
    first = np.rint((corners - corner) / cell).astype(np.int64)
    numbers = np.arange(len(corners), dtype=np.int32)[:, None, None]
    side = max(1, round(tile_px / cell))
    for rim in sorted({0, side // 4, (side - 1) // 2}):
        offsets = np.arange(rim, max(rim + 1, side - rim))
        at_row = np.minimum(first[:, 1, None] + offsets, rows - 1)
        at_column = np.minimum(first[:, 0, None] + offsets, columns - 1)
        index[at_row[:, :, None], at_column[:, None, :]] = numbers
    return TileRaster(index, float(corner[0]), float(corner[1]), (cell, cell))


def _cells(positions: Floats, start: float, cell: float, count: int) -> tuple[Integers, Booleans]:
    cells = np.floor((positions - start) / cell).astype(np.int64)
    inside = (cells >= 0) & (cells < count)
    return np.clip(cells, 0, count - 1), inside
