"""What every method costs: seconds and peak memory of a training step and of inference, on one large bag.

    make bench      or      python benchmarks/method_speed.py [--device cuda] [--tiles 10000] [--methods clam_sb ...]

Where a method is evaluated here in a cheaper way than its official code does, the official way is measured beside it
(`benchmarks/plain_methods/`), with the same weights and in turns, so that a noisy machine slows both down. Memory is
what a step needs on top of the model and the bag. The training step is that of `asmil train` in float32: loss,
backward, clipping, optimizer, hooks; the official way is trained with the loss of the logits alone. `prepare` is done
once a bag, before any step (neighbors, clusters). `--processor-time` measures on one core, without the time in which
other programs have it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil import Bag, MILModel, build
from asmil.models.inference import infer
from measuring import (
    Step,
    about,
    in_own_process,
    labels,
    make_bag,
    milliseconds,
    peak_megabytes,
    timed,
    training_step,
    whole,
)

CLASSES = 2
FLAGS = ("inference_only", "processor_time")


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


def measure(label: str, device: torch.device, asked: argparse.Namespace) -> dict[str, Any]:
    """The numbers of one method; run in a process of its own."""
    tiles, width, clock = asked.tiles, asked.width, time.process_time if asked.processor_time else time.perf_counter
    name, options = labels()[label]
    torch.manual_seed(0)
    model = build(name, width, CLASSES, **options)
    raw = make_bag(tiles, width)
    small = model.prepare(make_bag(64, width)).to(device)
    prepare = timed(lambda: model.prepare(raw), torch.device("cpu"), clock)
    bag = model.prepare(raw).to(device)
    model.to(device)
    plain = None if asked.inference_only else plain_form(model)
    training_step(build(name, width, CLASSES, **options).to(device), small)()  # code is loaded once, before any measure
    infer(model, small)
    steps: dict[str, Step] = {"inference": lambda: infer(model, bag)}
    if not asked.inference_only:
        steps["training"] = training_step(model, bag)
    if plain is not None:
        plain.to(device)
        steps["plain_inference"] = plain_inference(plain, bag)
        steps["plain_training"] = plain_training_step(plain, bag)
    memory = {f"{what}_mb": peak_megabytes(step, device) for what, step in steps.items()}
    turns = [{what: timed(step, device, clock) for what, step in steps.items()} for _ in range(asked.rounds)]
    seconds = {f"{what}_s": statistics.median(turn[what] for turn in turns) for what in steps if turns}
    result: dict[str, Any] = {"method": label, "prepare_s": prepare, **seconds, **memory}
    for what in ("inference", "training"):
        if turns and f"plain_{what}" in steps:
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
            cells += [milliseconds(one.get(f"{kind}_s")), whole(one.get(f"{kind}_mb"))]
        cells.append(milliseconds(one["prepare_s"]) if one["prepare_s"] >= 0.001 else "")
        for kind in ("training", "inference"):
            cells += [milliseconds(one.get(f"plain_{kind}_s")), whole(one.get(f"plain_{kind}_mb"))]
        cells += [f"{one[key]:.1f}" if key in one else "" for key in ("training_ratio", "inference_ratio")]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


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
                cells.append(" / ".join(f"{milliseconds(one[f'{f}_s'])}, {whole(one[f'{f}_mb'])}" for f in forms))
        rows.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def measure_all(device: torch.device, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every method on one device, written down after each of them."""
    settings = {**about(device), "tiles": options.tiles, "width": options.width, "rounds": options.rounds}
    print(", ".join(f"{key} {value}" for key, value in settings.items()), flush=True)
    out = options.out or Path(__file__).with_name(f"latest_methods_{device.type}.json")
    arguments = [part for key in ("tiles", "width", "rounds") for part in (f"--{key}", str(getattr(options, key)))]
    flags = [flag for flag in FLAGS if getattr(options, flag)]
    arguments += [f"--{flag.replace('_', '-')}" for flag in flags]
    settings |= dict.fromkeys(flags, True)
    results: list[dict[str, Any]] = []
    for label in options.methods:
        results.append(
            in_own_process(__file__, label, arguments) if device.type == "cpu" else measure(label, device, options)
        )
        print(table(results[-1:]).splitlines()[-1], flush=True)
        out.write_text(json.dumps({**settings, "results": results}, indent=1) + "\n")
    print(table(results))
    print(f"written to {out}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="by default the CPU, and a GPU if there is one")
    parser.add_argument("--tiles", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5, help="0: only memory is measured")
    parser.add_argument("--methods", nargs="+", default=list(labels()), choices=list(labels()), metavar="METHOD")
    parser.add_argument("--inference-only", action="store_true", help="for bags that are too long to train on here")
    parser.add_argument("--processor-time", action="store_true", help="for a CPU that other programs use, too")
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.processor_time:
        torch.set_num_threads(1)
    if options.worker:
        print(json.dumps(measure(options.worker, torch.device("cpu"), options)))
        return
    devices = [options.device] if options.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if options.out and len(devices) > 1:
        parser.error("--out holds the numbers of one device; choose it with --device")
    by_device = {device: measure_all(torch.device(device), options) for device in devices}
    if len(devices) > 1:
        print(one_table(by_device))


if __name__ == "__main__":
    main()
