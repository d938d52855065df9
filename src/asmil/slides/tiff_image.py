"""Read slides from TIFF files: only the tiles or strips that a region intersects are decoded."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, cast

import cv2
import numpy as np
import tifffile
from numpy.typing import NDArray
from tifffile import COMPRESSION, PHOTOMETRIC, PLANARCONFIG

from asmil.slides.byte_cache import ByteCache
from asmil.slides.image import Pixels, Resolution, Size, SlideImage
from asmil.slides.openslide_image import CACHE_BYTES, unreadable
from asmil.slides.pixel_regions import over_gray, paste, read_between

Page = Any
"""A tifffile.TiffPage; tifffile computes most of its attributes and does not type them."""
START = b"\xff\xd8"
SCAN = 0xDA
FRAMES_DECODED = (0xC0, 0xC1, 0xC2)
"""Baseline, extended and progressive JPEG, which browsers decode."""
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
NOTES = frozenset((*range(0xE0, 0xF0), 0xFE))
"""Application data and comments."""
JFIF = b"JFIF\0"


class TiffImage(SlideImage):
    """A slide whose levels are pages of a TIFF file: 8 bits per channel, gray, RGB or RGBA."""

    reader = "tifffile"

    def __init__(
        self,
        path: Path,
        tiff: tifffile.TiffFile,
        pages: Sequence[Page],
        resolution: Resolution | None,
        vendor: str | None = None,
    ) -> None:
        super().__init__(path, [page_size(page) for page in pages], resolution, vendor)
        self._tiff = tiff
        self._pages = tuple(pages)
        self._cache = ByteCache[NDArray[np.uint8]](CACHE_BYTES)
        # held during every access to the file, and to page attributes that tifffile reads lazily
        self._file_lock = Lock()

    def read(self, x: int, y: int, level: int, width: int, height: int, outside: int = 255) -> Pixels:
        downsample_x, downsample_y = self.downsamples[level]
        fetch = partial(self._region, level, outside)
        try:
            return read_between(fetch, x / downsample_x, y / downsample_y, width, height)
        except Exception as error:
            # decoders raise different exceptions on a damaged segment
            raise unreadable(self.path, x, y, level, error) from error

    def stored_tile_size(self, level: int) -> tuple[int, int] | None:
        page = self._pages[level]
        return (int(page.tilewidth), int(page.tilelength)) if page.is_tiled else None

    def decoded_at_once(self, level: int) -> int:
        page = self._pages[level]
        if is_stored_as_array(page):
            return 0
        grid = segment_grid(page)
        return grid.width * grid.height

    def stored_jpeg(self, level: int, column: int, row: int) -> bytes | None:
        page = self._pages[level]
        if not has_jpeg_tiles(page):
            return None
        grid = segment_grid(page)
        if not (0 <= column < grid.across and 0 <= row < grid.down):
            return None
        try:
            data = self._stored(page, row * grid.across + column)
            if data is None:
                return None
            with self._file_lock:
                tables = page.jpegtables
            return whole_jpeg(data, tables, page.photometric == PHOTOMETRIC.RGB)
        except (EOFError, OSError, ValueError) as error:
            raise unreadable(self.path, column, row, level, error) from error

    def close(self) -> None:
        self._cache.clear()
        self._tiff.close()

    def _region(self, level: int, outside: int, column: int, row: int, width: int, height: int) -> Pixels:
        page = self._pages[level]
        channels = page.samplesperpixel
        canvas = np.full((height, width, channels), 0 if channels == 4 else outside, dtype=np.uint8)
        if is_stored_as_array(page):
            shape = (page.imagelength, page.imagewidth, channels)
            stored = np.memmap(self.path, np.uint8, "r", offset=page.dataoffsets[0], shape=shape)
            paste(canvas, stored, -column, -row)
        else:
            for segment in segments_meeting(page, column, row, width, height):
                pixels = self._segment(level, segment.number)
                if pixels is not None:
                    # the last tiles of a row or column are padded beyond the image
                    pixels = pixels[: page.imagelength - segment.y, : page.imagewidth - segment.x]
                    part = canvas if pixels.shape[2] == channels else canvas[..., segment.sample, None]
                    paste(part, pixels, segment.x - column, segment.y - row)
        return _rgb(canvas, page.photometric, outside)

    def _segment(self, level: int, number: int) -> NDArray[np.uint8] | None:
        """A decoded tile or strip; None if the file omits it."""
        cached = self._cache.get((level, number))
        if cached is not None:
            return cached
        page = self._pages[level]
        data = self._stored(page, number)
        if data is None:
            return None
        with self._file_lock:
            decode, tables = page.decode, page.jpegtables
        pixels: NDArray[np.uint8] = decode(data, number, jpegtables=tables)[0][0]
        self._cache.put((level, number), pixels)
        return pixels

    def _stored(self, page: Page, number: int) -> bytes | None:
        """The bytes of a tile or strip; None if the file omits it."""
        with self._file_lock:
            length = page.databytecounts[number]
            if length == 0:
                return None
            self._tiff.filehandle.seek(page.dataoffsets[number])
            data: bytes = self._tiff.filehandle.read(length)
        if len(data) < length:
            raise EOFError("the file ends too early")
        return data


def _rgb(canvas: NDArray[np.uint8], photometric: int, outside: int) -> Pixels:
    channels = canvas.shape[2]
    if channels == 3:
        return canvas
    if channels == 4:
        return over_gray(canvas, outside)
    rgb = cast(Pixels, cv2.cvtColor(canvas, cv2.COLOR_GRAY2RGB))
    return 255 - rgb if photometric == PHOTOMETRIC.MINISWHITE else rgb


# Tiles and strips of a page


class SegmentGrid(NamedTuple):
    """Tiles or strips: their size in pixels, their number, and planes if channels are stored separately."""

    width: int
    height: int
    across: int
    down: int
    planes: int

    @property
    def total(self) -> int:
        return self.across * self.down * self.planes


class Segment(NamedTuple):
    """A tile or strip of a page: its number, its corner in pixels, and its channel, if stored separately."""

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
    planes = page.samplesperpixel if page.planarconfig == PLANARCONFIG.SEPARATE else 1
    return SegmentGrid(width, height, -(-page_width // width), -(-page_height // height), planes)


def segments_meeting(page: Page, column: int, row: int, width: int, height: int) -> Iterator[Segment]:
    """The tiles or strips that intersect a region."""
    grid = segment_grid(page)
    rows = range(max(row // grid.height, 0), min(math.ceil((row + height) / grid.height), grid.down))
    columns = range(max(column // grid.width, 0), min(math.ceil((column + width) / grid.width), grid.across))
    for sample in range(grid.planes):
        for j in rows:
            for i in columns:
                yield Segment((sample * grid.down + j) * grid.across + i, i * grid.width, j * grid.height, sample)


def is_stored_as_array(page: Page) -> bool:
    """Whether the pixels are stored contiguously, so that any part can be read without the rest."""
    one_plane = page.planarconfig == PLANARCONFIG.CONTIG or page.samplesperpixel == 1
    return bool(not page.is_tiled and one_plane and page.is_memmappable)


def has_jpeg_tiles(page: Page) -> bool:
    """Whether a page is stored as JPEG tiles that every program can decode."""
    return bool(
        page.is_tiled
        and page.compression == COMPRESSION.JPEG
        and page.bitspersample == 8
        and (page.samplesperpixel == 1 or page.planarconfig == PLANARCONFIG.CONTIG)
        and page.photometric in (PHOTOMETRIC.RGB, PHOTOMETRIC.YCBCR, PHOTOMETRIC.MINISBLACK)
        and page.tags.valueof("Orientation", 1) == 1
    )


def whole_jpeg(data: bytes, tables: bytes | None, is_rgb: bool) -> bytes | None:
    """A JPEG file of a tile's bytes and the tables of its page; None if a browser would not decode it.

    A TIFF keeps the tables that all tiles share (quantization, Huffman) once, and says outside of the JPEG whether its
    colors are RGB or YCbCr. A browser knows neither, so both are written into the tile: no pixel is decoded.

    is_rgb: whether the TIFF states that the colors are RGB; a tile in JFIF format is always YCbCr
    """
    parts = [*_parts(tables or START), *_parts(data)]
    frames = [(kind, content) for kind, content in parts if kind in FRAMES]
    if len(frames) != 1 or frames[0][0] not in FRAMES_DECODED or frames[0][1][4] != 8:
        return None
    is_jfif = any(kind == 0xE0 and content[4:].startswith(JFIF) for kind, content in parts)
    kept = b"".join(content for kind, content in parts if kind not in NOTES)
    color = _adobe(is_rgb=is_rgb and not is_jfif) if frames[0][1][9] == 3 else b""
    return START + color + kept


def _adobe(is_rgb: bool) -> bytes:
    """The segment that tells decoders the color space: version, two flags, and 0 for RGB or 1 for YCbCr."""
    return b"\xff\xee" + struct.pack(">H5sHHHB", 14, b"Adobe", 100, 0, 0, 0 if is_rgb else 1)


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The segments of a JPEG stream with their marker; the scan comes last, with all that follows it."""
    if data[:2] != START:
        raise ValueError("a tile does not start like a JPEG file")
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            raise ValueError("a segment of a JPEG tile does not begin with a marker")
        kind = data[at + 1]
        if kind == 0xFF:  # fill byte
            at += 1
            continue
        if kind == SCAN:
            yield kind, data[at:]
            return
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if end > len(data):
            raise ValueError("a JPEG tile ends too early")
        yield kind, data[at:end]
        at = end
