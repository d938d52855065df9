"""The pictures of docs/synthetic_slides.md.

    asmil synthetic-slides cohort
    python benchmarks/synthetic_slides_pictures.py cohort docs/images

Writes `synthetic_slides_overview.jpg` (the first slides of the cohort) and `synthetic_slides_tissue.jpg` (a border of
tumor, the outline of the annotation drawn in).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np
import yaml

from asmil.slides.image import Pixels
from asmil.slides.opening import open_slide
from asmil.synthetic.slides import SyntheticSlidesConfig, plan_slides
from asmil.synthetic.slides.layout import draw_layout, slide_truth

COLUMNS, ROWS, CELL_PX = 4, 2, 200
DETAIL_PX = (800, 500)


def overview(paths: list[Path]) -> Pixels:
    """Slides side by side, each in a square of its own."""
    cells = []
    for path in paths:
        with open_slide(path) as image:
            level = len(image.level_sizes) - 1
            width, height = image.level_sizes[level]
            pixels = image.read(0, 0, level, width, height)
        scale = (CELL_PX - 8) / max(width, height)
        small = cv2.resize(pixels, (round(width * scale), round(height * scale)), interpolation=cv2.INTER_AREA)
        cell = np.full((CELL_PX, CELL_PX, 3), 255, dtype=np.uint8)
        cell[: small.shape[0], : small.shape[1]] = small
        cells.append(cell)
    rows = [np.concatenate(cells[start : start + COLUMNS], axis=1) for start in range(0, len(cells), COLUMNS)]
    return np.concatenate(rows)


def detail(config: SyntheticSlidesConfig, number: int, folder: Path) -> Pixels:
    """A window around a point of the largest focus's outline, at full resolution."""
    plan = plan_slides(config)[number]
    region = max(slide_truth(draw_layout(config, plan)).regions, key=lambda region: len(region.outline))
    width, height = DETAIL_PX
    with open_slide(folder / "slides" / f"{plan.slide}.tif") as image:
        limits = np.array(image.size) - DETAIL_PX
        corner = np.clip(region.outline[np.argmin(region.outline[:, 0])] - (width // 3, height // 2), 0, limits)
        pixels = image.read(int(corner[0]), int(corner[1]), 0, width, height).copy()
    for outline in (region.outline, *region.holes):
        cv2.polylines(pixels, [outline - corner.astype(np.int32)], True, (20, 120, 40), 2, cv2.LINE_AA)
    return pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--detail", type=int, default=4, help="number of the slide of the second picture")
    options = parser.parse_args()
    config = SyntheticSlidesConfig(**yaml.safe_load((options.cohort / "synthetic_slides.yaml").read_text()))
    paths = sorted((options.cohort / "slides").glob("*.tif"))[4 : 4 + COLUMNS * ROWS]
    pictures = {"overview": overview(paths), "tissue": detail(config, options.detail, options.cohort)}
    for name, pixels in pictures.items():
        path = options.out / f"synthetic_slides_{name}.jpg"
        cv2.imwrite(str(path), pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 80])


if __name__ == "__main__":
    main()
