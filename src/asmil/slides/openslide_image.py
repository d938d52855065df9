"""Slides that OpenSlide reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openslide

from asmil.errors import AsmilError, first_line
from asmil.slides.image import Pixels, Resolution, SlideImage
from asmil.slides.pixel_regions import over_gray

CACHE_BYTES = 32 << 20
"""Cache of decoded tiles per open slide: enough for a group of neighboring tiles and its border."""


class OpenSlideImage(SlideImage):
    """A slide opened by OpenSlide.

    levels: those of OpenSlide's levels that are used; by default all
    """

    reader = "openslide"

    def __init__(
        self, path: Path, slide: openslide.OpenSlide, resolution: Resolution | None, levels: Sequence[int] | None = None
    ) -> None:
        self._levels = tuple(range(slide.level_count) if levels is None else levels)
        sizes = [slide.level_dimensions[level] for level in self._levels]
        super().__init__(path, sizes, resolution, slide.properties.get("openslide.vendor"))
        self._slide = slide
        self._slide.set_cache(openslide.OpenSlideCache(CACHE_BYTES))
        # read once: after a failed read, OpenSlide fails on every call
        self._openslide_downsamples = tuple(slide.level_downsamples[level] for level in self._levels)

    @property
    def bounds_origin(self) -> tuple[int, int]:
        bounds = [self._slide.properties.get(f"openslide.bounds-{side}", "") for side in ("x", "y", "width", "height")]
        return (int(bounds[0]), int(bounds[1])) if all(text.isdecimal() for text in bounds) else (0, 0)

    def read(self, x: int, y: int, level: int, width: int, height: int, outside: int = 255) -> Pixels:
        if x >= 0 and y >= 0:
            return self._read_inside(x, y, level, width, height, outside)
        # left of and above the slide, OpenSlide is off by up to a pixel
        downsample_x, downsample_y = self.downsamples[level]
        left, top = (max(0, math.ceil(-at / by)) for at, by in ((x, downsample_x), (y, downsample_y)))
        canvas = np.full((height, width, 3), outside, dtype=np.uint8)
        if left < width and top < height:
            x, y = round(x + left * downsample_x), round(y + top * downsample_y)
            canvas[top:, left:] = self._read_inside(x, y, level, width - left, height - top, outside)
        return canvas

    def _read_inside(self, x: int, y: int, level: int, width: int, height: int, outside: int) -> Pixels:
        # OpenSlide divides positions by its own mean of both axes.
        theirs, (ours_x, ours_y) = self._openslide_downsamples[level], self.downsamples[level]
        position = round(x * theirs / ours_x), round(y * theirs / ours_y)
        try:
            region = self._slide.read_region(position, self._levels[level], (width, height))
        except openslide.OpenSlideError as error:
            raise unreadable(self.path, x, y, level, error) from error
        return over_gray(np.asarray(region), outside)

    def stored_tile_size(self, level: int) -> tuple[int, int] | None:
        theirs = self._levels[level]
        sides = [self._slide.properties.get(f"openslide.level[{theirs}].tile-{side}") for side in ("width", "height")]
        width, height = (int(side) if side and side.isdigit() else 0 for side in sides)
        return (width, height) if width and height else None

    def close(self) -> None:
        self._slide.close()


def levels_with_whole_tiles(path: Path, level_sizes: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The first level, and those others whose last tile OpenSlide can read.

    Some writers of DICOM cut the tiles at the right and lower edge of a level instead of padding them. OpenSlide
    refuses these tiles, and after one of them everything else of the slide. Another level is used instead.
    """
    return (0, *(level for level in range(1, len(level_sizes)) if _has_whole_tiles(path, level, level_sizes)))


def _has_whole_tiles(path: Path, level: int, level_sizes: Sequence[tuple[int, int]]) -> bool:
    (full_width, full_height), (width, height) = level_sizes[0], level_sizes[level]
    last_pixel = int((width - 0.5) / width * full_width), int((height - 0.5) / height * full_height)
    with openslide.OpenSlide(path) as slide:
        try:
            slide.read_region(last_pixel, level, (1, 1))
        except openslide.OpenSlideError:
            return False
    return True


def unreadable(path: Path, x: int, y: int, level: int, reason: object) -> AsmilError:
    """The error for a region that cannot be decoded."""
    return AsmilError(
        f"{path}: the pixels at ({x}, {y}) of level {level} cannot be read ({first_line(reason)}); the file is "
        "damaged; copy it again from its source"
    )
