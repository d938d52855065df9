"""From a slide to its tiles in CLAM's way: ours beside the plain form, which asks OpenCV for one tile after another.

    python benchmarks/tissue_speed.py [--rounds 5] [--slides FOLDER] [--out FILE]

Both read the same level with the same reader and find the same tiles, which is checked. They take turns, in one
process and one thread; the median of the rounds is told. The made slide has ragged pieces of tissue with holes, in
the size of a resection at 40x; only its level of downsample 64 is ever read. Beside the whole, its parts: reading,
segmentation (the same OpenCV calls in both), and placing the tiles, which is where the two differ.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.slides.clam_grid import clam_coordinates
from asmil.slides.image import SlideImage
from asmil.slides.opening import open_slide
from asmil.slides.settings import ClamConfig, TilingConfig, TissueConfig
from asmil.slides.tiling import place_tiles
from asmil.slides.tissue.clam import clam_tissue, resolve_clam, search_level
from markdown_table import markdown_table
from plain_clam import plain_contours, plain_coordinates

TILE_PX = 256
MADE_PX = (96_000, 64_000)
DOWNSAMPLE = 64
CONFIG = ClamConfig(preset="bwh_biopsy")


class MadeSlide(SlideImage):
    """A large slide of which only the coarse level exists."""

    def __init__(self, seed: int = 0) -> None:
        self.path, self.name, self.reader, self.vendor = Path("made.tif"), "made", "memory", None
        width, height = MADE_PX
        self.level_sizes = (MADE_PX, (width // DOWNSAMPLE, height // DOWNSAMPLE))
        self.resolution = None
        self._pixels = made_overview(self.level_sizes[1], seed)

    def read(self, x: int, y: int, level: int, width: int, height: int, outside: int = 255) -> NDArray[np.uint8]:
        assert (x, y, level, (width, height)) == (0, 0, 1, self.level_sizes[1])
        return self._pixels.copy()

    def close(self) -> None:
        pass


def made_overview(size: tuple[int, int], seed: int) -> NDArray[np.uint8]:
    """Pink, ragged tissue over about half of the glass."""
    random = np.random.default_rng(seed)
    noise = random.standard_normal((size[1], size[0])).astype(np.float32)
    shape = cv2.GaussianBlur(noise, (0, 0), 60) * 60 + 0.35 * cv2.GaussianBlur(noise, (0, 0), 4) * 4
    pixels = np.full((size[1], size[0], 3), (243, 241, 244), dtype=np.uint8)
    pixels[shape > -0.05] = (214, 130, 180)
    return np.clip(pixels + random.normal(0, 1.5, pixels.shape), 0, 255).astype(np.uint8)


def ours(image: SlideImage, config: ClamConfig = CONFIG) -> NDArray[np.int64]:
    """Tissue and tiles as `asmil` finds them."""
    tissue = clam_tissue(image, config)
    return place_tiles(image, tissue, TissueConfig(method="clam", clam=config), TilingConfig(), TILE_PX)


def plain(image: SlideImage, config: ClamConfig = CONFIG) -> list[tuple[int, int]]:
    """The same in the plain form."""
    return plain_coordinates(_plain_contours(image, config), image.size, TILE_PX, TILE_PX)


def _plain_contours(image: SlideImage, config: ClamConfig) -> list[tuple[Any, list[Any]]]:
    level, p = search_level(image), resolve_clam(config)
    pixels = image.read(0, 0, level, *image.level_sizes[level], outside=0)
    factors = image.level_downsamples[level]
    return plain_contours(pixels, factors, p.sthresh, p.mthresh, p.close, p.a_t, p.a_h, p.max_n_holes)


def measure(image: SlideImage, rounds: int) -> dict[str, Any]:
    """Medians over rounds in which both take turns, of the whole and of placing tiles alone."""
    tissue, contours = clam_tissue(image, CONFIG), _plain_contours(image, CONFIG)
    side = (TILE_PX, TILE_PX)
    forms: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours(image),
        "plain": lambda: plain(image),
        "ours_tiles": lambda: clam_coordinates(tissue, image.size, side, side),
        "plain_tiles": lambda: plain_coordinates(contours, image.size, TILE_PX, TILE_PX),
    }
    found = {name: form() for name, form in forms.items()}
    if found["ours"].tolist() != list(map(list, found["plain"])):
        raise SystemExit(f"{image.name}: the two forms find different tiles")
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(rounds):
        for name, form in forms.items():
            started = time.perf_counter()
            form()
            seconds[name].append(time.perf_counter() - started)
    points = sum(len(region.outline) for region in tissue.regions)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {"slide": image.name, "tiles": len(found["ours"]), "outline_points": points, **medians}


def table(results: list[dict[str, Any]]) -> str:
    """Markdown."""
    header = ["slide", "tiles", "points of outlines"]
    header += ["plain, ms", "ours, ms", "faster", "tiles alone: plain, ms", "ours, ms", "faster"]
    rows = [
        [
            one["slide"],
            f"{one['tiles']:,}",
            f"{one['outline_points']:,}",
            *_pair(one["plain"], one["ours"]),
            *_pair(one["plain_tiles"], one["ours_tiles"]),
        ]
        for one in results
    ]
    return markdown_table(header, rows)


def _pair(plain_seconds: float, our_seconds: float) -> list[str]:
    return [f"{1e3 * plain_seconds:.1f}", f"{1e3 * our_seconds:.1f}", f"x{plain_seconds / our_seconds:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slides", type=Path, help="a folder of real slides to be measured too")
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    about = {"device": platform.processor() or platform.machine(), "opencv": cv2.__version__, "tile_px": TILE_PX}
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    results = [measure(MadeSlide(), options.rounds)]
    paths = sorted(path for path in options.slides.iterdir() if path.is_file()) if options.slides else []
    for path in paths:
        if path.suffix not in (".md", ".txt"):
            with open_slide(path) as image:
                results.append(measure(image, options.rounds))
    print(table(results))
    if options.out:
        options.out.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
