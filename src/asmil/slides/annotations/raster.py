"""Shapes as masks: a pixel belongs to a shape if its center does."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from shapely.geometry import MultiPolygon, Polygon
from shapely.geometry.polygon import LinearRing

from asmil.slides.polygon_grid import PointGrid, locate_points

Mask = NDArray[np.bool_]
STEPS = 256
"""Corners are rounded to this part of a mask pixel, so that containment is decided in whole numbers."""


def rasterize(shape: MultiPolygon, mask_shape: tuple[int, int], downsample: float) -> Mask:
    """The mask (rows x columns) of a shape given in level-0 pixels; what lies beyond its edges is cut off.

    downsample: level-0 pixels along the side of a mask pixel
    """
    mask = np.zeros(mask_shape, dtype=np.bool_)
    for polygon in shape.geoms:
        _draw(mask, polygon, STEPS / downsample)
    return mask


def _draw(mask: Mask, polygon: Polygon, scale: float) -> None:
    rows, columns = mask.shape
    left, top, right, bottom = (bound * scale / STEPS for bound in polygon.bounds)
    first_column, last_column = max(math.floor(left), 0), min(math.ceil(right) + 1, columns)
    first_row, last_row = max(math.floor(top), 0), min(math.ceil(bottom) + 1, rows)
    if first_column >= last_column or first_row >= last_row:
        return
    corner = (first_column * STEPS + STEPS // 2, first_row * STEPS + STEPS // 2)
    grid = PointGrid(*corner, STEPS, STEPS, last_column - first_column, last_row - first_row)
    inside = _covered(polygon.exterior, grid, scale)
    for hole in polygon.interiors:
        inside &= ~_covered(hole, grid, scale)
    mask[first_row:last_row, first_column:last_column] |= inside.T


def _covered(ring: LinearRing, grid: PointGrid, scale: float) -> Mask:
    """Columns x rows: the points within a ring or on it."""
    corners = np.rint(np.asarray(ring.coords)[:-1, :2] * scale).astype(np.int64)
    found = locate_points(corners, grid)
    return found.inside | found.boundary
