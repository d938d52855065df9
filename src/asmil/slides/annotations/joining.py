"""Joining and cutting many shapes: only those that meet are worked on, so that time grows with their number alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from shapely import STRtree, union_all
from shapely.geometry import MultiPolygon
from shapely.geometry.base import BaseGeometry

from asmil.slides.annotations.regions import area_of


def joined(shapes: Sequence[BaseGeometry]) -> list[BaseGeometry]:
    """The union of the shapes, in parts that do not meet each other."""
    if not shapes:
        return []
    first, second = STRtree(shapes).query(shapes)  # those whose boxes meet, which is quick to say
    meetings = coo_array((np.ones(len(first), np.bool_), (first, second)), shape=(len(shapes), len(shapes)))
    _, labels = connected_components(meetings, directed=False)
    groups: dict[int, list[BaseGeometry]] = defaultdict(list)
    for label, shape in zip(labels.tolist(), shapes, strict=True):
        groups[label].append(shape)
    return [group[0] if len(group) == 1 else union_all(group) for group in groups.values()]


def without(shapes: Sequence[BaseGeometry], cut_out: Sequence[BaseGeometry]) -> MultiPolygon:
    """What is left of shapes that do not meet each other when others are cut out of all of them."""
    cuts: dict[int, list[BaseGeometry]] = defaultdict(list)
    if shapes and cut_out:
        which, by = STRtree(cut_out).query(shapes)
        for shape, cut in zip(which.tolist(), by.tolist(), strict=True):
            cuts[shape].append(cut_out[cut])
    left = [shape.difference(union_all(cuts[n])) if n in cuts else shape for n, shape in enumerate(shapes)]
    return MultiPolygon([polygon for shape in left for polygon in area_of(shape).geoms])
