"""A slide, or a part of it, as one small picture, area-averaged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from asmil.slides.image import Pixels, Size, SlideImage, choose_level
from asmil.slides.opening import require_resolution
from asmil.slides.pixel_regions import resize

BLOCK_PX = 2048
"""Maximum side, in pixels, of a region that is read at once, so that a single-level slide is never fully in memory."""
SEARCHED = 64
MOST_REDUCED = BLOCK_PX // 8
"""Pixels of a level, along a side, that become one pixel at once: a block holds several of those."""


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
    level = choose_level(image.downsamples, min(wanted_x, wanted_y))
    downsample = image.level_downsamples[level]
    pixels = read_reduced(image, (0, 0), level, downsample, image.level_sizes[level], (columns, rows), outside)
    return Overview(pixels, (width / columns, height / rows))


def read_reduced(
    image: SlideImage,
    corner: tuple[int, int],
    level: int,
    downsample: tuple[float, float],
    size: Size,
    reduced: Size,
    outside: int = 255,
) -> Pixels:
    """A region of a level, scaled down to `reduced`. It is read in blocks, and nothing outside of the slide is read.

    corner: (x, y) at level 0; downsample: level-0 pixels per pixel of the level; size: of the region at the level
    """
    (width, height), (columns, rows) = size, reduced
    finer = math.ceil(max(width / columns, height / rows) / MOST_REDUCED)
    if finer > 1:
        finer_size = min(width, columns * finer), min(height, rows * finer)
        return resize(read_reduced(image, corner, level, downsample, size, finer_size, outside), columns, rows)
    pixels = np.full((rows, columns, 3), outside, dtype=np.uint8)
    for top, bottom, level_top, level_bottom in _cuts(rows, height):
        for left, right, level_left, level_right in _cuts(columns, width):
            x, y = corner[0] + round(level_left * downsample[0]), corner[1] + round(level_top * downsample[1])
            across, down = level_right - level_left, level_bottom - level_top
            if (
                x + across * downsample[0] <= 0
                or y + down * downsample[1] <= 0
                or x >= image.size[0]
                or y >= image.size[1]
            ):
                continue
            block = image.read(x, y, level, across, down, outside)
            pixels[top:bottom, left:right] = resize(block, right - left, bottom - top)
    return pixels


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
