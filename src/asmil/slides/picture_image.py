"""Plain pictures (PNG, JPEG, BMP) as slides of one level."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import cv2
import numpy as np

from asmil.errors import AsmilError
from asmil.slides.file_names import slide_name
from asmil.slides.image import Pixels, Resolution, Size, SlideImage
from asmil.slides.pixel_regions import paste

PNG_START, JPEG_START, BMP_START = b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"BM"
JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the segment that states the size of a JPEG."""
PNG_PART_BYTES = 12
"""Length, type and checksum of a PNG chunk, in bytes."""


class PictureImage(SlideImage):
    """A picture that is kept in memory as a whole."""

    reader = "opencv"
    vendor = None

    def __init__(self, path: Path, resolution: Resolution | None) -> None:
        self.path = path
        self.name = slide_name(path)
        self.resolution = resolution
        self._pixels = _decode(path)
        self.level_sizes = ((self._pixels.shape[1], self._pixels.shape[0]),)

    def read(self, x: int, y: int, level: int, width: int, height: int, outside: int = 255) -> Pixels:
        canvas = np.full((height, width, 3), outside, dtype=np.uint8)
        paste(canvas, self._pixels, -x, -y)
        return canvas

    @property
    def held_bytes(self) -> int:
        return int(self._pixels.nbytes)

    def close(self) -> None:
        self._pixels = np.empty((0, 0, 3), dtype=np.uint8)


def picture_size(path: Path) -> Size | None:
    """(width, height) as the header states them, without decoding the picture; None for a header that is damaged."""
    with path.open("rb") as file:
        start = file.read(26)
        if start.startswith(PNG_START) and len(start) >= 24:
            return int.from_bytes(start[16:20], "big"), int.from_bytes(start[20:24], "big")
        if start.startswith(BMP_START) and len(start) == 26:
            width, height = (int.from_bytes(start[at : at + 4], "little", signed=True) for at in (18, 22))
            return abs(width), abs(height)  # a negative height: the rows run from top to bottom
        if start.startswith(JPEG_START):
            file.seek(len(JPEG_START))
            while len(part := file.read(9)) == 9 and part[0] == 0xFF:
                if part[1] in JPEG_FRAMES:
                    return int.from_bytes(part[7:9], "big"), int.from_bytes(part[5:7], "big")
                filled = part[1] == 0xFF  # a fill byte stands before the marker
                file.seek(1 - 9 if filled else 2 + int.from_bytes(part[2:4], "big") - 9, 1)
    return None


def _is_torn_png(content: Pixels) -> bool:
    """Whether a chunk of a PNG is longer than the file; OpenCV would allocate that much memory before checking."""
    if content[: len(PNG_START)].tobytes() != PNG_START:
        return False
    at = len(PNG_START)
    while at + 8 <= len(content):
        at += PNG_PART_BYTES + int.from_bytes(content[at : at + 4].tobytes(), "big")
    return at > len(content)


def _decode(path: Path) -> Pixels:
    content = np.fromfile(path, dtype=np.uint8)
    if _is_torn_png(content):
        raise AsmilError(f"{path}: the picture is damaged, or its end is missing; copy the file again")
    try:
        decoded = cv2.imdecode(content, cv2.IMREAD_COLOR_RGB)
    except cv2.error as error:
        raise AsmilError(f"{path}: the picture cannot be decoded ({error.err}); save it again as PNG") from error
    if decoded is None:
        raise AsmilError(f"{path}: the picture cannot be decoded; save it again as PNG")
    return cast(Pixels, decoded)
