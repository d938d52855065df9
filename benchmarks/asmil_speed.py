"""Speed of the folded ASMIL beside the same model written plainly, same weights, same bags, in one run.

    make bench        or        python benchmarks/asmil_speed.py [--device cuda] [--tiles 2000 5000 10000 20000]

All variants take turns on every bag, so that a noisy machine slows all of them down; a ratio is taken in each round
and the median over the rounds is printed; the summary compares the time for one bag of each size. The plain form has
one key and one value projection per token and tile, and its anchor runs the whole forward pass, as the released code
does. A third variant gives the plain form an anchor that stops after the scores, as ours does.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil import Anchor, Bag, build
from asmil.machine.memory import keep_freed_memory
from asmil.models.asmil import ASMIL
from asmil.models.base import MILModel
from measuring import about
from plain_methods.asmil import PlainASMIL

WIDTH, INNER, TOKENS, HEADS = 384, 128, 8, 8
Step = Callable[[Bag], None]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-4, fused=True)


def folded_step(model: MILModel, target: Tensor) -> Step:
    """The training step of `asmil train`: loss, anchor, Adam, moving average."""
    optimizer, anchor = optimizer_of(model), Anchor(model)

    def step(bag: Bag) -> None:
        optimizer.zero_grad()
        output = model(bag)
        loss = functional.cross_entropy(output.logits, target) + anchor.loss(bag, output.scores)
        loss.backward()
        optimizer.step()
        anchor.update(model)

    return step


def plain_step(model: PlainASMIL, target: Tensor, lean_anchor: bool) -> Step:
    optimizer, anchor = optimizer_of(model), copy.deepcopy(model).requires_grad_(False).eval()
    kept: list[Tensor] = list(anchor.parameters())
    online = [parameter.detach() for parameter in model.parameters()]

    def step(bag: Bag) -> None:
        optimizer.zero_grad()
        logits, scores = model(bag.features)
        with torch.no_grad():
            target_scores = anchor.attend(bag.features) if lean_anchor else anchor(bag.features)[1]
            log_target = torch.log_softmax(functional.logsigmoid(target_scores), dim=-1)
        divergence = (log_target.exp() * (log_target - torch.log_softmax(scores, dim=-1))).sum(dim=-1).mean()
        (functional.cross_entropy(logits, target) + divergence).backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(kept, online, 0.001)

    return step


def abmil_step(model: MILModel, target: Tensor) -> Step:
    optimizer = optimizer_of(model)

    def step(bag: Bag) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(bag).logits, target).backward()
        optimizer.step()

    return step


def inference(model: nn.Module, give: Callable[[Bag], Any]) -> Step:
    def step(bag: Bag) -> None:
        with torch.inference_mode():
            model(give(bag))

    return step


def seconds(step: Step, bag: Bag) -> float:
    """Of one step; with one thread of a CPU, by the time of the processor."""
    clock = time.process_time if bag.features.is_cpu and torch.get_num_threads() == 1 else time.perf_counter
    _finish(bag)
    started = clock()
    step(bag)
    _finish(bag)
    return clock() - started


def _finish(bag: Bag) -> None:
    if bag.features.is_cuda:
        torch.cuda.synchronize()


def matrix_product_rate(device: torch.device) -> float:
    """Multiply-adds a second of a large square float32 product, the best of several."""
    size = 2048
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    bag = Bag(torch.zeros(1, 1, device=device))

    def product(_: Bag) -> None:
        torch.mm(a, b)

    return size**3 / min(seconds(product, bag) for _ in range(10))


def multiply_adds(tiles: int) -> dict[str, float]:
    """Of the folded form: inference, and a training step with anchor (the first layer needs no input gradient)."""
    embedding, scores = tiles * WIDTH * INNER, tiles * INNER * TOKENS * HEADS
    small = (4 * TOKENS + 2 * TOKENS + 2) * INNER**2
    forward = embedding + 2 * scores + small
    return {"inference": forward, "training": forward + embedding + 4 * scores + 2 * small + embedding + scores}


RATIOS = {
    "asmil_step_ratio": ("plain_step", "asmil_step"),
    "asmil_step_ratio_lean_anchor": ("plain_lean_step", "asmil_step"),
    "asmil_inference_ratio": ("plain_inference", "asmil_inference"),
    "asmil_vs_abmil_step": ("asmil_step", "abmil_step"),
}
Times = dict[str, float]


def ratios(rounds: list[Times]) -> dict[str, float]:
    """Each ratio taken within a round, and the median over the rounds."""
    return {
        key: statistics.median(times[over] / times[under] for times in rounds) for key, (over, under) in RATIOS.items()
    }


def measure(device: torch.device, tiles: list[int], rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    target = torch.tensor(1, device=device)
    model = build("asmil", WIDTH, 2, drop=0.0).to(device)
    assert isinstance(model, ASMIL)
    plain = PlainASMIL.from_folded(model)
    frozen, frozen_plain = copy.deepcopy(model).eval(), copy.deepcopy(plain).eval()
    steps = {
        "asmil_step": folded_step(model, target),
        "plain_step": plain_step(plain, target, lean_anchor=False),
        "plain_lean_step": plain_step(copy.deepcopy(plain), target, lean_anchor=True),
        "abmil_step": abmil_step(build("abmil", WIDTH, 2).to(device), target),
        "asmil_inference": inference(frozen, lambda bag: bag),
        "plain_inference": inference(frozen_plain, lambda bag: bag.features),
    }
    rows = []
    whole: list[Times] = [dict.fromkeys(steps, 0.0) for _ in range(rounds)]
    for n in tiles:
        bag = Bag(torch.randn(n, WIDTH)).to(device)
        for step in steps.values():
            seconds(step, bag)
        times = [{name: seconds(step, bag) for name, step in steps.items()} for _ in range(rounds)]
        for one, total in zip(times, whole, strict=True):
            for name in steps:
                total[name] += one[name]
        medians = {name: 1e3 * statistics.median(one[name] for one in times) for name in steps}
        rows.append({"tiles": n, "milliseconds": medians, **ratios(times)})
    return {"rows": rows, "summary": ratios(whole), "peak": matrix_product_rate(device)}


def share_of_peak(measured: dict[str, Any], what: str, name: str) -> float:
    """The rate of the largest bag as a share of the machine's own matrix products."""
    row = measured["rows"][-1]
    rate = multiply_adds(row["tiles"])[what] / (row["milliseconds"][name] / 1e3)
    return float(rate / measured["peak"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiles", type=int, nargs="+", default=[2000, 5000, 10_000, 20_000])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("latest.json"))
    options = parser.parse_args()
    device = torch.device(options.device)
    keep_freed_memory()
    measured = measure(device, options.tiles, options.rounds)
    summary = measured.pop("summary")
    machine = about(device)

    print(f"D {WIDTH}, I {INNER}, T {TOKENS}, H {HEADS}, float32, {options.rounds} rounds on {machine['device']}")
    print(f"torch {machine['torch']}, {machine['threads']} threads, commit {machine['commit']}")
    print(f"{'tiles':>7} {'ASMIL step':>11} {'plain':>9} {'ABMIL':>9} {'inference':>10} {'plain':>9}   (ms)")
    for row in measured["rows"]:
        ms = row["milliseconds"]
        print(
            f"{row['tiles']:>7} {ms['asmil_step']:>11.2f} {ms['plain_step']:>9.2f} {ms['abmil_step']:>9.2f} "
            f"{ms['asmil_inference']:>10.2f} {ms['plain_inference']:>9.2f}   "
            f"step {row['asmil_step_ratio']:.2f}x, inference {row['asmil_inference_ratio']:.2f}x, "
            f"{row['asmil_vs_abmil_step']:.2f} of ABMIL"
        )
    peak = 2 * measured["peak"] / 1e9
    shares = {
        "asmil_step_share_of_peak": share_of_peak(measured, "training", "asmil_step"),
        "asmil_inference_share_of_peak": share_of_peak(measured, "inference", "asmil_inference"),
    }
    print(
        f"training step: {summary['asmil_step_ratio']:.2f}x the plain form, "
        f"{summary['asmil_step_ratio_lean_anchor']:.2f}x where its anchor computes only scores"
    )
    print(f"inference:     {summary['asmil_inference_ratio']:.2f}x the plain form")
    print(f"ASMIL step with anchor: {summary['asmil_vs_abmil_step']:.2f} of a gated ABMIL step")
    print(
        f"a {measured['rows'][-1]['tiles']}-tile step runs at {shares['asmil_step_share_of_peak']:.0%}, inference at "
        f"{shares['asmil_inference_share_of_peak']:.0%} of this machine's float32 matrix products ({peak:.0f} GFLOP/s)"
    )
    result = {**summary, **shares, **machine, "peak_gflops": peak, **measured}
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
