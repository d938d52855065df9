"""A slide made of an array, and drawings of slides as tissue is looked for on them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from asmil.slides.image import Pixels, Resolution, SlideImage

GLASS = (243, 243, 243)
EOSIN = (225, 150, 190)
PALE_EOSIN = (241, 229, 236)
NUCLEI = (110, 60, 120)


class ArraySlide(SlideImage):
    """One level, held in memory."""

    def __init__(self, pixels: Pixels, mpp: float | None = 8.0, name: str = "drawn") -> None:
        self.pixels = pixels
        self.path = Path(f"{name}.tif")
        self.name = name
        self.reader = "array"
        self.vendor = None
        self.level_sizes = ((pixels.shape[1], pixels.shape[0]),)
        self.resolution = Resolution(mpp, mpp, "given") if mpp else None

    def read(self, x: int, y: int, level: int, width: int, height: int, outside: int = 255) -> Pixels:
        region = np.full((height, width, 3), outside, dtype=np.uint8)
        part = self.pixels[max(y, 0) : y + height, max(x, 0) : x + width]
        region[max(-y, 0) :, max(-x, 0) :][: part.shape[0], : part.shape[1]] = part
        return region

    def close(self) -> None:
        pass


def glass(width: int = 500, height: int = 400, color: tuple[int, int, int] = GLASS, noise: float = 2.0) -> Pixels:
    """An empty slide with the noise of a camera."""
    random = np.random.default_rng(0)
    return np.clip(random.normal(color, noise, (height, width, 3)), 0, 255).astype(np.uint8)


def ellipse(
    pixels: Pixels, center: tuple[int, int], axes: tuple[int, int], color: tuple[int, int, int] = EOSIN
) -> None:
    """Draw a filled ellipse."""
    cv2.ellipse(pixels, center, axes, 0, 0, 360, color, cv2.FILLED)


def as_jpeg(pixels: Pixels, quality: int = 60) -> Pixels:
    """The pixels after lossy compression."""
    _, encoded = cv2.imencode(".jpg", pixels[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    return np.ascontiguousarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR)[:, :, ::-1])


def texture(side: int, seed: int = 0) -> np.ndarray:
    """Tissue with detail of every size: noise whose amplitude is inversely proportional to its frequency."""
    draw = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    noise = np.fft.irfft2(np.fft.rfft2(draw.normal(size=(side, side))) / np.maximum(frequency, 1 / side), (side, side))
    shades = (noise / noise.std())[..., None] * np.array([14.0, 22.0, 12.0])
    return np.clip(np.array([205.0, 150.0, 190.0]) + shades, 0, 255).astype(np.uint8)
