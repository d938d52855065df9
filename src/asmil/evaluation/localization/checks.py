"""Checks of the arrays that localization accepts: masks and corners of tiles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.tasks.checked_arrays import Floats, numbers_of

Booleans = npt.NDArray[np.bool_]


def flags_of(name: str, values: npt.ArrayLike) -> Booleans:
    """Whether a value is not 0, in the shape given; a missing value is refused."""
    # masks of whole slides are large: arrays of booleans and whole numbers have no missing values to look for
    whole = isinstance(values, np.ndarray) and values.dtype.kind in "biu"
    return (np.asarray(values) if whole else numbers_of(name, values)).astype(bool, copy=False)


def mask_of(name: str, values: npt.ArrayLike) -> Booleans:
    """H x W: whether a pixel is not 0."""
    mask = flags_of(name, values)
    if mask.ndim != 2:
        raise AsmilError(f"a {name} has two axes, rows and columns, not the shape {mask.shape}")
    return mask


def corners_of(coords: npt.ArrayLike) -> Floats:
    """N x 2 upper left corners (x, y) of tiles, in level-0 pixels; N may be 0."""
    corners = numbers_of("coords", coords)
    if corners.size == 0:
        return np.zeros((0, 2))
    if corners.ndim != 2 or corners.shape[1] != 2:
        raise AsmilError(f"coords: give N rows of (x, y), the corners of tiles, not the shape {corners.shape}")
    if not np.isfinite(corners).all():
        raise AsmilError("coords: a corner of a tile is infinite; give level-0 pixels")
    return corners


def one_per_tile(corners: Floats, values: npt.NDArray[np.generic], name: str) -> None:
    """Refuse values unless there is one per tile."""
    if values.shape != (len(corners),):
        raise AsmilError(f"there are {len(corners)} tiles and {values.size} {name}; give one per tile")
