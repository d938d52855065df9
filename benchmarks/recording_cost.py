"""What recording attention costs: the share of a training's time that its recorder takes, and the size of its file.

    python benchmarks/recording_cost.py [--methods abmil asmil clam_sb] [--slides 160] [--epochs 5] [--out FILE]

A synthetic cohort (width 384, bags in memory) is trained on for a few epochs: with two slides per class (the default),
all validation slides (which the validation of an epoch looks at anyway) and all training slides. The recorder's time
(choosing slides, inference, writing) is taken inside the same training, so that a noisy machine slows both down
alike; the share is of the time without it.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from asmil.runs.attention_file import AttentionWriter
from asmil.runs.config import resolve
from asmil.synthetic.bags import SyntheticConfig, write_synthetic
from asmil.training.recording import AttentionRecorder
from asmil.training.run import train_run
from markdown_table import markdown_table

WHAT: dict[str, dict[str, str | int]] = {
    "2 per class": {"attention": 2},
    "all validation": {"attention": "all", "role": "val"},
    "all training": {"attention": "all"},
}
RECORDING: tuple[tuple[type, str], ...] = (
    (AttentionRecorder, "__init__"),
    (AttentionRecorder, "note"),
    (AttentionRecorder, "record"),
    (AttentionRecorder, "finish"),
    (AttentionWriter, "flush"),
)


class Clock:
    """Time spent in some functions; a function called by another of them is not counted twice."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running = False

    def timing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._running:
                return function(*args, **kwargs)
            self._running, started = True, time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._running = False
                self.seconds += time.perf_counter() - started

        return timed


@contextmanager
def recording_clock() -> Iterator[Clock]:
    """A clock that runs while attention is recorded."""
    clock = Clock()
    with ExitStack() as stack:
        for owner, name in RECORDING:
            stack.enter_context(mock.patch.object(owner, name, clock.timing(getattr(owner, name))))
        yield clock


def measure(
    manifest: Path, folder: Path, method: str, record: Mapping[str, str | int], epochs: int
) -> dict[str, float]:
    """One training: seconds per epoch without recording, the share that recording adds, kB of the file per epoch."""
    changes = {"training": {"epochs": epochs}, "record": record, "data": {"cache": "memory"}}
    with recording_clock() as clock:
        started = time.perf_counter()
        run = train_run(manifest, folder, resolve(method, changes=changes))
        rest = time.perf_counter() - started - clock.seconds
    size = (run.training(0, 0) / "attention.h5").stat().st_size
    return {"seconds_epoch": rest / epochs, "share": clock.seconds / rest, "kb_epoch": size / 1000 / (epochs + 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["abmil", "asmil", "clam_sb"])
    parser.add_argument("--slides", type=int, default=160)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    about = {"device": device, "torch": torch.__version__, "slides": options.slides, "epochs": options.epochs}
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        manifest = write_synthetic(work / "cohort", SyntheticConfig(slides=options.slides))
        for method in options.methods:
            measure(manifest, work / f"{method}-first", method, {"attention": 2}, 1)  # code is loaded
            found = {
                name: measure(manifest, work / f"{method}-{name}", method, record, options.epochs)
                for name, record in WHAT.items()
            }
            results.append({"method": method, **found})
            print(results[-1], flush=True)
    print(table(results))
    if options.out:
        options.out.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


def table(results: list[dict[str, Any]]) -> str:
    """Markdown."""
    header = ["method", "s per epoch", *(word for name in WHAT for word in (name, "kB per epoch"))]
    rows = [
        [
            one["method"],
            f"{one['2 per class']['seconds_epoch']:.2f}",
            *(word for name in WHAT for word in (f"{one[name]['share']:+.1%}", f"{one[name]['kb_epoch']:.0f}")),
        ]
        for one in results
    ]
    return markdown_table(header, rows)


if __name__ == "__main__":
    main()
