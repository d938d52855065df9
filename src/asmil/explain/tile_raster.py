"""Tiles as a small image of tile numbers, one pixel per tile, from which any picture is a lookup.

Values never enter the raster: a map, another class or another epoch of the same slide is `values[raster.index]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.tables.arrays import Floats

Integers = npt.NDArray[np.int64]
TileNumbers = npt.NDArray[np.int32]

NO_TILE = -1
FINER = 8
"""Pixels along the side of a tile where the tiles lie on no common grid."""
MOST_PIXELS = 64_000_000
LARGEST_STRAY = 0.02
"""How far a tile may lie off a grid, as a share of its step (or one pixel), and still be on it."""


@dataclass(frozen=True)
class TileRaster:
    """Which tile is where.

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
        columns, inside_x = _places(np.asarray(x, dtype=np.float64), self.left, self.cell[0], self.index.shape[1])
        rows, inside_y = _places(np.asarray(y, dtype=np.float64), self.top, self.cell[1], self.index.shape[0])
        found = self.index[rows][:, columns]
        found[~inside_y] = NO_TILE
        found[:, ~inside_x] = NO_TILE
        return found

    def picture(self, width: int, height: int, downsample: tuple[float, float]) -> TileNumbers:
        """The tiles at the pixels of an overview of the slide, height x width, by nearest neighbor.

        downsample: level-0 pixels of an overview pixel, (x, y)
        """
        return self.at((np.arange(width) + 0.5) * downsample[0], (np.arange(height) + 0.5) * downsample[1])


def tile_raster(coords: npt.ArrayLike, tile_px: float, most_pixels: int = MOST_PIXELS) -> TileRaster:
    """The raster of tiles with the upper left corners `coords` (N x 2, x and y) and the side `tile_px`, at level 0.

    Tiles on a common grid become one pixel each. If they overlap, each is drawn as the square in its middle that is
    its own. Tiles on no common grid (one grid per piece of tissue) are drawn on a finer raster, 8 pixels per side, or
    fewer where it would have more than `most_pixels`.
    """
    corners = np.asarray(coords, dtype=np.float64).reshape(-1, 2)
    if len(corners) == 0:
        raise AsmilError("there are no tiles to draw")
    if not tile_px > 0:
        raise AsmilError(f"tiles of {tile_px:g} level-0 pixels cannot be drawn; give their side with --tile-px")
    grid = _common_grid(corners, tile_px, most_pixels)
    return _finer_raster(corners, tile_px, most_pixels) if grid is None else grid


def _common_grid(corners: Floats, tile_px: float, most_pixels: int) -> TileRaster | None:
    """One pixel per tile; None if the tiles lie on no common grid, have gaps between them or share a place."""
    # two far tiles in a row are no step: wider than a tile, the grid is that of the tile's side
    widest = max(tile_px * (1 + LARGEST_STRAY), tile_px + 1)
    found = [_step(corners[:, axis]) for axis in (0, 1)]
    steps = np.array([tile_px if step is None or step > widest else step for step in found])
    corner = corners.min(axis=0)
    places = (corners - corner) / steps
    whole = np.rint(places)
    stray = np.abs(places - whole) * steps
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

    The most frequent difference, adjusted to the extent: steps that are no whole numbers were rounded tile by tile.
    """
    differences = np.diff(np.unique(positions))
    differences = differences[differences > 0.5]
    if len(differences) == 0:
        return None
    usual = float(np.median(differences))
    extent = float(positions.max() - positions.min())
    return extent / max(1, round(extent / usual))


def _finer_raster(corners: Floats, tile_px: float, most_pixels: int) -> TileRaster:
    """Several pixels per tile. Where tiles overlap, the middle of a tile lies over the rims of the others."""
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


def _places(positions: Floats, start: float, cell: float, count: int) -> tuple[Integers, npt.NDArray[np.bool_]]:
    places = np.floor((positions - start) / cell).astype(np.int64)
    inside = (places >= 0) & (places < count)
    return np.clip(places, 0, count - 1), inside
