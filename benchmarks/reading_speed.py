"""How fast tiles are read: `TileReader` beside plain calls of OpenSlide, one after another in the same run.

    python benchmarks/reading_speed.py [--side 8192] [--rounds 5] [--processes 1 2] [--out FILE]

The slide is made by this script: a pyramidal TIFF of 256-pixel JPEG tiles (levels of downsample 1, 4 and 16) at
0.25 um/px, colors like H&E. Tiles of 256 pixels are read from level 0 as they are, or 512 pixels are read and shrunk
(40x to 20x), on the grid of the tiles of the file or 100 pixels off it. "Plain" is `read_region(...).convert("RGB")`,
then area-averaging. "OpenSlide" is `TileReader` over OpenSlide, as NDPI, MRXS and DICOM are read; "asmil" is
`TileReader` as it opens this file. Every measurement opens the slide anew; the file lies in the system's memory.
With two processes each reads half of the tiles. Numbers are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import openslide
import tifffile
from numpy.typing import NDArray

from asmil.files import write_json
from asmil.slides.image import SlideImage
from asmil.slides.opening import open_slide
from asmil.slides.openslide_image import OpenSlideImage
from asmil.slides.tiling import TileReader
from markdown_table import markdown_table

TILE_PX = 256
OFF_GRID_PX = 100
Coords = NDArray[np.int64]


class Case(NamedTuple):
    label: str
    tile_px_level0: int
    offset_px: int


CASES = (
    Case("256 px, on the grid", TILE_PX, 0),
    Case("256 px, off the grid", TILE_PX, OFF_GRID_PX),
    Case("512 to 256 px, on the grid", 2 * TILE_PX, 0),
    Case("512 to 256 px, off the grid", 2 * TILE_PX, OFF_GRID_PX),
)


def made_slide(path: Path, side: int) -> None:
    """Blobs of two dyes with some grain, so that JPEG works as hard as on tissue."""
    random = np.random.default_rng(0)
    dyes = np.array([[90, 60, 130], [225, 130, 175]], dtype=np.float32)
    coarse = random.random((side // 16, side // 16, 2)).astype(np.float32)
    amount = cv2.resize(cv2.GaussianBlur(coarse, (0, 0), 1.0), (side, side), interpolation=cv2.INTER_CUBIC)
    pixels = np.empty((side, side, 3), dtype=np.uint8)
    for rows in np.array_split(np.arange(side), max(1, side // 512)):
        share = np.clip(4 * amount[rows] - 1.5, 0, 1)
        absorbed = np.einsum("hwd,dc->hwc", share, 240 - dyes)
        grain = random.normal(0, 6, absorbed.shape)
        pixels[rows] = np.clip(240 - absorbed + grain, 0, 255).astype(np.uint8)
    with tifffile.TiffWriter(path) as tiff:
        for factor in (1, 4, 16):
            level = cv2.resize(pixels, (side // factor, side // factor), interpolation=cv2.INTER_AREA)
            tiff.write(
                level,
                tile=(TILE_PX, TILE_PX),
                photometric="rgb",
                compression="jpeg",
                compressionargs={"level": 80},
                subfiletype=int(factor > 1),
                resolution=(40_000 / factor, 40_000 / factor),
                resolutionunit="CENTIMETER",
            )


def grid(side: int, case: Case) -> Coords:
    """All tiles inside of the slide, column by column as CLAM goes."""
    steps = np.arange(case.offset_px, side - case.tile_px_level0 + 1, case.tile_px_level0)
    return np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.int64)


def read_plain(path: Path, coords: Coords, case: Case) -> None:
    size = (case.tile_px_level0, case.tile_px_level0)
    with openslide.OpenSlide(path) as slide:
        for x, y in coords.tolist():
            tile = np.asarray(slide.read_region((x, y), 0, size).convert("RGB"))
            if tile.shape[0] != TILE_PX:
                cv2.resize(tile, (TILE_PX, TILE_PX), interpolation=cv2.INTER_AREA)


def read_by(opened: Callable[[Path], SlideImage]) -> Callable[[Path, Coords, Case], None]:
    def read(path: Path, coords: Coords, case: Case) -> None:
        with opened(path) as image:
            reader = TileReader(image, case.tile_px_level0, TILE_PX)
            for group in reader.groups(coords):
                reader.read(coords[group])

    return read


WAYS: dict[str, Callable[[Path, Coords, Case], None]] = {
    "plain": read_plain,
    "OpenSlide": read_by(lambda path: OpenSlideImage(path, openslide.OpenSlide(path), None)),
    "asmil": read_by(open_slide),
}


def read_part(way: str, path: Path, coords: Coords, case: Case) -> None:
    cv2.setNumThreads(1)
    WAYS[way](path, coords, case)


def tiles_per_second(pool: Executor, processes: int, way: str, path: Path, coords: Coords, case: Case) -> float:
    started = time.perf_counter()
    parts = np.array_split(coords, processes)
    for done in [pool.submit(read_part, way, path, part, case) for part in parts]:
        done.result()
    return len(coords) / (time.perf_counter() - started)


def measure(path: Path, side: int, rounds: int, processes: int) -> dict[str, dict[str, float]]:
    """Tiles a second by case and way; the ways take turns, so that a noisy machine slows all of them down."""
    context = multiprocessing.get_context("spawn")
    results: dict[str, dict[str, float]] = {}
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for case in CASES:
            coords = grid(side, case)
            for way in WAYS:
                tiles_per_second(pool, processes, way, path, coords[: 8 * processes], case)
            speeds: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way, measured in speeds.items():
                    measured.append(tiles_per_second(pool, processes, way, path, coords, case))
            results[case.label] = {way: statistics.median(measured) for way, measured in speeds.items()}
            ratios = [ours / plain for ours, plain in zip(speeds["asmil"], speeds["plain"], strict=True)]
            results[case.label]["asmil / plain"] = statistics.median(ratios)
            ratios = [ours / plain for ours, plain in zip(speeds["OpenSlide"], speeds["plain"], strict=True)]
            results[case.label]["OpenSlide / plain"] = statistics.median(ratios)
    return results


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    rows = []
    for processes, cases in results.items():
        for label, speeds in cases.items():
            numbers = [f"{speeds[way]:.0f}" for way in WAYS]
            rows.append(
                [processes, label, *numbers, *(f"{speeds[f'{way} / plain']:.2f}" for way in ("OpenSlide", "asmil"))]
            )
    headers = ["processes", "tiles", *(f"{way}, tiles/s" for way in WAYS), "OpenSlide / plain", "asmil / plain"]
    return markdown_table(headers, rows, words=2)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=8192, help="side of the made slide, pixels")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    given = parser.parse_args(arguments)
    about: dict[str, Any] = {"machine": platform.machine(), "side": given.side, "rounds": given.rounds}
    about |= {"openslide": openslide.__library_version__, "tifffile": tifffile.__version__}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slide.tif"
        made_slide(path, given.side)
        results = {str(n): measure(path, given.side, given.rounds, n) for n in given.processes}
    print(json.dumps(about))
    print(table(results))
    if given.out:
        write_json(given.out, {"about": about, "tiles_per_second": results})


if __name__ == "__main__":
    main()
