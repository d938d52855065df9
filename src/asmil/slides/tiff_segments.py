"""Where the tiles or strips of a TIFF page lie."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import tifffile

from asmil.slides.levels import Size

Page = Any
"""A tifffile.TiffPage; tifffile computes most of its attributes, and does not type them."""


class SegmentGrid(NamedTuple):
    """Tiles or strips: pixels of each, how many of them, and planes where every channel has its own."""

    width: int
    height: int
    across: int
    down: int
    planes: int

    @property
    def total(self) -> int:
        """How many there are in all."""
        return self.across * self.down * self.planes


class SegmentPlace(NamedTuple):
    """A tile or strip of a page: its number, the pixel of its corner, and its channel where each has its own."""

    number: int
    x: int
    y: int
    sample: int


def page_size(page: Page) -> Size:
    """(width, height) of a page."""
    return int(page.imagewidth), int(page.imagelength)


def segment_grid(page: Page) -> SegmentGrid:
    """How a page is divided."""
    page_width, page_height = page_size(page)
    if page.is_tiled:
        width, height = int(page.tilewidth), int(page.tilelength)
    else:
        width, height = page_width, min(int(page.rowsperstrip), page_height)
    planes = page.samplesperpixel if page.planarconfig == tifffile.PLANARCONFIG.SEPARATE else 1
    return SegmentGrid(width, height, -(-page_width // width), -(-page_height // height), planes)


def segments_meeting(page: Page, column: int, row: int, width: int, height: int) -> Iterator[SegmentPlace]:
    """The tiles or strips that a region meets."""
    grid = segment_grid(page)
    rows = range(max(row // grid.height, 0), min(math.ceil((row + height) / grid.height), grid.down))
    columns = range(max(column // grid.width, 0), min(math.ceil((column + width) / grid.width), grid.across))
    for sample in range(grid.planes):
        for j in rows:
            for i in columns:
                yield SegmentPlace((sample * grid.down + j) * grid.across + i, i * grid.width, j * grid.height, sample)


def is_stored_as_array(page: Page) -> bool:
    """Whether the pixels lie in the file one after another, so that any part can be read without the rest."""
    one_plane = page.planarconfig == tifffile.PLANARCONFIG.CONTIG or page.samplesperpixel == 1
    return bool(not page.is_tiled and one_plane and page.is_memmappable)
