"""The tiles of a slide for a browser: JPEG files on a grid at every level.

The levels of the file are served with the file's own tiles, and stored JPEG tiles are not decoded. If the coarsest
level of a file is large, coarser ones are computed, each the average of the one before.

The number of pixels that a request reads, and the memory that it needs, are limited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from threading import BoundedSemaphore, RLock

import imagecodecs
import numpy as np

from asmil.errors import AsmilError
from asmil.slides.byte_cache import ByteCache
from asmil.slides.image import Pixels, SlideImage
from asmil.slides.openslide_image import CACHE_BYTES as SEGMENTS_BYTES
from asmil.slides.overview import read_reduced
from asmil.slides.pixel_regions import resize

TILE_PX = 512
"""Tile size of levels without stored tiles, or with tiles that are too small or too large for a browser."""
SMALLEST_TILE, LARGEST_TILE = 128, 1024
COARSEST_PX = 512
QUALITY = 85
CACHE_BYTES = 48 << 20
MOST_REGION_PX = 1 << 26
"""Most pixels of the file that are read for a region: 8192 x 8192."""
MOST_SLIDE_PX = 1 << 31
"""Most pixels that are decoded to compute coarser levels: about half a minute of work."""
MOST_TILE_PX = 1 << 24
"""Most pixels of the file that are read for a tile, if the slide has more than MOST_SLIDE_PX."""
KEPT_LEVEL_PX = 1 << 22
"""Computed levels up to this size are kept while the slide is open: computing them takes longest."""
_reading_region = BoundedSemaphore(4)
"""Every read needs memory for a block of pixels."""


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
        return -(-self.width // self.tile_width)

    @property
    def down(self) -> int:
        return -(-self.height // self.tile_height)


class TilePyramid:
    """The served levels of an open slide, the finest first. Thread-safe."""

    def __init__(self, image: SlideImage) -> None:
        self.image = image
        self.levels = served_levels(image)
        self._cache = ByteCache[Pixels](CACHE_BYTES)
        self._kept: dict[tuple[int, int, int], Pixels] = {}
        self._averaging = RLock()

    @cached_property
    def unreachable(self) -> str:
        """Why the slide cannot be shown as a whole; empty if it can."""
        coarsest = self._coarsest
        if coarsest is self.levels[-1] or self._read_for_whole() <= MOST_SLIDE_PX:
            return ""
        return (
            f"{self.image.name}: too much would be read for a view of the whole slide, since the coarsest level of the "
            f"file has {coarsest.width} x {coarsest.height} pixels; zoom in, or save the slide with several levels, in "
            "tiles"
        )

    @property
    def _coarsest(self) -> ServedLevel:
        return next(level for level in reversed(self.levels) if level.file_level is not None)

    def _read_for_whole(self) -> int:
        """Pixels that are decoded for the computed levels."""
        level = self._coarsest
        assert level.file_level is not None
        strip = self.image.decoded_at_once(level.file_level)
        band = max(level.width * level.tile_height, strip)
        # strips reach across the slide; those of one row of tiles are decoded once only if all of them are kept
        in_strips = strip > 0 and self.image.stored_tile_size(level.file_level) is None
        is_read_again = in_strips and 3 * band > SEGMENTS_BYTES
        return level.width * level.height * (level.across if is_read_again else 1)

    def has(self, level: int, column: int, row: int) -> bool:
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

    def pixels(self, level: int, column: int, row: int) -> Pixels:
        """The pixels of a tile; the last ones of a row or column are smaller."""
        served = self.levels[level]
        if served.file_level is not None:
            x, y = column * served.tile_width, row * served.tile_height
            width, height = min(served.tile_width, served.width - x), min(served.tile_height, served.height - y)
            by_x, by_y = served.downsample
            return self.image.read(round(x * by_x), round(y * by_y), served.file_level, width, height)
        key = (level, column, row)
        with self._averaging:  # the tile above waits for this one instead of reading the same pixels
            known = self._kept.get(key)
            known = self._cache.get(key) if known is None else known
            if known is None:
                self._refuse_large(served)
                known = self._averaged(level, column, row)
                if served.width * served.height <= KEPT_LEVEL_PX:
                    self._kept[key] = known
                else:
                    self._cache.put(key, known)
            return known

    def overview(self, max_side: int) -> Pixels:
        """The whole slide, scaled to fit a square of `max_side`."""
        level = len(self.levels) - 1
        last = self.levels[level]
        whole = self._joined(level, range(last.across), range(last.down))
        scale = min(1.0, max_side / max(whole.shape[:2]))
        return resize(whole, max(1, round(whole.shape[1] * scale)), max(1, round(whole.shape[0] * scale)))

    def _refuse_large(self, level: ServedLevel) -> None:
        """Raise before a tile of a computed level reads too much of the file."""
        times = round(level.downsample[0] / self._coarsest.downsample[0])
        if self.unreachable and level.tile_width * level.tile_height * times**2 > MOST_TILE_PX:
            raise AsmilError(self.unreachable)

    def _joined(self, level: int, columns: range, rows: range) -> Pixels:
        return np.concatenate(
            [np.concatenate([self.pixels(level, i, j) for i in columns], axis=1) for j in rows], axis=0
        )

    def _averaged(self, level: int, column: int, row: int) -> Pixels:
        finer = self.levels[level - 1]
        columns = range(2 * column, min(2 * column + 2, finer.across))
        whole = self._joined(level - 1, columns, range(2 * row, min(2 * row + 2, finer.down)))
        return resize(whole, -(-whole.shape[1] // 2), -(-whole.shape[0] // 2))

    def region(self, x: int, y: int, side: int, wanted_px: int) -> bytes:
        """A square of `side` level-0 pixels as a JPEG of about `wanted_px` pixels, never enlarged."""
        downsamples = self.image.downsamples
        fitting = [n for n, by in enumerate(downsamples) if side / max(by) >= min(wanted_px, side)]
        level = max(fitting, default=0)
        by_x, by_y = downsamples[level]
        size = max(1, round(side / by_x)), max(1, round(side / by_y))
        inside = [
            max(0, min(at + side, length) - max(at, 0)) for at, length in zip((x, y), self.image.size, strict=True)
        ]
        read = math.ceil(inside[0] / by_x) * math.ceil(inside[1] / by_y)
        if read > MOST_REGION_PX:
            raise AsmilError(
                f"{self.image.name}: {read / 1e6:.0f} megapixels would be read for this region, since the file has no "
                f"coarser level; at most {MOST_REGION_PX / 1e6:.0f} are: ask for a smaller side"
            )
        reduced = (wanted_px, wanted_px) if size[0] > wanted_px else size
        with _reading_region:
            return encode(read_reduced(self.image, (x, y), level, (by_x, by_y), size, reduced))

    def close(self) -> None:
        self.image.close()


def served_levels(image: SlideImage) -> tuple[ServedLevel, ...]:
    """The file's levels, each coarser than the one before, and computed ones until a level is small."""
    levels: list[ServedLevel] = []
    for number, ((width, height), downsample) in enumerate(zip(image.level_sizes, image.downsamples, strict=True)):
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
