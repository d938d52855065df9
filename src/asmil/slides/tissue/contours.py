"""Trace the outlines of a mask with their holes, select those that CLAM keeps, and fill them as a mask."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.slides.tissue.regions import Mask, Polygon, Region


def trace_regions(mask: NDArray[np.uint8], approximation: int = cv2.CHAIN_APPROX_NONE) -> list[Region]:
    """Every piece of tissue (8-connected) with its holes, in OpenCV's order, through the centers of boundary pixels.

    An island inside a hole is a separate piece. Points are pixels of the mask.

    approximation: which points of straight lines OpenCV leaves out
    """
    contours, hierarchy = cv2.findContours(mask, cv2.RETR_CCOMP, approximation)
    if hierarchy is None:
        return []
    polygons = [np.asarray(contour, dtype=np.int32).reshape(-1, 2) for contour in contours]
    holes: dict[int, list[Polygon]] = {}
    for index, parent in enumerate(hierarchy.reshape(-1, 4)[:, 3].tolist()):
        if parent < 0:
            holes.setdefault(index, [])
        else:
            holes.setdefault(parent, []).append(polygons[index])
    return [Region(polygons[index], tuple(holes[index])) for index in sorted(holes)]


def halved(mask: Mask) -> NDArray[np.uint8]:
    """The mask with pixels of half the side, 0 and 1.

    Outlines run through the centers of pixels, so that a region of one pixel has an outline only if it is halved.
    """
    return np.repeat(np.repeat(mask.astype(np.uint8), 2, axis=0), 2, axis=1)


def polygon_area(polygon: Polygon) -> float:
    """The area inside the polygon through the points."""
    return float(cv2.contourArea(polygon))


def tissue_areas(regions: Sequence[Region]) -> list[float]:
    """The area of each outline minus the areas of its holes."""
    return [polygon_area(region.outline) - sum(map(polygon_area, region.holes)) for region in regions]


def keep_regions(
    regions: Sequence[Region], min_area: float, min_hole_area: float, max_n_holes: int
) -> tuple[Region, ...]:
    """The regions with an area above `min_area` and above 0, each with its largest holes.

    A hole is filled if it is not larger than `min_hole_area`, or not among the `max_n_holes` largest.
    """
    kept = []
    for region, area in zip(regions, tissue_areas(regions), strict=True):
        if area != 0 and area > min_area:
            largest = sorted(region.holes, key=polygon_area, reverse=True)[:max_n_holes]
            kept.append(Region(region.outline, tuple(hole for hole in largest if polygon_area(hole) > min_hole_area)))
    return tuple(kept)


def to_level0(region: Region, downsample: tuple[float, float]) -> Region:
    """A region in level-0 pixels, truncated as CLAM does."""
    scale = np.asarray(downsample)

    def scaled(polygon: Polygon) -> Polygon:
        return np.asarray(polygon * scale, dtype=np.int32)

    return Region(scaled(region.outline), tuple(map(scaled, region.holes)))


def fill_regions(regions: Sequence[Region], shape: tuple[int, int]) -> Mask:
    """The pixels of all regions; the boundary belongs to the outline, and that of a hole to the hole.

    Each region is filled separately, so that an island inside another region's hole is not lost.
    """
    mask = np.zeros(shape, dtype=np.bool_)
    for region in regions:
        x, y, width, height = cv2.boundingRect(region.outline)
        piece = np.zeros((height, width), dtype=np.uint8)
        cv2.drawContours(piece, [region.outline], -1, 1, cv2.FILLED, offset=(-x, -y))
        # one by one: overlapping holes that are filled together would cancel each other
        for hole in region.holes:
            cv2.drawContours(piece, [hole], -1, 0, cv2.FILLED, offset=(-x, -y))
        mask[y : y + height, x : x + width] |= piece.astype(np.bool_)
    return mask
