"""What every method costs: seconds and peak memory of a training step and of inference, on one large bag.

    make bench      or      python benchmarks/method_speed.py [--device cuda] [--tiles 10000] [--methods clam_sb ...]

Where a method is evaluated here in a cheaper way than its official code does, the official way is measured beside it
(`benchmarks/plain_methods/`), with the same weights and in turns, so that a noisy machine slows both down. Memory is
what a step needs on top of the model and the bag. The training step is that of `asmil train` in float32: loss,
backward, clipping, optimizer, hooks; the official way is trained with the loss of the logits alone. `prepare` is done
once a bag, before any step (neighbors, clusters).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil import Bag, MILModel, build, methods
from asmil.models.inference import infer
from asmil.tasks.classification import Classification
from asmil.training.config import TrainingConfig
from asmil.training.optimization import build_optimizer, clip_gradients

CLASSES = 2
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


def training_step(model: MILModel, bag: Bag) -> Step:
    optimizer = build_optimizer(model, TrainingConfig())
    target = torch.tensor([1], device=bag.features.device)
    task = Classification(["a", "b"])

    def step() -> None:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        model.before_step(0, 100)
        output = model(bag)
        model.loss([output], target, task).total.backward()
        clip_gradients(optimizer, None)
        optimizer.step()
        model.after_step(bag, output, target)

    return step


def plain_training_step(plain: nn.Module, bag: Bag) -> Step:
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-4, weight_decay=1e-4, fused=True)
    target = torch.tensor([1], device=bag.features.device)

    def step() -> None:
        plain.train()
        optimizer.zero_grad(set_to_none=True)
        answer = plain(given(plain, bag))
        logits: Tensor = answer[0] if isinstance(answer, tuple) else answer
        functional.cross_entropy(logits.view(1, -1), target).backward()
        optimizer.step()

    return step


def plain_inference(plain: nn.Module, bag: Bag) -> Step:
    def step() -> None:
        plain.eval()
        with torch.inference_mode():
            plain(given(plain, bag))

    return step


def given(plain: nn.Module, bag: Bag) -> Bag | Tensor:
    """A plain form takes features; one that says so takes prepared bags (for their neighbors)."""
    return bag if getattr(plain, "takes_bags", False) else bag.features


def plain_form(model: MILModel) -> nn.Module | None:
    """The official way to evaluate this model, where there is a module for it; it gives logits."""
    family = type(model).__module__.rsplit(".", 1)[-1]
    if importlib.util.find_spec(f"plain_methods.{family}") is None:
        return None
    module = importlib.import_module(f"plain_methods.{family}")
    plain: nn.Module | None = module.plain_form(model)
    return plain


def timed(step: Step, device: torch.device) -> float:
    synchronize(device)
    started = time.perf_counter()
    step()
    synchronize(device)
    return time.perf_counter() - started


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


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def measure(
    label: str, device: torch.device, tiles: int, width: int, rounds: int, inference_only: bool
) -> dict[str, Any]:
    """The numbers of one method; run in a process of its own."""
    name, options = labels()[label]
    torch.manual_seed(0)
    model = build(name, width, CLASSES, **options)
    raw = make_bag(tiles, width)
    small = model.prepare(make_bag(64, width)).to(device)
    prepare = timed(lambda: model.prepare(raw), torch.device("cpu"))
    bag = model.prepare(raw).to(device)
    model.to(device)
    plain = None if inference_only else plain_form(model)
    training_step(build(name, width, CLASSES, **options).to(device), small)()  # code is loaded once, before any measure
    infer(model, small)
    steps: dict[str, Step] = {"inference": lambda: infer(model, bag)}
    if not inference_only:
        steps["training"] = training_step(model, bag)
    if plain is not None:
        plain.to(device)
        steps["plain_inference"] = plain_inference(plain, bag)
        steps["plain_training"] = plain_training_step(plain, bag)
    memory = {f"{what}_mb": peak_megabytes(step, device) for what, step in steps.items()}
    turns = [{what: timed(step, device) for what, step in steps.items()} for _ in range(rounds)]
    seconds = {f"{what}_s": statistics.median(turn[what] for turn in turns) for what in steps}
    result: dict[str, Any] = {"method": label, "prepare_s": prepare, **seconds, **memory}
    for what in ("inference", "training"):
        if f"plain_{what}" in steps:
            result[f"{what}_ratio"] = statistics.median(turn[f"plain_{what}"] / turn[what] for turn in turns)
    return result


def table(results: list[dict[str, Any]]) -> str:
    """Markdown; times in milliseconds, memory in MB."""
    rows = [
        "| method | train ms | MB | inference ms | MB | prepare ms | official form: train ms | MB | inference ms | MB "
        "| times faster: train | inference |",
        "| --- |" + " ---: |" * 11,
    ]
    for one in results:
        cells = [one["method"]]
        for kind in ("training", "inference"):
            cells += [_milliseconds(one.get(f"{kind}_s")), _whole(one.get(f"{kind}_mb"))]
        cells.append(_milliseconds(one["prepare_s"]) if one["prepare_s"] >= 0.001 else "")
        for kind in ("training", "inference"):
            cells += [_milliseconds(one.get(f"plain_{kind}_s")), _whole(one.get(f"plain_{kind}_mb"))]
        cells += [f"{one[key]:.1f}" if key in one else "" for key in ("training_ratio", "inference_ratio")]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.{1 if seconds < 0.1 else 0}f}"


def _whole(number: float | None) -> str:
    return "" if number is None else f"{number:.0f}"


def in_own_process(label: str, options: argparse.Namespace) -> dict[str, Any]:
    """On a CPU memory is counted by the process, so each method needs one of its own."""
    settings = ("tiles", "width", "rounds")
    arguments = [part for key in settings for part in (f"--{key}", str(getattr(options, key)))]
    arguments += ["--inference-only"] if options.inference_only else []
    done = subprocess.run(
        [sys.executable, __file__, "--worker", label, *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{label}: the measurement failed, see above")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def one_table(by_device: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: for every device training and inference, milliseconds and MB, the official form's behind a slash."""
    headers = [f"{device}: {kind} ms, MB" for device in by_device for kind in ("training", "inference")]
    rows = ["| method | " + " | ".join(headers) + " |", "| --- |" + " --- |" * len(headers)]
    measured = {device: {one["method"]: one for one in results} for device, results in by_device.items()}
    for label in next(iter(measured.values())):
        cells = []
        for results in measured.values():
            one = results.get(label, {})
            for kind in ("training", "inference"):
                forms = [f"{prefix}{kind}" for prefix in ("", "plain_") if f"{prefix}{kind}_s" in one]
                cells.append(" / ".join(f"{_milliseconds(one[f'{f}_s'])}, {_whole(one[f'{f}_mb'])}" for f in forms))
        rows.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def measure_all(device: torch.device, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every method on one device, written down after each of them."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    about = {
        "device": name,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "tiles": options.tiles,
        "width": options.width,
        "rounds": options.rounds,
    }
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    out = options.out or Path(__file__).with_name(f"latest_methods_{device.type}.json")
    results: list[dict[str, Any]] = []
    for label in options.methods:
        results.append(in_own_process(label, options) if device.type == "cpu" else measured(label, device, options))
        print(table(results[-1:]).splitlines()[-1], flush=True)
        out.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")
    print(table(results))
    print(f"written to {out}")
    return results


def measured(label: str, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    return measure(label, device, options.tiles, options.width, options.rounds, options.inference_only)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="by default the CPU, and a GPU if there is one")
    parser.add_argument("--tiles", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=list(labels()), choices=list(labels()), metavar="METHOD")
    parser.add_argument("--inference-only", action="store_true", help="for bags that are too long to train on here")
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measured(options.worker, torch.device("cpu"), options)))
        return
    devices = [options.device] if options.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if options.out and len(devices) > 1:
        parser.error("--out holds the numbers of one device; choose it with --device")
    by_device = {device: measure_all(torch.device(device), options) for device in devices}
    if len(devices) > 1:
        print(one_table(by_device))


if __name__ == "__main__":
    main()
