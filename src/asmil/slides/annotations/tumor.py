"""The tumor of an annotation as a shape and as a mask: regions selected by class, without excluded regions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from shapely import STRtree, union_all
from shapely.geometry import MultiPolygon, Polygon
from shapely.geometry.base import BaseGeometry
from shapely.geometry.polygon import LinearRing

from asmil.slides.annotations.regions import AnnotatedRegion, Annotations, area_of
from asmil.slides.class_names import ClassNames
from asmil.slides.polygon_grid import PointGrid, locate_points
from asmil.tables.arrays import Booleans

_TUMOR_WORDS = {"tumor", "tumour", "metastases", "metastasis", "cancer", "carcinoma", "malignant", "lesion"}
TUMOR_NAMES = frozenset(_TUMOR_WORDS | {"_0", "_1", "positive"})
EXCLUSION_NAMES = frozenset({"_2", "exclusion", "exclude", "excluded", "hole", "negative"})
ASAP_EXCLUSION_NAMES = EXCLUSION_NAMES | {"normal"}
"""In CAMELYON17, normal tissue is drawn inside metastases and excluded from them."""
NO_CLASS = "(no class)"


@dataclass(frozen=True)
class TumorArea:
    """The tumor of a slide without excluded regions, and the number of regions of each class it was made from.

    unknown: classes that are neither, whose regions were not used
    """

    shape: MultiPolygon
    tumor: Counter[str] = field(default_factory=Counter)
    cut_out: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)


def tumor_area(annotations: Annotations, names: ClassNames | None = None) -> TumorArea:
    """Join the regions whose class is tumor, and subtract the excluded regions.

    Names are compared case-insensitively. If the user gives no names and no region has a class (except excluded ones),
    all regions are tumor; the same applies to all layers of an Aperio file.
    """
    names = names or ClassNames()
    excluding = _lowered(names.exclude) or (ASAP_EXCLUSION_NAMES if annotations.kind == "asap" else EXCLUSION_NAMES)
    cut_out, others = _parted(annotations.regions, lambda region: region.cut_out or _is_named(region, excluding))
    including = _lowered(names.tumor) or TUMOR_NAMES
    all_tumor = not names.tumor and (annotations.kind == "aperio" or all(region.group is None for region in others))
    tumor, unknown = _parted(others, lambda region: all_tumor or _is_named(region, including))
    shape = without(joined([region.shape for region in tumor]), joined([region.shape for region in cut_out]))
    return TumorArea(shape, _count(tumor), _count(cut_out), _count(unknown))


def _parted(
    regions: Iterable[AnnotatedRegion], chosen: Callable[[AnnotatedRegion], bool]
) -> tuple[list[AnnotatedRegion], list[AnnotatedRegion]]:
    """The chosen regions and the others, without comparing regions, since comparing outlines is slow."""
    parts: tuple[list[AnnotatedRegion], list[AnnotatedRegion]] = ([], [])
    for region in regions:
        parts[not chosen(region)].append(region)
    return parts


def _is_named(region: AnnotatedRegion, names: Collection[str]) -> bool:
    return region.group is not None and region.group.lower() in names


def _lowered(names: Collection[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _count(regions: Sequence[AnnotatedRegion]) -> Counter[str]:
    return Counter(region.group or NO_CLASS for region in regions)


def joined(shapes: Sequence[BaseGeometry]) -> list[BaseGeometry]:
    """The union of the shapes as disjoint parts, in time proportional to their number, not its square."""
    if not shapes:
        return []
    first, second = STRtree(shapes).query(shapes)  # pairs whose bounding boxes intersect
    meetings = coo_array((np.ones(len(first), np.bool_), (first, second)), shape=(len(shapes), len(shapes)))
    _, labels = connected_components(meetings, directed=False)
    groups: dict[int, list[BaseGeometry]] = defaultdict(list)
    for label, shape in zip(labels.tolist(), shapes, strict=True):
        groups[label].append(shape)
    return [group[0] if len(group) == 1 else union_all(group) for group in groups.values()]


def without(shapes: Sequence[BaseGeometry], cut_out: Sequence[BaseGeometry]) -> MultiPolygon:
    """Disjoint shapes, with other shapes subtracted from all of them."""
    cuts: dict[int, list[BaseGeometry]] = defaultdict(list)
    if shapes and cut_out:
        which, by = STRtree(cut_out).query(shapes)
        for shape, cut in zip(which.tolist(), by.tolist(), strict=True):
            cuts[shape].append(cut_out[cut])
    left = [shape.difference(union_all(cuts[n])) if n in cuts else shape for n, shape in enumerate(shapes)]
    return MultiPolygon([polygon for shape in left for polygon in area_of(shape).geoms])


STEPS = 256
"""Corners are rounded to this fraction of a mask pixel, so that containment is decided with integers."""


def rasterize(shape: MultiPolygon, mask_shape: tuple[int, int], downsample: float) -> Booleans:
    """The mask (rows x columns) of a shape given in level-0 pixels; a pixel belongs to it if its center does.

    downsample: level-0 pixels along the side of a mask pixel
    """
    mask = np.zeros(mask_shape, dtype=np.bool_)
    for polygon in shape.geoms:
        _draw(mask, polygon, STEPS / downsample)
    return mask


def _draw(mask: Booleans, polygon: Polygon, scale: float) -> None:
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


def _covered(ring: LinearRing, grid: PointGrid, scale: float) -> Booleans:
    """Columns x rows: the points within a ring or on it."""
    corners = np.rint(np.asarray(ring.coords)[:-1, :2] * scale).astype(np.int64)
    points = locate_points(corners, grid)
    return points.inside | points.boundary
