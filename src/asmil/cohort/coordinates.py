"""Coordinates of tiles that can be on a slide."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asmil.errors import AsmilError

LARGEST_COORDINATE = 1e9
"""In pixels or microns; the largest slides have a few million pixels per side."""


def refuse_wrong_coords(where: object, coords: NDArray[Any], n_tiles: int) -> None:
    """Raise unless coordinates are N x 2 finite numbers within the size of a slide."""
    if coords.ndim != 2 or coords.shape[1] != 2:
        raise AsmilError(f"{where}: coordinates have shape {coords.shape}; they must be N x 2 (x, y)")
    if len(coords) != n_tiles:
        raise AsmilError(f"{where}: {len(coords)} coordinates for {n_tiles} tiles; they must match")
    # a comparison with NaN is false
    usable = ((coords >= -LARGEST_COORDINATE) & (coords <= LARGEST_COORDINATE)).all(axis=1)
    if not usable.all():
        first = int(np.argmin(usable))
        raise AsmilError(
            f"{where}: the coordinates of {int((~usable).sum())} of {n_tiles} tiles are outside any slide (first: tile "
            f"{first} at {coords[first].tolist()}); extract this slide again or leave it out"
        )
