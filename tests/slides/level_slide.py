"""A slide of several levels, held in memory."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from asmil.slides.image import Pixels, SlideImage


class LevelSlide(SlideImage):
    """Level 0, and that reduced by each of some factors; no resolution."""

    def __init__(self, pixels: Pixels, factors: tuple[int, ...] = (), name: str = "drawn") -> None:
        height, width = pixels.shape[:2]
        self.levels = [pixels] + [
            cv2.resize(pixels, (width // factor, height // factor), interpolation=cv2.INTER_AREA) for factor in factors
        ]
        self.path, self.name, self.reader, self.vendor = Path(f"{name}.tif"), name, "array", None
        self.level_sizes = tuple((level.shape[1], level.shape[0]) for level in self.levels)
        self.resolution = None

    def read(self, x: int, y: int, level: int, width: int, height: int, outside: int = 255) -> Pixels:
        across, down = self.level_downsamples[level]
        left, top = round(x / across), round(y / down)
        region = np.full((height, width, 3), outside, dtype=np.uint8)
        part = self.levels[level][max(top, 0) : top + height, max(left, 0) : left + width]
        region[max(-top, 0) :, max(-left, 0) :][: part.shape[0], : part.shape[1]] = part
        return region

    def close(self) -> None:
        pass


def pink_on_white(mask: np.ndarray) -> Pixels:
    """White glass with saturated tissue where the mask says so."""
    pixels = np.full((*mask.shape, 3), 255, dtype=np.uint8)
    pixels[np.asarray(mask, dtype=bool)] = (200, 60, 140)
    return pixels
