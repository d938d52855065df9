"""Ground truth of a synthetic slide: the outlines of its tumor, and areas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.slides.synthetic.layout import Layout
from asmil.slides.tissue.geojson import region_shape
from asmil.slides.tissue.regions import Polygon, Region

FINER = 2
"""Outlines are followed on a map this many times finer than the layout's."""
SMALLEST_HOLE_UM2 = 2500.0


@dataclass(frozen=True)
class SlideTruth:
    """Areas of a slide, and the outlines of its tumor in level-0 pixels."""

    tissue_mm2: float
    tumor_mm2: float
    regions: tuple[Region, ...]


def slide_truth(layout: Layout) -> SlideTruth:
    """The truth that a layout holds."""
    return SlideTruth(layout.grid.area_mm2(layout.tissue), layout.grid.area_mm2(layout.tumor), _tumor_regions(layout))


def _tumor_regions(layout: Layout) -> tuple[Region, ...]:
    if not layout.tumor.any():
        return ()
    rows, columns = layout.tumor.shape
    size = (columns * FINER, rows * FINER)
    finer = cv2.resize(layout.grid.signed_distance(layout.tumor), size, interpolation=cv2.INTER_LINEAR)
    contours, hierarchy = cv2.findContours((finer > 128).astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    # hierarchy[0][i] is (next, previous, first child, parent); a contour with a parent is a hole in it.
    parents = hierarchy[0][:, 3]
    holes: dict[int, list[Polygon]] = {}
    for contour, parent in zip(contours, parents, strict=True):
        if parent >= 0 and _area_um2(contour, layout) >= SMALLEST_HOLE_UM2:
            holes.setdefault(int(parent), []).append(_to_level_0(contour, layout))
    return tuple(
        valid
        for number, (contour, parent) in enumerate(zip(contours, parents, strict=True))
        if parent < 0
        for valid in _valid_regions(Region(_to_level_0(contour, layout), tuple(holes.get(number, ()))))
    )


def _valid_regions(region: Region) -> Iterator[Region]:
    """The region, or its parts where its outline touches itself, which other tools refuse."""
    shape = region_shape(region)
    for part in getattr(shape, "geoms", [shape] if shape is not None else []):
        outline, *holes = (np.rint(ring.coords[:-1]).astype(np.int32) for ring in (part.exterior, *part.interiors))
        yield Region(outline, tuple(holes))


def _area_um2(contour: NDArray[Any], layout: Layout) -> float:
    return float(cv2.contourArea(contour)) * (layout.grid.um / FINER) ** 2


def _to_level_0(contour: NDArray[Any], layout: Layout) -> Polygon:
    return np.rint((contour[:, 0] + 0.5) * layout.grid.cell_px / FINER).astype(np.int32)
