"""Pictures to check the tissue and the tiles of a slide at a glance."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.errors import AsmilError
from asmil.files import replacing
from asmil.slides.image import Pixels
from asmil.slides.settings import Artifact
from asmil.slides.tissue.regions import Mask, Tissue
from asmil.tables.arrays import Booleans, Integers

PICTURE_SIDE_PX = 1024
TISSUE_COLOR = (0, 170, 60)
HOLE_COLOR = (20, 90, 255)
TILE_COLOR = (30, 60, 140)
ARTIFACT_COLORS: dict[Artifact, tuple[int, int, int]] = {"blurred": (230, 120, 0), "folded": (200, 0, 160)}
TILE_FILL = 0.13
TILE_LINE = 0.45
ARTIFACT_FILL = 0.4
SMALLEST_GRID_PX = 5
"""Lines around tiles smaller than this would hide the tissue."""
JPEG_QUALITY = 88
PNG_COMPRESSION = 3
"""PNG compression level (0 to 9): slightly larger files in a fraction of the time."""
PNG_HEADER = 33
"""Bytes of the signature and of the chunk that says how large the picture is; texts follow it."""
SUBPIXEL_BITS = 4


def draw_tissue(
    pixels: Pixels,
    downsample: tuple[float, float],
    tissue: Tissue,
    coords: Integers | None,
    tile_px_level0: int,
    artifacts: Mapping[Artifact, Booleans] | None = None,
) -> Pixels:
    """A copy of an overview with its tissue (green), holes (blue), tiles (a thin grid) and artifacts drawn on it.

    downsample: level-0 pixels of an overview pixel, (x, y)
    coords: upper left corners of tiles at level 0, or None
    artifacts: tiles to fill with the color of an artifact
    """
    picture = pixels.copy()
    if coords is not None and len(coords):
        picture = _draw_tiles(picture, downsample, coords, tile_px_level0)
        for name, tiles in (artifacts or {}).items():
            color = ARTIFACT_COLORS[name]
            picture = _draw_tiles(picture, downsample, coords[tiles], tile_px_level0, color, ARTIFACT_FILL)
    thickness = 1 if max(picture.shape) < 700 else 2
    for color, polygons in (
        (HOLE_COLOR, [hole for region in tissue.regions for hole in region.holes]),
        (TISSUE_COLOR, [region.outline for region in tissue.regions]),
    ):
        drawn = [subpixel_points(polygon, downsample) for polygon in polygons]
        cv2.polylines(picture, drawn, True, color, thickness, cv2.LINE_AA, SUBPIXEL_BITS)
    return picture


def write_jpeg(path: Path | str, pixels: Pixels) -> None:
    """Write an RGB picture as JPEG, atomically."""
    _write(Path(path), ".jpg", pixels[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])


def write_png(path: Path | str, pixels: Pixels, texts: Mapping[str, str] | None = None) -> None:
    """Write an RGB picture as PNG, whole or not at all.

    texts: stored in the file by their keys, for programs that ask for them
    """
    _write(Path(path), ".png", pixels[:, :, ::-1], [cv2.IMWRITE_PNG_COMPRESSION, PNG_COMPRESSION], texts or {})


def write_mask(path: Path | str, mask: Mask) -> None:
    """Write a mask as a PNG of 0 and 255, atomically."""
    _write(Path(path), ".png", mask.astype(np.uint8) * 255, [])


def read_picture(path: Path | str) -> Pixels:
    """A picture as RGB."""
    encoded = np.frombuffer(Path(path).read_bytes(), dtype=np.uint8)
    picture = cv2.imdecode(encoded, cv2.IMREAD_COLOR) if encoded.size else None
    if picture is None:
        raise AsmilError(f"{path}: this is not a picture; remove it and run the same command again")
    return np.asarray(picture[:, :, ::-1], dtype=np.uint8)


def _write(
    path: Path, ending: str, pixels: NDArray[np.uint8], options: list[int], texts: Mapping[str, str] | None = None
) -> None:
    done, encoded = cv2.imencode(ending, pixels, options)
    if not done:
        raise AsmilError(f"{path}: a picture of {pixels.shape[1]} x {pixels.shape[0]} pixels cannot be written")
    with replacing(path) as partial:
        content = encoded.tobytes()
        chunks = b"".join(_text_chunk(key, text) for key, text in (texts or {}).items())
        partial.write_bytes(content[:PNG_HEADER] + chunks + content[PNG_HEADER:])


def _text_chunk(key: str, text: str) -> bytes:
    """A text of a PNG: its length, kind, content and checksum."""
    content = b"tEXt" + key.encode("latin-1") + b"\0" + text.encode("latin-1")
    return struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))


def _draw_tiles(
    picture: Pixels,
    downsample: tuple[float, float],
    coords: Integers,
    tile_px_level0: int,
    color: tuple[int, int, int] = TILE_COLOR,
    opacity: float = TILE_FILL,
) -> Pixels:
    scale = np.asarray(downsample)
    corners = np.rint(coords / scale).astype(int)
    ends = np.rint((coords + tile_px_level0) / scale).astype(int) - 1
    fill = np.zeros(picture.shape[:2], dtype=np.uint8)
    lines = np.zeros_like(fill)
    gridded = tile_px_level0 / float(scale.max()) >= SMALLEST_GRID_PX
    for corner, end in zip(corners.tolist(), ends.tolist(), strict=True):
        cv2.rectangle(fill, corner, end, 1, cv2.FILLED)
        if gridded:
            # one pixel larger, so that neighbors share a line
            cv2.rectangle(lines, corner, (end[0] + 1, end[1] + 1), 1, 1)
    weight = np.maximum(fill * opacity, lines * TILE_LINE)[..., None]
    return np.asarray(np.rint(picture * (1 - weight) + np.asarray(color) * weight), dtype=np.uint8)


def subpixel_points(polygon: NDArray[Any], downsample: tuple[float, float]) -> NDArray[np.int32]:
    """Level-0 points relative to the corner of a picture, for OpenCV: in fractions of SUBPIXEL_BITS bits of a pixel."""
    # A point at level-0 position p lies in the overview at p / downsample, and the center of its first pixel at 0.5.
    points = (polygon / np.asarray(downsample) - 0.5) * 2**SUBPIXEL_BITS
    return np.asarray(np.rint(points), dtype=np.int32)
