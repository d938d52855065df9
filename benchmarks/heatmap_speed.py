"""How long a heat map takes once the features exist, and its export for QuPath.

    python benchmarks/heatmap_speed.py [--tiles 10000 100000] [--methods abmil asmil] [--rounds 3] [--out FILE]

A slide of 32-pixel tiles on a grid, stored as a pyramid, with 384 features per tile in float16. A small run of each
method is trained on synthetic slides (its quality does not matter here). Measured is what `asmil heatmap` does
for one slide: read the features, run the model, draw the figure and the contact sheet, write the files; then the
GeoJSON of all tiles and of the regions. Seconds are the median over the rounds: by the clock, and of CPU
time, which a busy machine does not lengthen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

import asmil
from asmil.cohort.features import Provenance, write_features
from asmil.cohort.manifest import Slide
from asmil.cohort.source import FeatureSource
from asmil.explain.asked_slides import AskedSlide
from asmil.explain.color_scale import natural_scale
from asmil.explain.heatmaps import HeatmapPlan, draw_slide
from asmil.explain.qupath import write_regions, write_tiles
from asmil.explain.run_explainer import RunExplainer
from asmil.explain.settings import HeatmapSettings
from asmil.explain.tile_map import slide_frame
from asmil.runs.run import Run
from asmil.slides.pyramid_tiff import write_pyramid
from asmil.synthetic.bags import SyntheticConfig, write_synthetic
from markdown_table import markdown_table
from measuring import about

WIDTH, TILE_PX, MPP = 384, 32, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--methods", nargs="+", default=["abmil", "asmil"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(2)
    known = about(torch.device("cpu"))
    print(", ".join(f"{key} {value}" for key, value in known.items()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        runs = {method: train(work, method) for method in options.methods}
        results = [row for n_tiles in options.tiles for row in measure(work, runs, n_tiles, options.rounds)]
    print(table(results))
    if options.out:
        options.out.write_text(json.dumps({**known, "results": results}, indent=1) + "\n")


def train(work: Path, method: str) -> Path:
    config = SyntheticConfig(slides=12, width=WIDTH, tiles_min=20, tiles_max=40, witness_min=0.1)
    manifest = write_synthetic(work / "cohort", config)
    settings = {"training.epochs": 1, "record.attention": "none"}
    return asmil.train(manifest, work / method, method=method, settings=settings, progress=False).path


def write_slide(work: Path, n_tiles: int) -> AskedSlide:
    """The features and the image of a slide whose tiles fill a rectangle."""
    columns = round(np.sqrt(1.6 * n_tiles))
    numbers = np.arange(n_tiles)
    coords = np.stack([numbers % columns, numbers // columns], axis=1) * TILE_PX
    size = (columns * TILE_PX, -(-n_tiles // columns) * TILE_PX)
    draw = np.random.default_rng(0)
    name = f"slide-{n_tiles}"
    provenance = Provenance(tile_px_level0=TILE_PX, slide_width_px=size[0], slide_height_px=size[1])
    path = work / f"{name}.h5"
    write_features(path, draw.normal(size=(n_tiles, WIDTH)).astype(np.float16), coords, provenance)
    strip = draw.integers(120, 230, (1024, size[0], 3), dtype=np.uint8)
    image = work / f"{name}.tif"
    write_pyramid(image, (strip[: min(1024, size[1] - top)] for top in range(0, size[1], 1024)), MPP, size)
    slide = Slide(name, name, None, FeatureSource(path))
    return AskedSlide(name, slide, image, MPP, (slide,))


def measure(work: Path, runs: dict[str, Path], n_tiles: int, rounds: int) -> list[dict[str, object]]:
    asked = write_slide(work, n_tiles)
    rows: list[dict[str, object]] = []
    for method, run in runs.items():
        explainer = RunExplainer(Run(run, "cpu"))
        plan = HeatmapPlan(work / f"maps-{method}", HeatmapSettings())
        rows.append(row(f"heat map, {method}", n_tiles, partial(draw_slide, asked, plan, [explainer]), rounds))
    columns = round(np.sqrt(1.6 * n_tiles))
    numbers = np.arange(n_tiles)
    coords = np.stack([numbers % columns, numbers // columns], axis=1) * TILE_PX
    values = np.random.default_rng(1).random(n_tiles)
    frame = slide_frame(asked.name, coords, tile_px=float(TILE_PX))
    scale = natural_scale("attention", values, float(values.mean()))
    more = {"probability normal": 1 - values, "probability tumor": values}

    def export() -> None:
        write_tiles(work / "tiles.geojson", frame, values, "attention", scale, more)
        write_regions(work / "regions.geojson", frame, values, "attention", scale)

    return [*rows, row("QuPath GeoJSON", n_tiles, export, rounds)]


def row(what: str, n_tiles: int, work: Callable[[], object], rounds: int) -> dict[str, object]:
    clock, cpu = [], []
    for _ in range(rounds):
        started, began = time.perf_counter(), time.process_time()
        work()
        clock.append(time.perf_counter() - started)
        cpu.append(time.process_time() - began)
    return {"what": what, "tiles": n_tiles, "seconds": statistics.median(clock), "cpu": statistics.median(cpu)}


def table(results: list[dict[str, object]]) -> str:
    rows = [[f"{one['tiles']:,}", str(one["what"]), f"{one['seconds']:.2f}", f"{one['cpu']:.2f}"] for one in results]
    return markdown_table(["tiles", "what", "seconds", "CPU seconds"], rows)


if __name__ == "__main__":
    main()
