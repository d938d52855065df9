"""The selective scan of mamba_mil on a GPU: the kernels beside the PyTorch form, in turns.

python benchmarks/scan_speed.py [--tiles 600 10000 100000] [--rounds 11] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asmil.models.blocks import kernel_scan
from asmil.models.blocks.selective_scan import selective_scan
from measuring import Step, about, peak_megabytes, timed

CHANNELS, STATES = 256, 16
"""Of mamba_mil by default."""
FORMS = {"torch": False, "kernels": True}


def step_of(has_triton: bool, inputs: list[Tensor], learns: bool) -> Step:
    def step() -> None:
        kernel_scan.HAS_TRITON = has_triton
        y = selective_scan(*(part.requires_grad_(learns) for part in inputs))
        if learns:
            torch.autograd.grad(y.sum(), inputs)

    return step


def measure(tiles: int, rounds: int, device: torch.device) -> dict[str, Any]:
    shapes = [(tiles, CHANNELS), (tiles, CHANNELS), (CHANNELS, STATES), (tiles, STATES), (tiles, STATES)]
    dt, u, a, b, c = (torch.randn(shape, device=device) for shape in shapes)
    inputs = [torch.nn.functional.softplus(dt), u, -a.exp(), b, c]
    row: dict[str, Any] = {"tiles": tiles}
    for what, learns in (("forward", False), ("training", True)):
        steps = {form: step_of(has_triton, inputs, learns) for form, has_triton in FORMS.items()}
        row |= {f"{form}_{what}_mb": peak_megabytes(step, device) for form, step in steps.items()}
        turns = [{form: timed(step, device) for form, step in steps.items()} for _ in range(rounds)]
        middle: Callable[[Any], float] = statistics.median
        row |= {f"{form}_{what}_s": middle(turn[form] for turn in turns) for form in FORMS}
        row[f"{what}_ratio"] = middle(turn["torch"] / turn["kernels"] for turn in turns)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, nargs="+", default=[600, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("latest_scan_cuda.json"))
    options = parser.parse_args()
    device = torch.device("cuda")
    rows = []
    for tiles in options.tiles:
        rows.append(measure(tiles, options.rounds, device))
        print(json.dumps(rows[-1]), flush=True)
    options.out.write_text(json.dumps({**about(device), "rounds": options.rounds, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
