"""From a mask to pieces of tissue: sizes in microns squared, outlines in level-0 pixels."""

from __future__ import annotations

import cv2
import numpy as np

from asmil.slides.tissue.contours import trace_regions
from asmil.slides.tissue.regions import Mask, Polygon, Region

STRAIGHTENING_PX = 0.5


def drop_small(mask: Mask, min_px: float) -> Mask:
    """The mask without pieces of fewer than `min_px` pixels."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
    keep = stats[:, cv2.CC_STAT_AREA] >= min_px
    keep[0] = False
    return np.asarray(keep[labels], dtype=bool)


def largest_piece(mask: Mask) -> int:
    """The pixels of the largest piece."""
    stats = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)[2]
    return int(stats[1:, cv2.CC_STAT_AREA].max(initial=0))


def fill_small(mask: Mask, min_px: float) -> Mask:
    """The mask with holes of fewer than `min_px` pixels filled; a bay that is open to the border is no hole."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats((~mask).astype(np.uint8), connectivity=4)
    fill = stats[:, cv2.CC_STAT_AREA] < min_px
    fill[np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))] = False
    fill[0] = True
    return np.asarray(fill[labels], dtype=bool)


def mask_regions(mask: Mask, downsample: tuple[float, float]) -> tuple[Region, ...]:
    """The pieces of a mask with their holes, in level-0 pixels; an island in a hole is a piece of its own.

    Outlines run through the centers of the outermost pixels, and straight where they leave these by at most half a
    pixel.
    """
    scale = np.asarray(downsample)

    def level0(polygon: Polygon) -> Polygon:
        corners = cv2.approxPolyDP(polygon, STRAIGHTENING_PX, closed=True).reshape(-1, 2)
        return np.asarray(np.rint((corners + 0.5) * scale), dtype=np.int32)

    return tuple(
        Region(level0(region.outline), tuple(map(level0, region.holes)))
        for region in trace_regions(mask.astype(np.uint8))
    )
