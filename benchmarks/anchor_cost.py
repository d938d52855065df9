"""What the anchor costs in training, for every method that has scores; and that it costs nothing afterwards.

    make bench      or      python benchmarks/anchor_cost.py [--device cuda] [--tiles 2000 10000] [--methods abmil ...]

A step of `asmil train` in float32 without an anchor, the same with one (NSF, moved after every step) and the scores
alone (`attend` without gradient) take turns on one bag, so that a noisy machine slows all of them down; a ratio is
taken in each round, and medians are printed. Peak memory is all that a training holds when it holds most: the bag,
weights, moments of Adam, gradients, the anchor, and what a step keeps. The four methods of the paper's table are
measured a second time with its sizes (2,000 tiles, 384 features, embeddings 128 wide, 3 classes), and the normalizers
of the anchor with ABMIL and ASMIL on bags of several sizes.

Prediction never sees the anchor: parameters and operations of inference are asserted to be equal, not timed.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from asmil import Anchor, Bag, MILModel, build
from asmil.attention.normalizers import build_normalizer
from asmil.attention.stabilizer import AttentionStep
from asmil.attention.stabilizers import TemporalEnsemble
from asmil.files import write_json
from asmil.machine.memory import keep_freed_memory
from markdown_table import markdown_table
from measuring import (
    Step,
    about,
    labels,
    make_bag,
    milliseconds,
    peak_tensor_megabytes,
    timed,
    training_step,
    whole,
)

CLASSES = 3
PAPER_TILES, PAPER_WIDTH = 2_000, 384
PAPER_FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "clam_sb": ("clam_sb", {"inner": None, "attention": 128, "bag_weight": 1.0}),
    "transmil": ("transmil", {"inner": 128}),
    "dsmil": ("dsmil", {"query": "linear", "query_width": 128}),
    "abmil": ("abmil", {}),
}
"""The four methods of the paper's table with the sizes of its cost count."""


class Printed(NamedTuple):
    """Seconds an epoch and MB without and with an anchor, as the paper prints them (BRACS, one RTX 5000)."""

    seconds: tuple[float, float]
    megabytes: tuple[float, float]


PAPER = {
    "clam_sb": Printed((2.26, 2.69), (94, 120)),
    "transmil": Printed((5.99, 7.27), (340, 443)),
    "dsmil": Printed((0.57, 0.58), (60, 145)),
    "abmil": Printed((0.95, 1.17), (90, 162)),
}
NORMALIZERS: dict[str, tuple[str, dict[str, float]]] = {
    "softmax": ("softmax", {}),
    "nsf": ("nsf", {}),
    "standardized_nsf": ("standardized_nsf", {}),
    "sparsemax": ("sparsemax", {}),
    "entmax 1.5": ("entmax", {"alpha": 1.5}),
    "entmax 1.25": ("entmax", {"alpha": 1.25}),
}
NORMALIZER_METHODS = ("abmil", "asmil")
COHORT = (547, 5_000)
"""Slides of BRACS, and tiles that a slide may have."""
MIB = 2**20


def scored_labels() -> dict[str, tuple[str, dict[str, Any]]]:
    """The methods, and forms of them, that have scores for an anchor to hold."""
    return {label: form for label, form in labels().items() if build(form[0], 8, CLASSES, **form[1]).score_axes}


def tensor_bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def inference_cost(model: MILModel, bag: Bag) -> tuple[int, int]:
    """Parameters, and multiply-adds (matrix products and convolutions) of the model as `predict` runs it."""
    model.eval()
    with FlopCounterMode(display=False) as counter:
        model(bag)
    return count_parameters(model), counter.get_total_flops() // 2


def training_megabytes(model: MILModel, anchor: Anchor | None, bag: Bag, step: Step, device: torch.device) -> float:
    """All that a training holds at its peak; `step` has run before, so moments and a lean anchor are there."""
    model.zero_grad(set_to_none=True)
    moments = 2 * sum(p.nbytes for p in model.parameters() if p.requires_grad)
    held = tensor_bytes(model) + moments + bag.features.nbytes + (0 if anchor is None else tensor_bytes(anchor))
    return held / MIB + peak_tensor_megabytes(step, device)


@torch.no_grad()
def temporal_bytes(model: MILModel, bag: Bag) -> int:
    """What temporal ensembling keeps of one slide: the average of its past attention."""
    ensemble = TemporalEnsemble(model.normalizer)
    output = model.eval()(bag)
    ensemble.penalty(AttentionStep(bag, output.scores, output.embedding, model.normalizer))
    return sum(average.nbytes for average in ensemble.state_dict().values())


def take_turns(steps: Mapping[str, Step], rounds: int, device: torch.device) -> list[dict[str, float]]:
    """Seconds of every step in every round."""
    return [{what: timed(step, device) for what, step in steps.items()} for _ in range(rounds)]


def measure_method(
    name: str, model_options: Mapping[str, Any], tiles: int, width: int, rounds: int, device: torch.device
) -> dict[str, Any]:
    """One method on one bag, without and with an anchor."""
    torch.manual_seed(0)
    plain = build(name, width, CLASSES, **model_options).to(device)
    bag = plain.prepare(make_bag(tiles, width)).to(device)
    anchored = copy.deepcopy(plain)
    anchor = Anchor(anchored)
    steps: dict[str, Step] = {
        "plain": training_step(plain, bag),
        "anchored": training_step(anchored, bag, anchor),
        "scores": lambda: anchor.attend(bag),
    }
    take_turns(steps, 3, device)
    memory = {
        "plain_mb": training_megabytes(plain, None, bag, steps["plain"], device),
        "anchored_mb": training_megabytes(anchored, anchor, bag, steps["anchored"], device),
    }
    turns = take_turns(steps, rounds, device)
    parameters, multiply_adds = inference_cost(plain, bag)
    assert inference_cost(anchored, bag) == (parameters, multiply_adds), "the anchor must cost nothing at inference"
    return {
        "tiles": tiles,
        "parameters": parameters,
        "anchor_parameters": count_parameters(anchor),
        "anchor_bytes": tensor_bytes(anchor),
        "temporal_bytes": temporal_bytes(plain, bag),
        "inference_multiply_adds": multiply_adds,
        **{f"{what}_s": statistics.median(turn[what] for turn in turns) for what in steps},
        "time_ratio": statistics.median(turn["anchored"] / turn["plain"] for turn in turns),
        "extra_over_scores": statistics.median((turn["anchored"] - turn["plain"]) / turn["scores"] for turn in turns),
        **memory,
    }


def measure_normalizers(name: str, tiles: int, width: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """The step of one method with every normalizer of the anchor, and without an anchor."""
    torch.manual_seed(0)
    model = build(name, width, CLASSES).to(device)
    bag = model.prepare(make_bag(tiles, width)).to(device)
    steps: dict[str, Step] = {"none": training_step(model, bag)}
    for label, (normalizer, options) in NORMALIZERS.items():
        trained = copy.deepcopy(model)
        anchor = Anchor(trained, normalizer=build_normalizer(normalizer, **options))
        steps[label] = training_step(trained, bag, anchor)
    take_turns(steps, 3, device)
    turns = take_turns(steps, rounds, device)
    return {
        "method": name,
        "tiles": tiles,
        "seconds": {label: statistics.median(turn[label] for turn in turns) for label in steps},
        "over_nsf": {label: statistics.median(turn[label] / turn["nsf"] for turn in turns) for label in steps},
    }


def percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"


def method_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every method: step and peak memory without and with an anchor, and what the anchor holds."""
    headers = ["method", "parameters", "anchor's", "ms without", "with", "", "MB without", "with", ""]
    return markdown_table(
        [*headers, "scores alone, ms", "extra / scores"],
        [
            [
                row["label"],
                f"{row['parameters']:,}",
                f"{row['anchor_parameters']:,}",
                milliseconds(row["plain_s"]),
                milliseconds(row["anchored_s"]),
                percent(row["time_ratio"]),
                whole(row["plain_mb"]),
                whole(row["anchored_mb"]),
                percent(row["anchored_mb"] / row["plain_mb"]),
                milliseconds(row["scores_s"]),
                f"{row['extra_over_scores']:.1f}",
            ]
            for row in rows
        ],
    )


def paper_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Our overhead beside the paper's, for its four methods with its sizes."""
    cells = []
    for row in rows:
        printed = PAPER[row["label"]]
        cells.append(
            [
                row["label"],
                "{} → {}".format(*printed.seconds),
                percent(printed.seconds[1] / printed.seconds[0]),
                f"{milliseconds(row['plain_s'])} → {milliseconds(row['anchored_s'])}",
                percent(row["time_ratio"]),
                "{:.0f} → {:.0f}".format(*printed.megabytes),
                percent(printed.megabytes[1] / printed.megabytes[0]),
                f"{row['plain_mb']:.1f} → {row['anchored_mb']:.1f}",
                percent(row["anchored_mb"] / row["plain_mb"]),
            ]
        )
    headers = ["method", "paper: s per epoch", "", "here: ms per step", "", "paper: MB", "", "here: MB", ""]
    return markdown_table(headers, cells)


def memory_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What is kept between steps: the anchor, or temporal ensembling's averages for a cohort of the paper's size."""
    slides, tiles = COHORT
    return markdown_table(
        ["method", "anchor, MB", f"averages of {slides} slides of {tiles:,} tiles, MB"],
        [
            [
                row["label"],
                f"{row['anchor_bytes'] / MIB:.2f}",
                whole(row["temporal_bytes"] / row["tiles"] * slides * tiles / MIB),
            ]
            for row in rows
        ],
    )


def normalizer_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Milliseconds of a step by the anchor's normalizer, and in brackets how much more than with NSF."""
    names = ["none", *NORMALIZERS]
    cells = [
        [
            row["method"],
            f"{row['tiles']:,}",
            *(f"{milliseconds(row['seconds'][name])} ({percent(row['over_nsf'][name])})" for name in names),
        ]
        for row in rows
    ]
    return markdown_table(["method", "tiles", *names], cells)


def measure_all(options: argparse.Namespace, device: torch.device) -> Iterator[tuple[str, dict[str, Any]]]:
    """The part of the results that a row belongs to, and the row."""
    known = scored_labels()
    for tiles in options.tiles:
        for label in options.methods or known:
            row = measure_method(*known[label], tiles, options.width, options.rounds, device)
            yield "methods", {"label": label, **row}
    for label, form in PAPER_FORMS.items():
        yield "paper", {"label": label, **measure_method(*form, PAPER_TILES, PAPER_WIDTH, options.rounds, device)}
    for name in NORMALIZER_METHODS:
        for tiles in options.normalizer_tiles:
            yield "normalizers", measure_normalizers(name, tiles, options.width, options.rounds, device)


def print_tables(results: Mapping[str, list[dict[str, Any]]]) -> None:
    for tiles in dict.fromkeys(row["tiles"] for row in results["methods"]):
        print(f"\n{tiles:,} tiles\n\n{method_table([row for row in results['methods'] if row['tiles'] == tiles])}")
    fewest = min(row["tiles"] for row in results["methods"])
    print(f"\nKept between steps\n\n{memory_table([row for row in results['methods'] if row['tiles'] == fewest])}")
    print(f"\nCompared with the paper ({PAPER_TILES:,} tiles)\n\n{paper_table(results['paper'])}")
    print(f"\nNormalizers of the anchor\n\n{normalizer_table(results['normalizers'])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiles", type=int, nargs="+", default=[2_000, 10_000])
    parser.add_argument("--normalizer-tiles", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--width", type=int, default=PAPER_WIDTH)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--methods", nargs="+", choices=list(scored_labels()), metavar="METHOD")
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    keep_freed_memory()
    settings = {**about(device), "width": options.width, "classes": CLASSES, "rounds": options.rounds}
    print(", ".join(f"{key} {value}" for key, value in settings.items()), flush=True)
    out = options.out or Path(__file__).with_name(f"latest_anchor_{device.type}.json")
    results: dict[str, list[dict[str, Any]]] = {"methods": [], "paper": [], "normalizers": []}
    for part, row in measure_all(options, device):
        results[part].append(row)
        print(part, json.dumps(row), flush=True)
        write_json(out, {**settings, **results})
    print_tables(results)
    print(f"\nwritten to {out}")


if __name__ == "__main__":
    main()
