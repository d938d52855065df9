"""The whole slide as one small picture, area-averaged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from asmil.slides.image import Pixels, SlideImage, choose_level, true_downsamples
from asmil.slides.opening import require_resolution
from asmil.slides.pixel_regions import resize

BLOCK_PX = 2048
"""Maximum side, in pixels, of a region that is read at once, so that a single-level slide is never fully in memory."""
SEARCHED = 64


@dataclass(frozen=True)
class Overview:
    """The whole slide in few pixels. downsample: level-0 pixels of an overview pixel, (x, y)."""

    pixels: Pixels
    downsample: tuple[float, float]


def read_overview(
    image: SlideImage, mpp: float | None = None, max_side: int | None = None, outside: int = 255
) -> Overview:
    """Read the whole slide at `mpp` microns per pixel, or scaled to fit a square of `max_side`; never upsampled.

    mpp: requires a slide with a known resolution
    outside: the gray value of transparent pixels
    """
    width, height = image.size
    wanted_x, wanted_y = _wanted_downsample(image, mpp, max_side)
    columns, rows = max(1, round(width / wanted_x)), max(1, round(height / wanted_y))
    level = choose_level(true_downsamples(image.level_sizes), min(wanted_x, wanted_y))
    level_width, level_height = image.level_sizes[level]
    downsample_x, downsample_y = image.level_downsamples[level]
    pixels = np.empty((rows, columns, 3), dtype=np.uint8)
    for top, bottom, level_top, level_bottom in _cuts(rows, level_height):
        for left, right, level_left, level_right in _cuts(columns, level_width):
            x, y = round(level_left * downsample_x), round(level_top * downsample_y)
            block = image.read(x, y, level, level_right - level_left, level_bottom - level_top, outside)
            pixels[top:bottom, left:right] = resize(block, right - left, bottom - top)
    return Overview(pixels, (width / columns, height / rows))


def _wanted_downsample(image: SlideImage, mpp: float | None, max_side: int | None) -> tuple[float, float]:
    if mpp is None and max_side is None:
        raise ValueError("an overview needs mpp or max_side")
    x = y = 1.0
    if mpp is not None:
        resolution = require_resolution(image)
        x, y = max(mpp / resolution.mpp_x, 1.0), max(mpp / resolution.mpp_y, 1.0)
    if max_side is not None:
        width, height = image.size
        shrink = max(width / x / max_side, height / y / max_side, 1.0)
        x, y = x * shrink, y * shrink
    return x, y


def _cuts(small: int, large: int) -> Iterator[tuple[int, int, int, int]]:
    """Pieces (from, to) of `small` pixels, and of the `large` number of pixels that they are downsampled from.

    Pieces end where the borders of both agree best, so that the result differs from downsampling the whole by at most
    half a large pixel.
    """
    factor = large / small
    most = max(1, int(BLOCK_PX / factor))
    start = 0
    while start < small:
        end = small
        if start + most < small:
            candidates = np.arange(start + most - min(SEARCHED, most // 2), start + most + 1)
            misses = np.abs(candidates * factor - np.rint(candidates * factor))
            end = int(candidates[np.argmin(misses)])
        yield start, end, round(start * factor), round(end * factor)
        start = end
