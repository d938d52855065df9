"""Saturation as CLAM sees it: OpenCV's 8-bit HSV."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.slides.image import Pixels, SlideImage

Saturation = NDArray[np.uint8]
"""Height x width."""
STRIP_PX = 2**24
"""Pixels of level 0 that are held in color at a time."""


def saturation(pixels: Pixels) -> Saturation:
    """255 (max - min) / max of the three channels, rounded as OpenCV does; 0 for black."""
    return np.asarray(cv2.extractChannel(cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV), 1), dtype=np.uint8)


def read_saturation(image: SlideImage, level: int) -> Saturation:
    """The saturation of a whole level; transparent pixels count as black.

    Level 0 is read in strips, since only there a strip begins exactly at a pixel.
    """
    width, height = image.level_sizes[level]
    rows = max(1, STRIP_PX // width) if level == 0 else height
    strips = [
        saturation(image.read(0, y, level, width, min(rows, height - y), outside=0)) for y in range(0, height, rows)
    ]
    return strips[0] if len(strips) == 1 else np.concatenate(strips)
