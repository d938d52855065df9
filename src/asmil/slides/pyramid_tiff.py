"""Write pyramidal TIFF files that every slide reader opens.

Levels are pages of JPEG tiles, the finest first; the coarser ones are marked as reduced images and state their
own resolution, so that OpenSlide (vendor generic-tiff) finds the levels and the microns per pixel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import cv2
import imagecodecs
import numpy as np
import tifffile

from asmil.files import replacing
from asmil.slides.image import Pixels

TILE_PX = 256
REDUCED_IMAGE = 1
MICRONS_PER_CM = 10_000.0


def write_pyramid(
    path: Path | str,
    pixels: Pixels | Iterable[Pixels],
    mpp: float,
    size: tuple[int, int] | None = None,
    downsamples: Sequence[int] = (4, 16),
    quality: int = 85,
    description: str = "",
) -> None:
    """Write a slide as a pyramid of JPEG tiles, atomically.

    pixels: the slide, or its strips from top to bottom; strips may have any heights
    size: (width, height) of the slide, needed with strips
    downsamples: of the coarser levels, ascending, each a multiple of the previous one; pixels are averaged
    quality: JPEG quality, 1 to 100
    description: text for the finest level's ImageDescription; characters beyond ASCII are replaced

    With strips, only one strip and the encoded tiles of the coarser levels are kept in memory.
    """
    if isinstance(pixels, np.ndarray):
        size = (pixels.shape[1], pixels.shape[0])
        pixels = [pixels]
    if size is None:
        raise ValueError("write_pyramid needs the size of a slide given as strips")
    levels = [_Level(size, downsample, quality) for downsample in (1, *downsamples)]
    may_pass_4_gb = size[0] * size[1] > 2**31
    with replacing(path) as partial, tifffile.TiffWriter(partial, bigtiff=may_pass_4_gb) as file:
        for number, level in enumerate(levels):
            file.write(
                _finest_tiles(levels, pixels) if number == 0 else iter(level.encoded),
                shape=(level.height, level.width, 3),
                dtype=np.uint8,
                photometric="ycbcr",
                subsampling=(2, 2),
                tile=(TILE_PX, TILE_PX),
                compression="jpeg",
                subfiletype=REDUCED_IMAGE if number else 0,
                resolution=(MICRONS_PER_CM / (mpp * level.downsample),) * 2,
                resolutionunit="CENTIMETER",
                software="asmil",
                description=description.encode("ascii", "replace") if description and not number else None,
                metadata=None,
            )


class _Level:
    """One level: receives strips of its pixels and returns encoded tiles as soon as a row of them is complete."""

    def __init__(self, size: tuple[int, int], downsample: int, quality: int) -> None:
        self.downsample = downsample
        self.width, self.height = (max(1, -(-side // downsample)) for side in size)
        self.encoded: list[bytes] = []
        self._quality = quality
        self._waiting: list[Pixels] = []
        self._rows_waiting = 0
        self._rows_taken = 0

    def take(self, strip: Pixels) -> list[bytes]:
        """Add rows; return the tiles that they complete, in the order of the file."""
        self._waiting.append(strip)
        self._rows_waiting += len(strip)
        self._rows_taken += len(strip)
        is_last = self._rows_taken >= self.height
        if self._rows_waiting < TILE_PX and not is_last:
            return []
        rows = np.concatenate(self._waiting) if len(self._waiting) > 1 else self._waiting[0]
        ready = len(rows) if is_last else len(rows) - len(rows) % TILE_PX
        self._waiting, self._rows_waiting = [rows[ready:].copy()], len(rows) - ready
        return [
            self._encode(rows[top : min(top + TILE_PX, ready), left : left + TILE_PX])
            for top in range(0, ready, TILE_PX)
            for left in range(0, self.width, TILE_PX)
        ]

    def _encode(self, tile: Pixels) -> bytes:
        height, width = tile.shape[:2]
        if (height, width) != (TILE_PX, TILE_PX):
            tile = np.pad(tile, ((0, TILE_PX - height), (0, TILE_PX - width), (0, 0)), mode="edge")
        encoded = imagecodecs.jpeg8_encode(
            np.ascontiguousarray(tile), level=self._quality, colorspace="RGB", outcolorspace="YCBCR", subsampling="420"
        )
        return bytes(encoded)


def _finest_tiles(levels: Sequence[_Level], strips: Iterable[Pixels]) -> Iterator[bytes]:
    """The tiles of the finest level; the coarser levels process a strip before its tiles are yielded.

    This order is needed because the writer stops after the last tile.
    """
    finest, coarser = levels[0], levels[1:]
    step = coarser[-1].downsample if coarser else 1
    for strip in _in_multiples(strips, step):
        reduced, downsample = strip, 1
        for level in coarser:
            reduced = _reduced(reduced, level.downsample // downsample)
            downsample = level.downsample
            level.encoded += level.take(reduced)
        yield from finest.take(strip)


def _in_multiples(strips: Iterable[Pixels], step: int) -> Iterator[Pixels]:
    """The same rows in strips whose heights are multiples of `step`, except for the last."""
    rest: Pixels | None = None
    for strip in strips:
        rows = strip if rest is None or not len(rest) else np.concatenate([rest, strip])
        whole = len(rows) - len(rows) % step
        if whole:
            yield rows[:whole]
        rest = rows[whole:]
    if rest is not None and len(rest):
        yield rest


def _reduced(pixels: Pixels, factor: int) -> Pixels:
    """Means of factor x factor squares; the last row and column of squares repeat the border."""
    height, width = pixels.shape[:2]
    below, right = -height % factor, -width % factor
    if below or right:
        pixels = np.pad(pixels, ((0, below), (0, right), (0, 0)), mode="edge")
    size = (pixels.shape[1] // factor, pixels.shape[0] // factor)
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
