"""ASMIL on a GPU: the fused step, an epoch, a cohort in inference, and `asmil train --seeds 5` end to end.

    make bench-gpu        or        python benchmarks/gpu_speed.py [--folder DIR] [--out FILE] [--skip-command]

A cohort like CAMELYON16: 395 training bags of 2,000 to 20,000 tiles with 384 features (and 60 bags each to validate and
test for the command), I 128, T 8, H 8, one bag a step, anchor with NSF, dropout and token drop. The released form is
`plain_methods/asmil.py`, eager, in float32 with its whole anchor, on the same bag in the same process; five seeds of it
take five times its step; it is measured under bf16 autocast, too. Times are medians over rounds of many steps. The
features are noise.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asmil import Bag, build
from asmil.cohort.features import Provenance, write_features
from asmil.models.asmil import ASMIL
from asmil.training.fused.forward import Dropped, Forward
from asmil.training.fused.layout import Sizes
from asmil.training.fused.step import Step, StepSettings
from asmil.training.fused.weights import Weights
from asmil.training.resident import ResidentBags
from asmil.training.turns import take_turns
from asmil_speed import folded_step, plain_step
from markdown_table import markdown_table
from plain_methods.asmil import PlainASMIL

WIDTH, TILES, SHORT = 384, 11_000, 2_000
BAGS, FEWEST, MOST = 395, 2_000, 20_000
EVALUATED = 60
SEEDS, EPOCHS = 5, 50
SLOTS = 64


class NoiseBags(list[Bag]):
    def stream(self, order: Any) -> Any:
        return (self[i] for i in order)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for the cohort of the command; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--skip-command", action="store_true", help="leave the end-to-end command out")
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu_speed.py needs a CUDA GPU; torch sees none here")
    found = measure(options.rounds)
    if not options.skip_command:
        with tempfile.TemporaryDirectory() as temporary:
            found |= measure_command(options.folder or Path(temporary))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(markdown_table(("measure", "value"), [(name, f"{value:.4g}") for name, value in found.items()]))
    if options.out is not None:
        options.out.write_text(
            json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, **found}, indent=1) + "\n"
        )


def measure(rounds: int) -> dict[str, float]:
    """Steps, epochs and inference, without files."""
    device = torch.device("cuda")
    bags = noise_on(device)
    found: dict[str, float] = {}
    for members in (1, SEEDS):
        started = time.perf_counter()
        step = make_step(members, bags, device)
        step.record()
        torch.cuda.synchronize()
        found[f"compile and record, {members} seeds (s)"] = time.perf_counter() - started
        assert step._graph is not None
        milliseconds = timed(step._graph.replay, rounds, 200)
        found[f"step, {members} seeds, {TILES} tiles (ms)"] = milliseconds
        found[f"step, {members} seeds, {TILES} tiles (ms a seed)"] = milliseconds / members
        step.order.copy_(torch.stack([torch.randperm(BAGS) for _ in range(members)]))
        step.step.zero_()
        found[f"epoch, {members} seeds, {BAGS} bags (s)"] = timed(partial(run_epoch, step), 3, 1) / 1e3
        del step
    found["inference, bags of 2,000 tiles a second"] = inference(bags, device, rounds)
    eager = eager_steps(device, rounds)
    found |= eager
    side_by_side = found[f"step, {SEEDS} seeds, {TILES} tiles (ms)"]
    found["released form over fused, five seeds"] = SEEDS * eager["released form, step (ms)"] / side_by_side
    found["released form over fused, one seed"] = (
        eager["released form, step (ms)"] / found[f"step, 1 seeds, {TILES} tiles (ms)"]
    )
    found["released form under bf16 autocast over fused, one seed"] = (
        eager["released form under bf16 autocast, step (ms)"] / found[f"step, 1 seeds, {TILES} tiles (ms)"]
    )
    return found


def noise_on(device: torch.device) -> ResidentBags:
    """The cohort on the device; bag 0 has 11,000 tiles, the last ones 2,000."""
    torch.manual_seed(0)
    lengths = torch.randint(FEWEST, MOST + 1, (BAGS,)).tolist()
    lengths[0], lengths[1] = TILES, MOST
    bags = ResidentBags(WIDTH, device, torch.bfloat16)
    bags.add(
        NoiseBags(Bag(torch.randn(n, WIDTH, device=device, dtype=torch.bfloat16)) for n in [*lengths, *[SHORT] * SLOTS])
    )
    bags.set_targets(range(BAGS), np.arange(BAGS) % 2)
    return bags


def make_step(members: int, bags: ResidentBags, device: torch.device) -> Step:
    """The step with the anchor, dropout and token drop, every member at bag 0."""
    models = []
    for seed in range(members):
        torch.manual_seed(seed)
        models.append(build("asmil", WIDTH, 2, init_std=1.0))
    assert isinstance(models[0], ASMIL)
    weights = Weights(Sizes.of(models[0]), members, device, torch.bfloat16)
    for p, model in enumerate(models):
        for name, parameter in model.named_parameters():
            weights.layout.view(weights.parameters, name)[p].copy_(parameter.detach())
    weights.anchors.copy_(weights.parameters[:, : weights.layout.anchor_size])
    weights.refresh()
    settings = StepSettings(Dropped(0.1, 0.5), 0.1, 0.999, 1e-4, (0.9, 0.999), (1.0, 1.0))
    n = torch.arange(1, 50_001, dtype=torch.float64)
    schedule = torch.stack([1e-4 / (1 - 0.9**n), (1 - 0.999**n).sqrt()], dim=1)
    return Step(weights, bags, settings, MOST, BAGS, schedule)


def inference(bags: ResidentBags, device: torch.device, rounds: int) -> float:
    """Bags of 2,000 tiles a second, features on the device."""
    step = make_step(1, bags, device)
    forward = Forward(step.weights, bags, SLOTS, SHORT, anchor=False)
    forward.bag.copy_(torch.arange(BAGS, BAGS + SLOTS))

    def infer() -> None:
        step.weights.fold()
        forward.infer()

    return SLOTS / (timed(infer, rounds, 50) / 1e3)


def eager_steps(device: torch.device, rounds: int) -> dict[str, float]:
    """The released form and our plain executor's step on a bag of 11,000 tiles, eager."""
    target = torch.tensor(1, device=device)
    model = build("asmil", WIDTH, 2, init_std=1.0).to(device)
    assert isinstance(model, ASMIL)
    bag = Bag(torch.randn(TILES, WIDTH, device=device))
    released = plain_step(PlainASMIL.from_folded(model), target, lean_anchor=False)
    folded = folded_step(model, target)

    def released_in_bf16() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            released(bag)

    return {
        "released form, step (ms)": timed(lambda: released(bag), rounds, 20),
        "released form under bf16 autocast, step (ms)": timed(released_in_bf16, rounds, 20),
        "plain executor, step (ms)": timed(lambda: folded(bag), rounds, 20),
    }


def run_epoch(step: Step) -> None:
    """All steps of an epoch."""
    take_turns([step.epoch()])


def timed(run: Callable[[], object], rounds: int, times: int) -> float:
    """Milliseconds of one call, the median over rounds of so many."""
    run()
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(times):
            run()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - started) / times * 1e3)
    return statistics.median(found)


def measure_command(folder: Path) -> dict[str, float]:
    """`asmil train --seeds 5` from a pack, a process of its own; twice, since kernels are compiled once a machine."""
    manifest = write_cohort(folder)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pack = folder / "cohort.pack"
    run_asmil(["pack", str(manifest), "--out", str(pack)], environment)
    found = {}
    for what in ("first time", "kernels compiled before"):
        out = folder / what.replace(" ", "-")
        started = time.perf_counter()
        command = ["train", str(manifest), "--features", str(pack), "--out", str(out), "--seeds", str(SEEDS), "--quiet"]
        run_asmil([*command, "--preset", "no_anchor", "--set", f"training.epochs={EPOCHS}"], environment)
        found[f"asmil train --seeds {SEEDS}, {EPOCHS} epochs, {what} (s)"] = time.perf_counter() - started
        lines = [json.loads(line) for line in (out / "fold-0" / "seed-0" / "metrics.jsonl").read_text().splitlines()]
        found[f"of these, steps, {what} (s)"] = sum(line["seconds"] for line in lines)
    return found


def run_asmil(arguments: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-m", "asmil", *arguments], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"asmil {' '.join(arguments)}: {done.stderr}{done.stdout}")


def write_cohort(folder: Path) -> Path:
    """Feature files of noise, with a shift that tells the classes apart, and their manifest."""
    roles = ["train"] * BAGS + ["val"] * EVALUATED + ["test"] * EVALUATED
    rows = [(f"slide-{i:03d}", f"patient-{i:03d}", ("normal", "tumor")[i % 2], role) for i, role in enumerate(roles)]
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        list(processes.map(write_slide, [folder / "features" / f"{row[0]}.h5" for row in rows], range(len(rows))))
    manifest = folder / "cohort.csv"
    with manifest.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerows([("slide", "patient", "label", "split"), *rows])
    return manifest


def write_slide(path: Path, number: int) -> None:
    torch.set_num_threads(1)
    path.parent.mkdir(exist_ok=True)
    draw = torch.Generator().manual_seed(number)
    tiles = int(torch.randint(FEWEST, MOST + 1, (), generator=draw))
    features = torch.randn(tiles, WIDTH, generator=draw)
    features[: tiles // 20] += 0.3 * (number % 2)
    write_features(path, features, grid(tiles), Provenance(encoder="noise", tile_px=256, mpp=0.5))


def grid(tiles: int) -> Tensor:
    cells = torch.arange(tiles)
    return torch.stack([cells % 150, cells // 150], dim=1) * 256


if __name__ == "__main__":
    main()
