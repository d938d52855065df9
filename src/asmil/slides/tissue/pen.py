"""Pen marks on the glass, distinguished from tissue by the light they absorb.

In optical densities OD = -log10(I / white), channel by channel:

- blue and green ink takes more red than green light; hematoxylin and eosin take more green than red;
- red ink takes blue light as much as green and hardly any red; eosin takes far less blue, and blood takes less of both
  where it is averaged over several cells;
- black ink takes all three alike, and most of it.

A stroke is wide: what fits no disk of STROKE_UM is a pigment, an inked margin or noise. A stroke fades at its rim: the
weaker mark counts where it is connected to a sure one.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.slides.image import Pixels
from asmil.slides.tissue.regions import Mask
from asmil.slides.tissue.scale import Scale

Density = NDArray[np.float32]

STROKE_UM = 48.0
MIN_MARK_UM2 = 20_000.0
RIM_UM = 40.0


def pen_marks(pixels: Pixels, scale: Scale) -> Mask:
    """The pixels of pen marks, with their rims; `pixels` have white glass."""
    table = -np.log10((np.arange(256, dtype=np.float32) + 1) / 256)
    channels = cv2.split(cv2.medianBlur(pixels, 3))
    red, green, blue = (np.asarray(cv2.LUT(channel, table), dtype=np.float32) for channel in channels)
    marks = np.zeros(pixels.shape[:2], dtype=bool)
    for sure, weak in (_cold(red, green, blue), _red(red, green, blue), _black(red, green, blue)):
        marks |= _strokes(sure, weak, scale)
    return marks


def _cold(red: Density, green: Density, blue: Density) -> tuple[Mask, Mask]:
    excess = red - green
    return (excess > 0.05) & (red > 0.25), (excess > 0.01) & (red > blue + 0.05)


def _red(red: Density, green: Density, blue: Density) -> tuple[Mask, Mask]:
    sure = (green > 0.7) & (blue > 0.85 * green) & (red < 0.35 * green)
    weak = (green > 0.2) & (blue > 0.72 * green) & (red < 0.3 * green)
    return sure, weak


def _black(red: Density, green: Density, blue: Density) -> tuple[Mask, Mask]:
    lightest = np.minimum(np.minimum(red, green), blue)
    spread = np.maximum(np.maximum(red, green), blue) - lightest
    sure = ((lightest > 0.5) & (spread < 0.55 * lightest)) | (lightest > 0.9)
    return sure, (lightest > 0.2) & (spread < 0.6 * lightest)


def _strokes(sure: Mask, weak: Mask, scale: Scale) -> Mask:
    if not sure.any():
        return sure
    wide = cv2.morphologyEx(sure.astype(np.uint8), cv2.MORPH_OPEN, scale.disk(STROKE_UM))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(wide, connectivity=8)
    large = stats[:, cv2.CC_STAT_AREA] >= scale.area_px(MIN_MARK_UM2)
    large[0] = False
    if not large.any():
        return np.zeros_like(sure)
    seeds = large[labels]
    _, parts = cv2.connectedComponents((weak | seeds).astype(np.uint8), connectivity=4)
    touched = np.unique(parts[seeds])
    marks = np.isin(parts, touched).astype(np.uint8)
    return np.asarray(cv2.dilate(marks, scale.disk(2 * RIM_UM)) > 0, dtype=bool)
