"""Edges of the glass: dark frames around a scan and the lines of a cover slip."""

from __future__ import annotations

import cv2
import numpy as np

from asmil.slides.image import Pixels
from asmil.slides.tissue.regions import Mask
from asmil.slides.tissue.scale import Scale
from asmil.slides.tissue.signal import brightest, chroma

FRAME_BRIGHTNESS = 110
FRAME_CHROMA = 12
FRAME_CHROMA_SHARE = 0.15
"""A frame has at most this chroma, and this share of its brightness more; dense nuclei have thrice as much."""
LINE_WIDTH_UM = 160.0
"""Cores of a needle are wider."""
LINE_LENGTH = 0.3
"""Of the slide's longer side."""
LINE_SLENDERNESS = 12.0
"""Length by width."""
RIM_UM = 40.0


def dark_frame(pixels: Pixels, scale: Scale) -> Mask:
    """Dark, colorless areas that reach the border of the scan, with a rim: frames, and what was never scanned."""
    brightness = brightest(pixels)
    dark = (brightness < FRAME_BRIGHTNESS) & (chroma(pixels) <= FRAME_CHROMA + FRAME_CHROMA_SHARE * brightness)
    # Thin dark seams between dense tissue and glass are no frame.
    wide = cv2.morphologyEx(dark.astype(np.uint8), cv2.MORPH_OPEN, scale.disk(RIM_UM))
    if not wide.any():
        return np.zeros_like(dark)
    _, labels = cv2.connectedComponents(wide, connectivity=8)
    border = np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))
    frame = np.isin(labels, border[border > 0])
    return np.asarray(cv2.dilate(frame.astype(np.uint8), scale.disk(2 * RIM_UM)) > 0, dtype=bool)


def straight_lines(mask: Mask, scale: Scale) -> Mask:
    """Parts of a mask that are straight, thinner than LINE_WIDTH_UM and a good part of the slide long."""
    binary = mask.astype(np.uint8)
    side = scale.px(LINE_WIDTH_UM)
    # A border of nothing: whatever is cut off by the end of the scan must not count as thick.
    padded = cv2.copyMakeBorder(binary, side, side, side, side, cv2.BORDER_CONSTANT, value=0)
    thick = cv2.morphologyEx(padded, cv2.MORPH_OPEN, np.ones((side, side), np.uint8))[side:-side, side:-side]
    contours, _ = cv2.findContours((mask & (thick == 0)).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    lines = np.zeros_like(binary)
    longest = LINE_LENGTH * max(mask.shape)
    for contour in contours:
        width, length = (extent + 1 for extent in sorted(cv2.minAreaRect(contour)[1]))  # through pixel centers
        if length >= max(longest, LINE_SLENDERNESS * width) and width <= side:
            cv2.drawContours(lines, [contour], -1, 1, cv2.FILLED)
    return np.asarray(lines > 0, dtype=bool)
