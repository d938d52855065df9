"""Plain pictures (PNG, JPEG, BMP) as slides of one level."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL.BmpImagePlugin import BmpImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from asmil.errors import AsmilError
from asmil.slides.image import Pixels, Resolution, Size, SlideImage
from asmil.slides.pixel_regions import paste

PNG_START = b"\x89PNG\r\n\x1a\n"
PNG_PART_BYTES = 12
"""Length, type and checksum of a PNG chunk, in bytes."""


class PictureImage(SlideImage):
    """A picture that is kept in memory as a whole."""

    reader = "opencv"

    def __init__(self, path: Path, resolution: Resolution | None) -> None:
        self._pixels = decode_picture(path).astype(np.uint8, copy=False)
        super().__init__(path, [(self._pixels.shape[1], self._pixels.shape[0])], resolution)

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
    for read_header in (PngImageFile, JpegImageFile, BmpImageFile):  # PIL.Image.open refuses large pictures
        with suppress(Exception), read_header(path) as picture:
            return picture.size
    return None


def _is_torn_png(content: Pixels) -> bool:
    """Whether a chunk of a PNG is longer than the file; OpenCV would allocate that much memory before checking."""
    if content[: len(PNG_START)].tobytes() != PNG_START:
        return False
    at = len(PNG_START)
    while at + 8 <= len(content):
        at += PNG_PART_BYTES + int.from_bytes(content[at : at + 4].tobytes(), "big")
    return at > len(content)


def decode_picture(path: Path, flags: int = cv2.IMREAD_COLOR_RGB) -> NDArray[np.integer]:
    """The pixels of a PNG, JPEG or BMP file; flags: of OpenCV."""
    content = np.fromfile(path, dtype=np.uint8)
    if _is_torn_png(content):
        raise AsmilError(f"{path}: the picture is damaged, or its end is missing; copy the file again")
    try:
        decoded = cv2.imdecode(content, flags)
    except cv2.error as error:
        raise AsmilError(f"{path}: the picture cannot be decoded ({error.err}); save it again as PNG") from error
    if decoded is None:
        raise AsmilError(f"{path}: the picture cannot be decoded; save it again as PNG")
    return cast(NDArray[np.integer], decoded)
