"""The tiles of a slide as a browser wants them: JPEG files on a grid at every level.

The levels of the file come with the file's own tiles, and stored JPEG tiles are passed on without decoding them. A
file whose coarsest level is still large gets coarser ones, each the average of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

import imagecodecs
import numpy as np

from asmil.slides.image import Pixels, SlideImage, true_downsamples
from asmil.slides.pixel_regions import resize
from asmil.slides.tiff_image import SegmentCache

TILE_PX = 512
"""Of levels that are not stored in tiles, or in tiles that are too small or large for a browser."""
SMALLEST_TILE, LARGEST_TILE = 128, 1024
COARSEST_PX = 512
QUALITY = 85
CACHE_BYTES = 48 << 20


@dataclass(frozen=True)
class ServedLevel:
    """A level of the pyramid.

    downsample: level-0 pixels per pixel
    file_level: the level of the file; None for one that is computed
    """

    width: int
    height: int
    tile_width: int
    tile_height: int
    downsample: tuple[float, float]
    file_level: int | None

    @property
    def across(self) -> int:
        """Tiles in a row."""
        return -(-self.width // self.tile_width)

    @property
    def down(self) -> int:
        """Tiles in a column."""
        return -(-self.height // self.tile_height)


class TilePyramid:
    """The served levels of an open slide, the finest first. Safe from several threads."""

    def __init__(self, image: SlideImage) -> None:
        self.image = image
        self.levels = served_levels(image)
        self._cache = SegmentCache(CACHE_BYTES)

    def has(self, level: int, column: int, row: int) -> bool:
        """Whether there is such a tile."""
        if not 0 <= level < len(self.levels):
            return False
        served = self.levels[level]
        return 0 <= column < served.across and 0 <= row < served.down

    def stored(self, level: int, column: int, row: int) -> bytes | None:
        """The JPEG of a tile as the file stores it, or None."""
        served = self.levels[level]
        if served.file_level is None:
            return None
        if self.image.stored_tile_size(served.file_level) != (served.tile_width, served.tile_height):
            return None
        return self.image.stored_jpeg(served.file_level, column, row)

    def encoded(self, level: int, column: int, row: int) -> bytes:
        """The JPEG of a tile, decoded and encoded."""
        return encode(self.pixels(level, column, row))

    def pixels(self, level: int, column: int, row: int) -> Pixels:
        """The pixels of a tile; the last ones of a row or column are smaller."""
        served = self.levels[level]
        if served.file_level is not None:
            x, y = column * served.tile_width, row * served.tile_height
            width, height = min(served.tile_width, served.width - x), min(served.tile_height, served.height - y)
            by_x, by_y = served.downsample
            return self.image.read(round(x * by_x), round(y * by_y), served.file_level, width, height)
        cached = self._cache.get((level, column, row))
        if cached is None:
            cached = self._averaged(level, column, row)
            self._cache.put((level, column, row), cached)
        return cached

    def _averaged(self, level: int, column: int, row: int) -> Pixels:
        """The average of the four tiles below."""
        finer = self.levels[level - 1]
        rows = [
            np.concatenate(
                [self.pixels(level - 1, i, j) for i in (2 * column, 2 * column + 1) if i < finer.across], axis=1
            )
            for j in (2 * row, 2 * row + 1)
            if j < finer.down
        ]
        whole = np.concatenate(rows, axis=0)
        return resize(whole, -(-whole.shape[1] // 2), -(-whole.shape[0] // 2))

    def region(self, x: int, y: int, side: int, wanted_px: int) -> bytes:
        """A square of `side` level-0 pixels as a JPEG of about `wanted_px` pixels, never enlarged."""
        downsamples = true_downsamples(self.image.level_sizes)
        fitting = [n for n, by in enumerate(downsamples) if side / max(by) >= min(wanted_px, side)]
        level = max(fitting, default=0)
        by_x, by_y = downsamples[level]
        pixels = self.image.read(x, y, level, max(1, round(side / by_x)), max(1, round(side / by_y)))
        if pixels.shape[1] > wanted_px:
            pixels = resize(pixels, wanted_px, wanted_px)
        return encode(pixels)

    def close(self) -> None:
        """Let go of the file."""
        self.image.close()


def served_levels(image: SlideImage) -> tuple[ServedLevel, ...]:
    """The file's levels, each coarser than the one before, and computed ones until a level is small."""
    levels: list[ServedLevel] = []
    downsamples = true_downsamples(image.level_sizes)
    for number, ((width, height), downsample) in enumerate(zip(image.level_sizes, downsamples, strict=True)):
        if levels and width >= levels[-1].width:
            continue
        tile_width, tile_height = _tile_size(image.stored_tile_size(number))
        levels.append(ServedLevel(width, height, tile_width, tile_height, downsample, number))
    while max(levels[-1].width, levels[-1].height) > COARSEST_PX:
        last = levels[-1]
        levels.append(
            ServedLevel(
                -(-last.width // 2),
                -(-last.height // 2),
                last.tile_width,
                last.tile_height,
                (last.downsample[0] * 2, last.downsample[1] * 2),
                None,
            )
        )
    return tuple(levels)


def _tile_size(stored: tuple[int, int] | None) -> tuple[int, int]:
    # an odd side could not be halved for the computed levels
    fits = stored is not None and all(SMALLEST_TILE <= side <= LARGEST_TILE and side % 2 == 0 for side in stored)
    return stored if stored is not None and fits else (TILE_PX, TILE_PX)


def encode(pixels: Pixels) -> bytes:
    """Pixels as a JPEG file."""
    return bytes(imagecodecs.jpeg8_encode(np.ascontiguousarray(pixels), level=QUALITY))
