"""Tiles as an image: a cell a tile, however many there are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from asmil.tasks.checked_arrays import Floats

Ints = npt.NDArray[np.int64]


def tile_pitch(coords: Ints) -> float:
    """The distance from a tile to its neighbor, in the unit of the coordinates: the median over tiles.

    It is the larger of the distances in x and y to the nearest other tile, so on a grid exactly its step.
    """
    places = np.unique(coords, axis=0)
    if len(places) == 1:
        return 1.0
    distances, _ = cKDTree(places).query(places, k=2, p=np.inf)
    return float(np.median(distances[:, 1]))


def tile_cells(coords: Ints, max_cells: int) -> tuple[Ints, tuple[int, int]]:
    """For each tile its cell in a flattened image, and the rows and columns of that image.

    Where more than `max_cells` tiles lie along the longer side, several share a cell.
    """
    corner = coords.min(axis=0)
    extent = (coords.max(axis=0) - corner).astype(np.float64)
    pitch = max(tile_pitch(coords), float(extent.max()) / (max_cells - 1))
    places = np.floor((coords - corner) / pitch + 1e-6).astype(np.int64)
    columns, rows = (places.max(axis=0) + 1).tolist()
    return places[:, 1] * columns + places[:, 0], (rows, columns)


def raster(values: Floats, cells: Ints, shape: tuple[int, int]) -> Floats:
    """An image of the tiles' values: the largest of a cell, NaN where no tile lies."""
    image = np.full(shape[0] * shape[1], -np.inf)
    np.maximum.at(image, cells, values)
    image[np.isneginf(image)] = np.nan
    return image.reshape(shape)
