"""How much of the bare encoder's rate is left when slides are extracted.

    make bench      or      python benchmarks/encoding_speed.py [--device cuda] [--encoder uni] [--out FILE]

Three things take turns, round by round, so that a noisy machine slows all of them down, and medians of their ratios
are printed:

- bare: the network alone, in a loop over batches that are transformed and on the device already;
- in memory: tiles of two slides, as bytes in memory, through the batches of `asmil extract`: copying, transform,
  network, features back in memory;
- from slides (CPU): made-up slides on disk through the whole worker: tissue, tiles, reading, encoding, writing. Beside
  it the bare network runs on as many tiles in as many processes.

Weights that are not here are drawn: speed does not depend on them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asmil.errors import AsmilError
from asmil.extraction.batching import CPU_BATCH, GPU_BATCH, Batcher
from asmil.files import write_json
from asmil.machine.memory import keep_freed_memory
from asmil.slides.encoders.base import Encoder
from asmil.slides.encoders.registry import DEFAULT_ENCODER, find_encoder, load_encoder
from markdown_table import markdown_table
from measuring import about, synchronize

ROUNDS = 5
SLIDES = 2
MPP = 0.5


@dataclass(frozen=True)
class Rates:
    """Tiles per second of a way and of the bare network beside it, and the median of the ratios."""

    way: str
    tiles: float
    bare: float
    share: float


def make_encoder(name: str, device: torch.device) -> Encoder:
    """The encoder with its weights, or with drawn ones where they are not here."""
    try:
        return load_encoder(name, device=device)
    except AsmilError:
        entry = find_encoder(name)
        torch.manual_seed(0)
        precision: Any = "bf16" if device.type == "cuda" else "float32"
        return Encoder(name, entry.build(), entry.width, "", entry.transform, device, precision)


def bare_loop(encoder: Encoder, tile_px: int, batch_size: int, n_tiles: int) -> Callable[[], None]:
    """At least so many tiles; on a CPU in the small batches that it likes best."""
    tiles = torch.randint(0, 256, (batch_size, tile_px, tile_px, 3), dtype=torch.uint8)
    tiles = tiles[: encoder.tiles_at_once(tile_px)]
    with torch.inference_mode():
        inputs = encoder.transform(tiles.to(encoder.device)).to(encoder.dtype)

    def loop() -> None:
        with torch.inference_mode():
            for _ in range(0, n_tiles, len(inputs)):
                encoder.network(inputs)
        synchronize(encoder.device)

    return loop


def in_memory(encoder: Encoder, slides: list[NDArray[np.uint8]], batch_size: int, group: int = 64) -> None:
    """Tiles of slides in memory, all slides at once, through the batches of an extraction."""
    batcher = Batcher(encoder, encoder.width, encoder.device, batch_size)

    def feed(tiles: NDArray[np.uint8]) -> None:
        with batcher.feed(len(tiles)) as filling:
            for start in range(0, len(tiles), group):
                part = tiles[start : start + group]
                filling.add(part, np.arange(start, start + len(part)))
            filling.features()

    threads = [threading.Thread(target=feed, args=(tiles,)) for tiles in slides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batcher.close()


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compare(way: str, ours: Callable[[], object], n_ours: int, bare: Callable[[], object], n_bare: int) -> Rates:
    """Both take turns; the first round only warms up."""
    times = [(seconds(ours), seconds(bare)) for _ in range(ROUNDS + 1)][1:]
    share = statistics.median((n_ours / mine) / (n_bare / theirs) for mine, theirs in times)
    mine, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    return Rates(way, n_ours / mine, n_bare / theirs, share)


def measure_in_memory(encoder: Encoder, tile_px: int, batch_size: int, n_batches: int) -> Rates:
    n_tiles = n_batches * batch_size
    draw = np.random.default_rng(0)
    slides = [draw.integers(0, 256, (n_tiles // 2, tile_px, tile_px, 3), np.uint8) for _ in range(2)]
    bare = bare_loop(encoder, tile_px, batch_size, n_tiles)
    return compare("tiles in memory", lambda: in_memory(encoder, slides, batch_size), n_tiles, bare, n_tiles)


def measure_from_slides(encoder: str, tile_px: int, workers: int) -> Rates:
    """Slides on disk through workers of one thread each, beside as many processes with the bare network."""
    with tempfile.TemporaryDirectory() as folder:
        slides = make_slides(Path(folder) / "cohort", workers * SLIDES)
        with multiprocessing.get_context("spawn").Pool(workers, _start, (encoder, tile_px)) as pool:
            shares = [slides[place::workers] for place in range(workers)]
            counts = pool.map(_extract, [(share, folder) for share in shares], chunksize=1)
            ours = lambda: pool.map(_extract, [(share, folder) for share in shares], chunksize=1)  # noqa: E731
            bare = lambda: pool.map(_bare, counts, chunksize=1)  # noqa: E731
            plural = "es" * (workers > 1)
            return compare(f"slides on disk, {workers} process{plural}", ours, sum(counts), bare, sum(counts))


_state: dict[str, Any] = {}


def _start(encoder: str, tile_px: int) -> None:
    keep_freed_memory()
    torch.set_num_threads(1)
    _state["encoder"] = make_encoder(encoder, torch.device("cpu"))
    _state["tile_px"] = tile_px


def _extract(task: tuple[list[Path], str]) -> int:
    """The tiles of all slides of a share, extracted by one worker."""
    from asmil.extraction.settings import parse_extraction
    from asmil.extraction.worker import SlideJob, SlideWorker

    slides, folder = task
    tiling = {"tile_px": _state["tile_px"], "tile_um": MPP * _state["tile_px"]}
    config = parse_extraction({"encoder": _state["encoder"].name, "tiling": tiling})
    worker = SlideWorker(config, _state["encoder"])
    jobs = [SlideJob(path.stem, path, None, (Path(folder) / f"{path.stem}.h5",), None) for path in slides]
    counts: list[int] = []
    todo = iter(jobs)

    def work() -> None:
        counts.extend(worker(job).n_tiles for job in todo)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    worker.close()
    return sum(counts)


def _bare(n_tiles: int) -> None:
    bare_loop(_state["encoder"], _state["tile_px"], CPU_BATCH, n_tiles)()


def make_slides(folder: Path, count: int) -> list[Path]:
    from asmil.synthetic.slides import SyntheticSlidesConfig, write_synthetic_slides

    write_synthetic_slides(folder, SyntheticSlidesConfig(slides=max(count, 12), seed=0))
    return sorted((folder / "slides").glob("*.tif"))[:count]


def table(rates: Sequence[Mapping[str, Any]]) -> str:
    headers = ["", "tiles per second", "bare network", "share of it"]
    cells = [[row["way"], f"{row['tiles']:,.0f}", f"{row['bare']:,.0f}", f"{row['share']:.0%}"] for row in rates]
    return markdown_table(headers, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--encoder", default=DEFAULT_ENCODER)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--batches", type=int, help="batches of a round")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    keep_freed_memory()
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    tile_px = find_encoder(options.encoder).tile_px
    encoder = make_encoder(options.encoder, device)
    batch_size = options.batch_size or (GPU_BATCH if on_gpu else CPU_BATCH)
    rows = [measure_in_memory(encoder, tile_px, batch_size, options.batches or (16 if on_gpu else 6))]
    if not on_gpu:
        rows += [measure_from_slides(options.encoder, tile_px, workers) for workers in (1, 2)]
    machine = about(device)
    print(f"{options.encoder}, {encoder.precision}, tiles of {tile_px} px, batches of {batch_size}, {machine}\n")
    rates = [vars(row) for row in rows]
    print(table(rates))
    if options.out:
        about_run = {**machine, "encoder": options.encoder, "precision": encoder.precision, "batch_size": batch_size}
        write_json(options.out, {"about": about_run, "rates": rates})


if __name__ == "__main__":
    main()
