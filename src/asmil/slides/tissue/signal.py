"""The stain signal of a pixel, which is thresholded to find tissue.

The glass is white-balanced, channel by channel, and the signal is the distance from gray, 0 to 255:

    max(max(R, B) - G, (max(R, G, B) - min(R, G, B)) / 2)

Pink, purple, blue and brown count in full; green and yellow, which occur in tinted glass and dirt but not in
hematoxylin and eosin, count half. Glass, gray seams of stitched scans, shadows and dust have no signal, whatever their
brightness; barely visible eosin has 10, typical tissue 40 to 120. In a dark field (fluorescence) the brightest channel
is used.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.slides.image import Pixels
from asmil.slides.tissue.regions import Mask
from asmil.tables.arrays import Floats

Signal = NDArray[np.uint8]

GLASS_BRIGHTNESS = 195
"""Minimum value of the brightest channel of glass."""
GLASS_STAIN = 14
"""Maximum tint of glass; more is stain."""
GLASS_SHARE = 0.01
"""Below this share of the slide, pixels that look like glass may be pale tissue."""
DARK = 60
DARK_FIELD_SHARE = 0.5
BRIGHT_SHARE = 0.02


def brightest(pixels: Pixels) -> Signal:
    """The largest channel of every pixel."""
    red, green, blue = cv2.split(pixels)
    return np.asarray(cv2.max(cv2.max(red, green), blue), dtype=np.uint8)


def darkest(pixels: Pixels) -> Signal:
    """The smallest channel of every pixel."""
    red, green, blue = cv2.split(pixels)
    return np.asarray(cv2.min(cv2.min(red, green), blue), dtype=np.uint8)


def chroma(pixels: Pixels) -> Signal:
    """The largest channel minus the smallest."""
    return brightest(pixels) - darkest(pixels)


def stain_signal(pixels: Pixels) -> Signal:
    """The distance of every pixel from gray, with green and yellow counting half."""
    red, green, blue = cv2.split(pixels)
    magenta = cv2.subtract(cv2.max(red, blue), green)
    return np.asarray(cv2.max(magenta, chroma(pixels) // 2), dtype=np.uint8)


def looks_like_glass(pixels: Pixels) -> Mask:
    """Bright pixels with hardly any stain."""
    return np.asarray((brightest(pixels) >= GLASS_BRIGHTNESS) & (stain_signal(pixels) <= GLASS_STAIN), dtype=bool)


def is_dark_field(pixels: Pixels) -> bool:
    """Whether this is a dark field: most pixels are dark, and hardly any is as bright as glass."""
    dark = float((brightest(pixels) < DARK).mean())
    bright = float((darkest(pixels) >= GLASS_BRIGHTNESS).mean())
    return dark > DARK_FIELD_SHARE and bright < BRIGHT_SHARE


def glass_color(pixels: Pixels) -> Floats:
    """The color of the empty slide, RGB; white if there is hardly any glass.

    Pure white is ignored, since readers use it for areas that were not scanned.
    """
    glass = looks_like_glass(pixels) & (darkest(pixels) < 255)
    if glass.mean() < GLASS_SHARE:
        return np.full(3, 255.0)
    return np.asarray(np.median(pixels[glass], axis=0), dtype=np.float64)


def to_white(pixels: Pixels, glass: Floats) -> Pixels:
    """Pixels scaled so that the glass becomes white; pixels brighter than glass also become white."""
    ramp = np.arange(256, dtype=np.float64)
    table = np.stack([np.minimum(np.rint(ramp * 255 / channel), 255) for channel in glass], axis=1)
    return np.asarray(cv2.LUT(pixels, table.astype(np.uint8)[None]), dtype=np.uint8)
