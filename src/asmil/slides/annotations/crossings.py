"""How often outlines cross themselves, counted before a repair whose time grows faster than their number."""

from __future__ import annotations

import numpy as np
import shapely
from shapely.geometry import Polygon

PAIRS_AT_ONCE, FEWEST_AT_ONCE = 200_000, 4
"""How many pairs of segments may be compared before the count is looked at, but all with at least so many segments."""


def count_crossings(polygon: Polygon, most: int) -> int:
    """The pairs of segments of all rings that cross, touch or overlap, except neighbors; the count ends beyond `most`.

    >>> count_crossings(Polygon([(0, 0), (1, 1), (1, 0), (0, 1)]), most=9)
    1
    """
    rings = [shapely.get_coordinates(ring) for ring in (polygon.exterior, *polygon.interiors)]
    parts = [np.stack([ring[:-1], ring[1:]], axis=1) for ring in rings]
    parts = [part[moves] for part in parts if (moves := (part[:, 0] != part[:, 1]).any(axis=1)).any()]
    if not parts:
        return 0
    segments = shapely.linestrings(np.concatenate(parts))
    ends = np.cumsum([len(part) for part in parts])
    follower = np.arange(1, len(segments) + 1)
    follower[ends - 1] = np.concatenate([[0], ends[:-1]])
    tree = shapely.STRtree(segments)
    step = max(FEWEST_AT_ONCE, PAIRS_AT_ONCE // len(segments))
    found = 0
    for start in range(0, len(segments), step):
        first, second = tree.query(segments[start : start + step], predicate="intersects")
        first = first + start
        once = first < second
        first, second = first[once], second[once]
        found += int(np.count_nonzero((follower[first] != second) & (follower[second] != first)))
        if found > most:
            break
    return found
