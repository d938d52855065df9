"""Small slides with tissue at known places, for tests of the whole way."""

from pathlib import Path

import cv2
import numpy as np

from asmil.slides.pyramid_tiff import write_pyramid

WHITE = 243


def tissue_pixels(side_px: int, seed: int = 0, pieces: int = 1) -> np.ndarray:
    """White glass with round pieces of pink and violet tissue."""
    draw = np.random.default_rng(seed)
    pixels = np.full((side_px, side_px, 3), WHITE, np.uint8)
    noise = cv2.GaussianBlur(draw.normal(0, 1, (side_px, side_px)), (0, 0), 4)
    violet = (noise / noise.std())[..., None] * np.array([18.0, 26.0, 8.0])
    tissue = np.clip(np.array([196.0, 128.0, 178.0]) + violet, 0, 255).astype(np.uint8)
    shape = np.zeros((side_px, side_px), np.uint8)
    for piece in range(pieces):
        x = int(side_px * (piece + 0.5) / pieces)
        y = int(side_px * draw.uniform(0.45, 0.55))
        cv2.circle(shape, (x, y), int(0.36 * side_px / pieces), 1, -1)
    pixels[shape > 0] = tissue[shape > 0]
    return pixels


def write_slide(path: Path, side_px: int = 1024, mpp: float = 1.0, seed: int = 0, pieces: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_pyramid(path, tissue_pixels(side_px, seed, pieces), mpp)
    return path


def write_slides(folder: Path, count: int, side_px: int = 1024) -> list[Path]:
    return [write_slide(folder / f"slide-{number}.tif", side_px, seed=number) for number in range(count)]
