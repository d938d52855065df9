"""How cost grows: an ASMIL step and inference by the tiles of a bag, and reading an epoch by the slides of a cohort.

    make bench      or      python benchmarks/growth.py [--tiles 1000 ...] [--slides 100 ...] [--read 2000]

A step is that of `asmil train` with its anchor, in float32, D 384. A cohort of any size is an index over eight feature
files, each named by many slides. Of a large one `--read` slides are read, so that time per slide can be compared;
`index MB` is what the list of slides takes, `reading MB` what the process grows by while it reads.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from asmil import Anchor, Bag, build
from asmil.cohort.features import Provenance, write_features
from asmil.cohort.loader import BagLoader
from asmil.cohort.manifest import Slide
from asmil.cohort.source import FeatureSource
from asmil.models.inference import infer
from markdown_table import markdown_table
from measuring import _status, about, timed, training_step

WIDTH, FILES, FILE_TILES = 384, 8, 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiles", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--slides", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--read", type=int, default=2_000, help="at most so many slides are read")
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    by_tiles = [tiles_row(tiles, device) for tiles in options.tiles]
    with tempfile.TemporaryDirectory() as folder:
        sources = write_files(Path(folder))
        by_slides = [slides_row(slides, sources, options.read) for slides in options.slides]
    print(tiles_table(by_tiles))
    print()
    print(slides_table(by_slides))
    if options.out is not None:
        found = {**about(device), "tiles": by_tiles, "slides": by_slides}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def tiles_row(tiles: int, device: torch.device) -> dict[str, float]:
    """Seconds of a step and of inference."""
    torch.manual_seed(0)
    model = build("asmil", WIDTH, 2, init_std=1.0).to(device)
    bag = Bag(torch.randn(tiles, WIDTH, device=device))
    step = training_step(model, bag, Anchor(model))
    rounds = 5 if tiles <= 100_000 else 2
    timed(step, device)
    found = {"tiles": tiles, "step_s": min(timed(step, device) for _ in range(rounds))}

    def inference() -> None:
        infer(model, bag, device)

    timed(inference, device)
    return {**found, "inference_s": min(timed(inference, device) for _ in range(rounds))}


def write_files(folder: Path) -> list[FeatureSource]:
    draw = np.random.default_rng(0)
    paths = [folder / f"{number}.h5" for number in range(FILES)]
    coords = np.stack([np.arange(FILE_TILES), np.zeros(FILE_TILES)], axis=1).astype(np.int64) * 256
    for path in paths:
        features = draw.normal(size=(FILE_TILES, WIDTH)).astype(np.float32)
        write_features(path, features, coords, Provenance(encoder="noise", tile_px=256, mpp=0.5))
    return [FeatureSource(path) for path in paths]


def slides_row(slides: int, sources: list[FeatureSource], most: int) -> dict[str, float]:
    """Seconds and megabytes of reading the slides of a cohort in a random order."""
    gc.collect()
    before = _status("VmRSS")
    index = [Slide(f"slide-{i}", f"patient-{i}", "a", sources[i % FILES]) for i in range(slides)]
    loader = BagLoader(index, cache="none")
    held = _status("VmRSS")
    order = np.random.default_rng(0).permutation(slides)[:most].tolist()
    started = time.perf_counter()
    tiles = sum(len(bag) for bag in loader.stream(order))
    seconds = time.perf_counter() - started
    assert tiles == FILE_TILES * len(order)
    return {
        "slides": slides,
        "read": len(order),
        "s": seconds,
        "index_mb": (held - before) / 2**10,
        "reading_mb": (_status("VmRSS") - held) / 2**10,
    }


def tiles_table(found: list[dict[str, float]]) -> str:
    rows = [
        (
            f"{row['tiles']:,.0f}",
            f"{1e3 * row['step_s']:.4g}",
            f"{1e9 * row['step_s'] / row['tiles']:.0f}",
            f"{1e3 * row['inference_s']:.4g}",
            f"{1e9 * row['inference_s'] / row['tiles']:.0f}",
        )
        for row in found
    ]
    return markdown_table(("tiles", "step, ms", "ns per tile", "inference, ms", "ns per tile"), rows)


def slides_table(found: list[dict[str, float]]) -> str:
    rows = [
        (
            f"{row['slides']:,.0f}",
            f"{1e3 * row['s'] / row['read']:.2f}",
            f"{row['index_mb']:.0f}",
            f"{row['reading_mb']:.0f}",
        )
        for row in found
    ]
    return markdown_table(("slides", "ms per slide read", "index MB", "reading MB"), rows)


if __name__ == "__main__":
    main()
