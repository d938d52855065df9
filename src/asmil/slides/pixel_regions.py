"""Operations on regions of pixels: paste, subpixel shift, scale, and removal of transparency."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.slides.image import Pixels

SUBPIXEL = 1 / 32
"""Smaller shifts are ignored, to avoid the blur of interpolation."""


def paste(canvas: NDArray[np.uint8], piece: NDArray[np.uint8], x: int, y: int) -> None:
    """Copy the part of `piece`, with its corner at (x, y), that lies on the canvas."""
    height, width = canvas.shape[:2]
    top, left = max(y, 0), max(x, 0)
    bottom, right = min(y + piece.shape[0], height), min(x + piece.shape[1], width)
    if top < bottom and left < right:
        canvas[top:bottom, left:right] = piece[top - y : bottom - y, left - x : right - x]


def read_between(
    fetch: Callable[[int, int, int, int], Pixels], left: float, top: float, width: int, height: int
) -> Pixels:
    """A region whose corner lies between pixels, interpolated bilinearly.

    fetch: (column, row, width, height) -> pixels at an integer position
    """
    column, row = math.floor(left + SUBPIXEL), math.floor(top + SUBPIXEL)
    right, down = left - column, top - row
    shifts_x, shifts_y = right > SUBPIXEL, down > SUBPIXEL
    pixels = fetch(column, row, width + shifts_x, height + shifts_y)
    if shifts_x:
        pixels = _blend(pixels[:, :-1], pixels[:, 1:], right)
    if shifts_y:
        pixels = _blend(pixels[:-1], pixels[1:], down)
    return pixels


def resize(pixels: Pixels, width: int, height: int) -> Pixels:
    """Resize a region: area-averaged when downsampling, bilinear when upsampling."""
    if pixels.shape[:2] == (height, width):
        return pixels
    shrinks = width <= pixels.shape[1] and height <= pixels.shape[0]
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cast(Pixels, cv2.resize(pixels, (width, height), interpolation=interpolation))


def stretch(pixels: Pixels, extent_x: float, extent_y: float) -> Pixels:
    """The first extent_x x extent_y pixels, which need not be integers, resized to the nearest integer size."""
    width, height = max(1, round(extent_x)), max(1, round(extent_y))
    if max(abs(extent_x - width), abs(extent_y - height)) <= SUBPIXEL:
        return pixels[:height, :width]
    scale_x, scale_y = extent_x / width, extent_y / height
    onto = np.array([[scale_x, 0, scale_x / 2 - 0.5], [0, scale_y, scale_y / 2 - 0.5]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cast(Pixels, cv2.warpAffine(pixels, onto, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE))


def over_gray(rgba: NDArray[np.uint8], gray: int) -> Pixels:
    """RGBA (not premultiplied) blended over a gray background."""
    pixels = cast(Pixels, cv2.cvtColor(rgba, cv2.COLOR_RGBA2RGB))
    # The alpha byte is the highest of a little-endian word, so the smallest word shows whether all pixels are opaque.
    if rgba.view("<u4").min() >> 24 == 255:
        return pixels
    alpha = rgba[..., 3]
    through = alpha < 255
    opacity = alpha[through].astype(np.float32)[:, None] / 255
    blended = pixels[through] * opacity + gray * (1 - opacity)
    pixels[through] = np.rint(blended).astype(np.uint8)
    return pixels


def _blend(first: Pixels, second: Pixels, share: float) -> Pixels:
    return cast(Pixels, cv2.addWeighted(first, 1 - share, second, share, 0))
