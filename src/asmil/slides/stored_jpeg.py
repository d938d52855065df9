"""Convert JPEG tiles of a TIFF to standalone JPEG files.

A TIFF stores the tables that all tiles share (quantization, Huffman) once, and states outside the JPEG whether its
colors are RGB or YCbCr. A browser needs both in the file, so they are written into the tile, without decoding pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from tifffile import COMPRESSION, PHOTOMETRIC, PLANARCONFIG

START = b"\xff\xd8"
SCAN = 0xDA
FRAMES_DECODED = (0xC0, 0xC1, 0xC2)
"""Baseline, extended and progressive JPEG, which browsers decode."""
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
NOTES = frozenset((*range(0xE0, 0xF0), 0xFE))
"""Application data and comments."""
JFIF = b"JFIF\0"


def has_jpeg_tiles(page: Any) -> bool:
    """Whether a page of a TIFF (a tifffile.TiffPage) is stored as JPEG tiles that every program can decode."""
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
