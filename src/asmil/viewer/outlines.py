"""Annotations as outlines for the browser, from files of outlines and from masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from asmil.slides.annotations import MASK_SUFFIXES, read_annotations, read_mask

MASK_SIDE = 2048
"""Pixels of the longer side on which a mask is read."""


def outlines_of(path: Path, size: tuple[int, int], origin: tuple[int, int] = (0, 0)) -> list[dict[str, Any]]:
    """Regions with their class and rings (lists of x, y in level-0 pixels); holes are rings of their own.

    size: width and height of the slide
    origin: the corner of the slide's bounds, from which QuPath's GeoJSON counts
    """
    if path.suffix.lower() in MASK_SUFFIXES:
        return _of_mask(path, size)
    found = read_annotations(path)
    shift = np.asarray(origin if found.kind == "geojson" else (0, 0))
    return [
        {
            "group": region.group,
            "cut_out": region.cut_out,
            "rings": [
                np.round(np.asarray(ring.coords)[:, :2] + shift, 1).ravel().tolist()
                for polygon in region.shape.geoms
                for ring in (polygon.exterior, *polygon.interiors)
            ],
        }
        for region in found.regions
    ]


def _of_mask(path: Path, size: tuple[int, int]) -> list[dict[str, Any]]:
    downsample = max(1.0, max(size) / MASK_SIDE)
    shape = (max(1, round(size[1] / downsample)), max(1, round(size[0] / downsample)))
    mask = read_mask(path, size, shape, downsample).astype(np.uint8)
    contours, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    rings = [((ring[:, 0, :] + 0.5) * downsample).round(1).ravel().tolist() for ring in contours if len(ring) >= 3]
    return [{"group": None, "cut_out": False, "rings": rings}] if rings else []
