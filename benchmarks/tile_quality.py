"""How many blurred and folded tiles are detected, on real slides and on damaged copies of them: docs/quality.md.

    python benchmarks/tile_quality.py CMU-1-Small-Region.svs
    python benchmarks/tile_quality.py TCGA-CR-7395-01A-01-TS1.svs --mpp 4 --tile-um 1024 --fold-um 320 640

A copy is blurred with a Gaussian, or has a strip of tissue in two or three layers over itself, at six places in turn;
it is compressed as JPEG (quality 80). Tissue and tiles are those of the original. A fold is to be detected in
tiles of which it covers more than a quarter.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import cv2
import numpy as np

from asmil.slides.image import Pixels
from asmil.slides.opening import open_slide, require_resolution
from asmil.slides.overview import read_overview
from asmil.slides.pyramid_tiff import write_pyramid
from asmil.slides.quality import TileQuality, measure_quality, tissue_stain
from asmil.slides.settings import Artifact, QualityConfig, TilingConfig, TissueConfig
from asmil.slides.tiling import TileReader, place_tiles, tile_side_level0
from asmil.slides.tissue.auto import auto_tissue
from asmil.slides.tissue.regions import Mask, Tissue
from asmil.tables.arrays import Booleans, Integers

GLASS = 243.0
SLANT = 0.15
"""Of a fold, in pixels per row."""
PLACES = np.linspace(0.1, 0.75, 6)
"""Left ends of folds in the first row, as shares of the width."""
SIGMAS = (0.5, 1.0, 1.5, 2.0, 4.0, 8.0)
"""In units of the finest detail that is measured."""
COVERED = 0.25
QUALITY = 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slide", type=Path)
    parser.add_argument("--mpp", type=float)
    parser.add_argument("--tile-um", type=float, default=128.0)
    parser.add_argument("--fold-um", type=float, nargs="+", default=[60.0, 120.0])
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    tiling = TilingConfig(tile_um=arguments.tile_um)
    with open_slide(arguments.slide, arguments.mpp) as image:
        mpp = require_resolution(image).mpp
        tissue = auto_tissue(image)
        side = tile_side_level0(tiling, require_resolution(image), image.name)
        coords = place_tiles(image, tissue, TissueConfig(), tiling, side)
        pixels = image.read(0, 0, 0, *image.size)
    with tempfile.TemporaryDirectory() as folder:

        def flags(copy: Pixels) -> dict[Artifact, Booleans]:
            path = Path(folder) / "copy.tif"
            write_pyramid(path, copy, mpp, quality=QUALITY)
            return flags_of(path, mpp, tissue, coords, side, tiling)

        original = flags_of(arguments.slide, arguments.mpp, tissue, coords, side, tiling)
        for name, flagged in original.items():
            print(f"original: {flagged.sum()} of {len(coords)} tiles {name}")
        finest = max(1.0, 2 * tiling.mpp)
        for sigma in SIGMAS:
            blurred = flags(cv2.GaussianBlur(pixels, (0, 0), sigma * finest / mpp).astype(np.uint8))["blurred"]
            print(f"blur of {sigma * finest:g} um ({sigma:g} s): {blurred.mean():.0%} detected")
        mask = cv2.resize(tissue.mask.astype(np.uint8), pixels.shape[1::-1], interpolation=cv2.INTER_NEAREST) > 0
        for layers in (2, 3):
            for width_um in arguments.fold_um:
                detected = covered = 0
                for place in PLACES:
                    copy, fold = folded(pixels, mask, int(place * pixels.shape[1]), int(width_um / mpp), layers)
                    shares = np.array([fold[y : y + side, x : x + side].mean() for x, y in coords])
                    among = flags(copy)["folded"][shares > COVERED]
                    detected, covered = detected + int(among.sum()), covered + len(among)
                print(f"fold of {layers} layers, {width_um:g} um: {detected} of {covered} tiles detected")


def flags_of(
    path: Path, mpp: float | None, tissue: Tissue, coords: Integers, side: int, tiling: TilingConfig
) -> dict[Artifact, Booleans]:
    """Which tiles of a slide are blurred and folded."""
    with open_slide(path, mpp) as image:
        stain = tissue_stain(read_overview(image, max_side=1024), require_resolution(image), tissue)
        reader, quality = TileReader(image, side, tiling.tile_px), TileQuality.unmeasured(len(coords))
        for rows in reader.groups(coords):
            quality.put(rows, measure_quality(reader.read(coords[rows]), tiling.mpp, stain))
    return quality.flags(QualityConfig())


def folded(pixels: Pixels, tissue: Mask, left: int, width: int, layers: int) -> tuple[Pixels, Mask]:
    """A copy with a fold, and where all of its layers are tissue."""
    copy, fold = pixels.copy(), np.zeros_like(tissue)
    for row in range(len(pixels)):
        start = int(left + SLANT * row)
        if start + layers * width >= pixels.shape[1]:
            continue
        strip, is_tissue = pixels[row, start : start + width].astype(float), tissue[row, start : start + width].copy()
        for layer in range(1, layers):
            part = slice(start + layer * width, start + (layer + 1) * width)
            turn = -1 if layer % 2 else 1
            strip *= pixels[row, part][::turn] / GLASS
            is_tissue &= tissue[row, part][::turn]
        copy[row, start : start + width], fold[row, start : start + width] = strip, is_tissue
    return copy, fold


if __name__ == "__main__":
    main()
