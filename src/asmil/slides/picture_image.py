"""Plain pictures (PNG, JPEG, BMP) as slides of one level."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import cv2
import numpy as np

from asmil.errors import AsmilError
from asmil.slides.file_names import slide_name
from asmil.slides.image import Pixels, Resolution, SlideImage
from asmil.slides.pixel_regions import paste


class PictureImage(SlideImage):
    """A picture that is held in memory whole."""

    reader = "opencv"
    vendor = None

    def __init__(self, path: Path, resolution: Resolution | None) -> None:
        self.path = path
        self.name = slide_name(path)
        self.resolution = resolution
        self._pixels = _decode(path)
        self.level_sizes = ((self._pixels.shape[1], self._pixels.shape[0]),)

    def read(self, x: int, y: int, level: int, width: int, height: int, outside: int = 255) -> Pixels:
        """A region; (x, y) is its corner."""
        canvas = np.full((height, width, 3), outside, dtype=np.uint8)
        paste(canvas, self._pixels, -x, -y)
        return canvas

    def close(self) -> None:
        """Let go of the pixels."""
        self._pixels = np.empty((0, 0, 3), dtype=np.uint8)


def _decode(path: Path) -> Pixels:
    try:
        decoded = cv2.imdecode(np.fromfile(path, dtype=np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error as error:
        raise AsmilError(f"{path}: the picture cannot be decoded ({error.err}); save it again as PNG") from error
    if decoded is None:
        raise AsmilError(f"{path}: the picture cannot be decoded; save it again as PNG")
    return cast(Pixels, decoded)
