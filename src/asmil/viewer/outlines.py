"""Annotations as outlines for the browser, from files of outlines and from masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from shapely import MultiPolygon

from asmil.slides.annotations import MASK_SUFFIXES, mask_outlines, read_annotations


def outlines_of(
    path: Path, size: tuple[int, int], origin: tuple[int, int] = (0, 0), mask_value: int | None = None
) -> list[dict[str, Any]]:
    """Regions with their class and rings (lists of x, y in level-0 pixels); holes are rings of their own.

    size: width and height of the slide
    origin: the corner of the slide's bounds, from which QuPath's GeoJSON counts
    mask_value: that of tumor, if the file is a mask with several
    """
    if path.suffix.lower() in MASK_SUFFIXES:
        marked = mask_outlines(path, size, mask_value)
        return [{"group": None, "cut_out": False, "rings": _rings(marked, (0, 0))}] if marked.geoms else []
    found = read_annotations(path)
    shift = origin if found.kind == "geojson" else (0, 0)
    return [
        {"group": region.group, "cut_out": region.cut_out, "rings": _rings(region.shape, shift)}
        for region in found.regions
    ]


def _rings(shape: MultiPolygon, shift: tuple[int, int]) -> list[list[float]]:
    return [
        np.round(np.asarray(ring.coords)[:, :2] + np.asarray(shift), 1).ravel().tolist()
        for polygon in shape.geoms
        for ring in (polygon.exterior, *polygon.interiors)
    ]
