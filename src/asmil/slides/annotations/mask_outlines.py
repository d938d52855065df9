"""Masks as outlines: what a mask file marks, traced at the resolution of an overview."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from shapely import MultiPolygon, Polygon

from asmil.arrays import Booleans
from asmil.slides.annotations.mask_tiff import read_mask
from asmil.slides.levels import Size

MASK_SIDE = 2048
"""Pixels of the longer side on which a mask is read."""


def mask_outlines(path: Path | str, slide_size_px: Size, value: int | None = None) -> MultiPolygon:
    """The outlines of a mask file in level-0 pixels, see `read_mask` for `value`."""
    downsample = max(1.0, max(slide_size_px) / MASK_SIDE)
    width, height = (max(1, round(side / downsample)) for side in slide_size_px)
    return trace_outlines(read_mask(path, slide_size_px, (height, width), downsample, value), downsample)


def trace_outlines(mask: Booleans, downsample: float) -> MultiPolygon:
    """The outlines of the regions of a mask and of their holes, each a polygon of its own, in level-0 pixels."""
    # outlines run through centers of pixels: on pixels of half the side, a region of one pixel has an outline too
    halves = np.repeat(np.repeat(mask.astype(np.uint8), 2, axis=0), 2, axis=1)
    rings, _ = cv2.findContours(halves, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    return MultiPolygon([Polygon((ring[:, 0] + 0.5) * (downsample / 2)) for ring in rings])
