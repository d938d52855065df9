"""Where the tiles of a slide lie, as one small picture whose pixels are numbers of tiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.cohort.reader import common_step

MOST_CELLS = 2_000_000
FINEST = 8
"""A tile is at most this many cells wide and high."""
NO_TILE = -1


@dataclass(frozen=True)
class TileGrid:
    """Cells of `cell` level-0 pixels from the corner (x, y) on; `tiles` names the tile of every cell, or -1."""

    x: int
    y: int
    cell: float
    tiles: npt.NDArray[np.int32]


def tile_grid(coords: npt.NDArray[np.int64], tile_px: float) -> TileGrid:
    """The grid of tiles with these corners, N x 2.

    Tiles on one grid take a cell each. Where they lie on several grids (each piece of tissue its own) or overlap, cells
    are finer, as far as the picture stays small; a cell then shows the last tile whose center is nearest to it.
    """
    x, y = coords.min(axis=0).tolist()
    step = min(float(common_step(coords) or tile_px), float(tile_px))
    places = (coords - [x, y]) / step
    if np.abs(places - np.rint(places)).max(initial=0) < 1e-6 and step == tile_px:
        return TileGrid(x, y, step, _one_cell_each(np.rint(places).astype(np.int64)))
    extent = coords.max(axis=0) - [x, y] + tile_px
    wide = FINEST
    while wide > 1 and np.prod(np.ceil(extent * wide / tile_px)) > MOST_CELLS:
        wide //= 2
    cell = max(tile_px / wide, float(np.sqrt(np.prod(extent) / MOST_CELLS)))
    return TileGrid(x, y, cell, _several_cells(coords - [x, y], tile_px, cell))


def _one_cell_each(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    columns, rows = (places.max(axis=0) + 1).tolist()
    tiles = np.full((rows, columns), NO_TILE, dtype=np.int32)
    tiles[places[:, 1], places[:, 0]] = np.arange(len(places), dtype=np.int32)
    return tiles


def _several_cells(corners: npt.NDArray[np.int64], tile_px: float, cell: float) -> npt.NDArray[np.int32]:
    """Each tile covers the cells whose centers lie in it; the nearer tile center wins."""
    first = np.ceil(corners / cell - 0.5).astype(np.int64)
    last = np.maximum(np.ceil((corners + tile_px) / cell - 0.5).astype(np.int64) - 1, first)
    columns, rows = (last.max(axis=0) + 1).tolist()
    tiles = np.full((rows, columns), NO_TILE, dtype=np.int32)
    nearest = np.full((rows, columns), np.inf)
    numbers = np.arange(len(corners), dtype=np.int32)
    spans = (last - first).max(axis=0) + 1
    for down in range(int(spans[1])):
        for right in range(int(spans[0])):
            column, row = first[:, 0] + right, first[:, 1] + down
            inside = (column <= last[:, 0]) & (row <= last[:, 1])
            c, r, n = column[inside], row[inside], numbers[inside]
            centers = (np.stack([c, r], axis=1) + 0.5) * cell
            distance = np.square(centers - (corners[inside] + tile_px / 2)).sum(axis=1)
            # farthest first, so that the nearest is written last
            order = np.argsort(-distance, kind="stable")
            c, r, n, distance = c[order], r[order], n[order], distance[order]
            nearer = distance < nearest[r, c]
            tiles[r[nearer], c[nearer]] = n[nearer]
            nearest[r[nearer], c[nearer]] = distance[nearer]
    return tiles
