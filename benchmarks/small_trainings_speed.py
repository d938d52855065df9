"""How much faster small trainings are side by side than one after another.

    python benchmarks/small_trainings_speed.py [--methods abmil asmil ...] [--bags 24] [--rounds 3] [--out FILE]

Bags as in the classic MIL benchmarks (2 to 13 instances of 230 features, made up), models 32 wide, one bag per step, 20
replicas: 10 folds, each with all of its training bags and with 8 of 9. Both ways train the same replicas for two epochs
and predict all bags, taking turns, on one thread. The second epoch is measured, by the time of the processor, so that
other work on the machine matters little. The ratio is taken in each round, and medians are printed. A step is one bag
of the common order, seen by all replicas. Setting up is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asmil.classic.bag_set import BagSet, make_bag_set
from asmil.classic.training import make_trainings, train_side_by_side
from asmil.files import write_json
from asmil.runs.config import RunConfig, resolve
from markdown_table import markdown_table
from measuring import about, milliseconds

FEATURES, FOLDS = 230, 10
STEPS_A_SEED = 752 * 40
"""Steps of one seed on the five classic sets and UCSB: all bags, 40 epochs."""
MODELS: dict[str, dict[str, Any]] = {
    "abmil": {"inner": 32, "attention": 32},
    "asmil": {"inner": 32, "heads": 4},
    "demil": {"inner": 32},
    "dsmil": {"query_width": 32},
    "max_pooling": {"inner": 32},
    "mean_pooling": {"inner": 32},
    "psmil": {"inner": 32, "embedding_layers": 2},
    "rgmil": {"inner": 32},
    "transmil": {"inner": 32, "heads": 4},
}


def make_bags(count: int) -> BagSet:
    draw = np.random.default_rng(0)
    sizes = draw.integers(2, 14, count)
    features = draw.normal(size=(sizes.sum(), FEATURES)).astype(np.float32)
    return make_bag_set(
        Path("made_up"), features, np.repeat(np.arange(count), sizes), np.repeat(np.arange(count) % 2, sizes)
    )


def make_parts(count: int) -> list[np.ndarray]:
    """The training bags of every replica."""
    bags = np.arange(count)
    parts = [bags[bags % FOLDS != fold] for fold in range(FOLDS)]
    return parts + [part[np.arange(len(part)) % 9 != fold % 9] for fold, part in enumerate(parts)]


def measure(config: RunConfig, bags: BagSet, rounds: int) -> dict[str, float]:
    """Seconds per step of both ways, and their ratio."""
    seconds = [one_round(config, bags) for _ in range(rounds + 1)][1:]  # the first one loads code
    return {
        "together": statistics.median(together for together, _ in seconds) / bags.n_bags,
        "alone": statistics.median(alone for _, alone in seconds) / bags.n_bags,
        "ratio": statistics.median(alone / together for together, alone in seconds),
    }


def one_round(config: RunConfig, bags: BagSet) -> tuple[float, float]:
    """Seconds of the second of two epochs of all replicas, side by side and one at a time."""
    trainings = make_trainings(config, bags, make_parts(bags.n_bags), seed=0)
    ends: list[float] = []
    train_side_by_side(trainings, on_epoch=lambda: ends.append(time.process_time()))
    together, alone = ends[-1] - ends[len(trainings) - 1], 0.0
    for training in make_trainings(config, bags, make_parts(bags.n_bags), seed=0):
        ends.clear()
        training.train_alone(on_epoch=lambda: ends.append(time.process_time()))
        alone += ends[1] - ends[0]
    return together, alone


def table(results: list[dict[str, Any]]) -> str:
    """Markdown."""
    headers = ["method", "side by side, ms per step", "one at a time", "ratio", "minutes per seed"]
    rows = [
        [
            result["method"],
            milliseconds(result["together"]),
            milliseconds(result["alone"]),
            f"{result['ratio']:.1f}",
            f"{result['together'] * STEPS_A_SEED / 60:.0f}",
        ]
        for result in results
    ]
    return markdown_table(headers, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=sorted(MODELS), choices=sorted(MODELS))
    parser.add_argument("--bags", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = {**about(torch.device("cpu")), "bags": options.bags, "rounds": options.rounds}
    print(json.dumps(machine), flush=True)
    bags = make_bags(options.bags)
    results = []
    for method in options.methods:
        training = {"epochs": 2, "lr": 5e-4, "device": "cpu"}
        config = resolve(method, changes={"model": MODELS[method], "training": training})
        results.append({"method": method, **measure(config, bags, options.rounds)})
        print(results[-1], flush=True)
    print(table(results))
    if options.out:
        write_json(options.out, {**machine, "results": results})


if __name__ == "__main__":
    main()
