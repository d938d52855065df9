"""What a pack saves: reading every bag of a cohort from TRIDENT's files, from asmil's, and from a pack.

    python benchmarks/pack_speed.py [--slides 16] [--width 1024] [--rounds 3] [--folder DIR] [--out FILE]

TRIDENT writes float32 in chunks of one tile. A bag counts as read when it is a tensor and all its values were touched,
so that a mapped file is paid for: every byte is read (summed as whole numbers, which costs next to nothing), the sum of
the features is taken as they are stored (slow on a CPU for float16), or they become the float32 in which models compute
and are summed. Cold: the files were dropped from the system's cache before (posix_fadvise; what lies below a virtual
machine may still have them). Warm: read once more, the faster of two. Every measurement has a process of its own; the
three sources take turns, and a ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from asmil.cohort.features import Provenance, read_bag, write_features
from asmil.cohort.manifest import Slide, cohort_from_features
from asmil.cohort.pack.packing import pack_features
from asmil.machine.memory import keep_freed_memory
from markdown_table import markdown_table
from measuring import about, in_own_process

TILES = (2_000, 20_000)
SOURCES = {"trident": "TRIDENT's files", "asmil": "asmil's files", "pack": "pack"}
TOUCHES: dict[str, Callable[[Tensor], Tensor]] = {
    "every byte": lambda features: features.view(torch.int64).sum(),
    "sum as stored": lambda features: features.sum(dtype=torch.float32),
    "sum as float32": lambda features: features.float().sum(),
}
STATES = ("cold", "warm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slides", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: the system's folder for such")
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--touch", choices=TOUCHES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.worker:
        print(json.dumps(measure(Path(options.worker), TOUCHES[options.touch])))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        work = Path(folder)
        known = about(torch.device("cpu")) | write_sources(work, options.slides, options.width)
        print(", ".join(f"{key} {value}" for key, value in known.items()), flush=True)
        rounds = [
            {
                touch: {source: in_own_process(__file__, str(work / source), ["--touch", touch]) for source in SOURCES}
                for touch in TOUCHES
            }
            for _ in range(options.rounds)
        ]
    results = [summary(rounds, state, touch) for state in STATES for touch in TOUCHES]
    print(table(results, known))
    if options.out:
        options.out.write_text(json.dumps({**known, "rounds": rounds, "results": results}, indent=1) + "\n")


def write_sources(work: Path, slides: int, width: int) -> dict[str, Any]:
    """The same cohort three times, on disk; how large it is."""
    generator = np.random.default_rng(0)
    sizes = np.geomspace(*TILES, slides).astype(int)
    for number, n in enumerate(sizes):
        features = generator.standard_normal((n, width), dtype=np.float32)
        coords = np.stack([np.arange(n) % 100, np.arange(n) // 100], axis=1) * 512
        write_trident(work / "trident" / f"slide-{number:03d}.h5", features, coords)
        write_features(work / "asmil" / f"slide-{number:03d}.h5", features, coords, Provenance(encoder="uni_v1"))
    started = time.perf_counter()
    pack_features(cohort_from_features(work / "trident").slides, work / "pack")
    return {
        "slides": slides,
        "tiles": int(sizes.sum()),
        "width": width,
        "gigabytes": {source: round(on_disk(work / source) / 1e9, 3) for source in SOURCES},
        "seconds to pack": round(time.perf_counter() - started, 1),
    }


def write_trident(path: Path, features: np.ndarray[Any, Any], coords: np.ndarray[Any, Any]) -> None:
    """As TRIDENT does: datasets that may grow, in chunks of one tile."""
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in (("features", features), ("coords", coords)):
            file.create_dataset(name, data=values, chunks=(1, values.shape[1]), maxshape=(None, values.shape[1]))
        file["features"].attrs["encoder"] = "uni_v1"
        file["coords"].attrs.update({"patch_size": 256, "patch_size_level0": 512, "target_magnification": 20})


def measure(place: Path, touch: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """Seconds to read and touch every bag, cold and warm."""
    keep_freed_memory()
    touch(torch.ones(8, 8, dtype=torch.float16))  # code is loaded
    drop_from_cache(place)  # before the first reading: what a process has mapped cannot be dropped
    slides = cohort_from_features(place).slides
    cold = read_all(slides, touch)
    return {"cold": cold, "warm": min(read_all(slides, touch) for _ in range(2))}


def read_all(slides: Sequence[Slide], touch: Callable[[Tensor], Tensor]) -> float:
    started = time.perf_counter()
    for slide in slides:
        touch(read_bag(slide.source, slide.slide).features).item()
    return time.perf_counter() - started


def drop_from_cache(place: Path) -> None:
    for path in place.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def on_disk(place: Path) -> int:
    return sum(path.stat().st_size for path in place.iterdir())


def summary(rounds: Sequence[dict[str, Any]], state: str, touch: str) -> dict[str, Any]:
    """The median seconds of each source, and how many times as long as the pack it takes."""
    seconds = {source: [one[touch][source][state] for one in rounds] for source in SOURCES}
    times = {
        source: [mine / packs for mine, packs in zip(values, seconds["pack"], strict=True)]
        for source, values in seconds.items()
    }
    return (
        {"state": state, "touched": touch}
        | {f"seconds_{source}": statistics.median(values) for source, values in seconds.items()}
        | {f"times_{source}": statistics.median(values) for source, values in times.items()}
    )


def table(results: Sequence[dict[str, Any]], known: dict[str, Any]) -> str:
    """Markdown."""
    headers = ["cache", "values touched", *(f"{name}, s" for name in SOURCES.values()), "pack, GB/s", "TRIDENT : pack"]
    headers.append("asmil : pack")
    rows = [
        [
            one["state"],
            one["touched"],
            *(f"{one[f'seconds_{source}']:.2f}" for source in SOURCES),
            f"{known['gigabytes']['pack'] / one['seconds_pack']:.2f}",
            f"{one['times_trident']:.1f}",
            f"{one['times_asmil']:.1f}",
        ]
        for one in results
    ]
    return markdown_table(headers, rows, words=2)


if __name__ == "__main__":
    main()
