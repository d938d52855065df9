"""What the benchmarks share: bags, the training step of `asmil train`, time and memory of a step, a process each."""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from asmil import Anchor, Bag, MILModel, methods
from asmil.runs.config import TrainingConfig
from asmil.tasks.classification import Classification
from asmil.training.optimization import build_optimizer, clip_gradients

TILE_PX = 256
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "acmil (mha)": ("acmil", {"arch": "mha"}),
    "aem (mha)": ("aem", {"base": "mha"}),
    "mhim (transmil)": ("mhim", {"base": "transmil"}),
}
"""Forms of a method that cost something else than its default."""
Step = Callable[[], object]


def labels() -> dict[str, tuple[str, dict[str, Any]]]:
    return dict(sorted({**{name: (name, {}) for name in methods()}, **FORMS}.items()))


def make_bag(tiles: int, width: int) -> Bag:
    generator = torch.Generator().manual_seed(0)
    side = int(tiles**0.5) + 1
    cells = torch.arange(tiles)
    coords = torch.stack([cells % side, cells // side], dim=1) * TILE_PX
    return Bag(torch.randn(tiles, width, generator=generator), coords, id=f"{tiles} tiles")


def training_step(model: MILModel, bag: Bag, anchor: Anchor | None = None) -> Step:
    """A step of `asmil train` in float32: loss, anchor, backward, clipping, optimizer, moving average, hooks."""
    optimizer = build_optimizer(model, TrainingConfig())
    target = torch.tensor([1], device=bag.features.device)
    task = Classification([str(number) for number in range(model.n_outputs)])

    def step() -> None:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        model.before_step(0, 100)
        if anchor is not None:
            anchor.prefetch(bag)
        output = model(bag)
        total = model.loss([output], target, task).total
        if anchor is not None:
            total = total + anchor.loss(bag, model.attend(bag) if output.scores is None else output.scores)
        total.backward()
        clip_gradients(optimizer, None)
        optimizer.step()
        if anchor is not None:
            anchor.update(model)
        model.after_step(bag, output, target)

    return step


def timed(step: Step, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a step; `time.process_time` as clock counts the work of all its threads, whatever else runs."""
    synchronize(device)
    started = clock()
    step()
    synchronize(device)
    return clock() - started


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_megabytes(step: Step, device: torch.device) -> float:
    """What a step needs on top of what is held before it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - held) / 2**20
    ctypes.CDLL(None).malloc_trim(0)
    held = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    step()
    return (_status("VmHWM") - held) / 2**10


def peak_tensor_megabytes(step: Step, device: torch.device) -> float:
    """The same of tensors alone, to the byte: on a CPU every allocation is followed by the profiler."""
    if device.type == "cuda":
        return peak_megabytes(step, device)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells its start and stop otherwise
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    assert profiled.profiler is not None
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return float(max(itertools.accumulate(changes, initial=0)) / 2**20)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def about(device: torch.device) -> dict[str, Any]:
    """The machine and the commit, for the head of a results file."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {"device": name, "torch": torch.__version__, "threads": torch.get_num_threads(), "commit": commit}


def in_own_process(script: Path | str, label: str, arguments: Sequence[str]) -> Any:
    """What `script --worker LABEL` prints last; on a CPU memory is counted by the process, so each needs its own."""
    done = subprocess.run(
        [sys.executable, str(script), "--worker", label, *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{label}: the measurement failed, see above")
    return json.loads(done.stdout.splitlines()[-1])


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.{1 if seconds < 0.1 else 0}f}"


def whole(number: float | None) -> str:
    return "" if number is None else f"{number:.0f}"
