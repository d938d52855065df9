"""How far two sets of tiles agree: in their corners, and in the area that they cover."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Corners = NDArray[np.int64]
"""N x 2, (x, y)."""


def exact_iou(ours: Corners, official: Corners) -> float:
    """Tiles in both over tiles in either; 1 where both are empty."""
    a, b = set(map(tuple, ours.tolist())), set(map(tuple, official.tolist()))
    return len(a & b) / len(a | b) if a | b else 1.0


def area_iou(ours: Corners, official: Corners, side: tuple[int, int]) -> float:
    """The same of the areas that tiles of a side cover; an area covered twice counts once."""
    corners = np.concatenate([ours, official])
    if len(corners) == 0:
        return 1.0
    cuts = [np.unique(np.concatenate([corners[:, axis], corners[:, axis] + side[axis]])) for axis in (0, 1)]
    a, b = (_covered(tiles, side, cuts) for tiles in (ours, official))
    cells = np.outer(np.diff(cuts[0]), np.diff(cuts[1]))
    return float(cells[a & b].sum() / cells[a | b].sum())


def _covered(tiles: Corners, side: tuple[int, int], cuts: list[NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Which cells between the cuts are covered: every tile enters and leaves once an axis."""
    depth = np.zeros((len(cuts[0]), len(cuts[1])), dtype=np.int64)
    left, right = (np.searchsorted(cuts[0], tiles[:, 0] + shift) for shift in (0, side[0]))
    top, bottom = (np.searchsorted(cuts[1], tiles[:, 1] + shift) for shift in (0, side[1]))
    for x, y, sign in ((left, top, 1), (right, top, -1), (left, bottom, -1), (right, bottom, 1)):
        np.add.at(depth, (x, y), sign)
    return depth.cumsum(axis=0).cumsum(axis=1)[:-1, :-1] > 0
