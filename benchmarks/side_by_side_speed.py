"""How much faster the folds and seeds of a method train side by side than one after the other, on a real cohort.

    OMP_NUM_THREADS=1 python benchmarks/side_by_side_speed.py [--methods abmil asmil ...] [--folds 5] [--seeds 3]
    python benchmarks/side_by_side_speed.py --device cuda --folds 10 --seeds 5 --epochs 50 --methods all --without-alone
    OMP_NUM_THREADS=1 python benchmarks/side_by_side_speed.py --task survival

BRCA of `tcga_hipt` (875 slides, median 27 vectors of 192; in ASMIL_DATA, or `../shared/data`), or bags of the same
shape if it is missing. Ten-fold or five-fold splits by patient, one bag per step. Steps of the last epoch are
measured, by the time of the processor on a CPU: of all trainings side by side, and of as many trainings one after the
other as `--alone` says (default 2), which take turns with them in every round. Setting up, validation and writing are
not counted. "Products and Adam" is what stacking cannot save (see `least`). `--bags` limits the cohort, `--epochs`
(default 2) is the number of epochs.

`--task survival`: the patients of BLCA, 32 per step, as by default. Regression (the age of the patient) and multilabel
(subtype and sex) are of BRCA.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from asmil import Bag, methods
from asmil.errors import AsmilError
from asmil.files import write_json
from asmil.models.blocks.layers import TileLinear
from asmil.runs.config import RunConfig, resolve
from asmil.runs.model import build_model
from asmil.tasks.base import Task, TaskKind
from asmil.tasks.classification import Classification
from asmil.tasks.multilabel import MultiLabel
from asmil.tasks.regression import Regression
from asmil.tasks.survival import Survival
from asmil.tasks.survival_bins import fit_bins
from asmil.training.labeled_bags import BagList, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.resident import ResidentBags
from asmil.training.side_by_side.bags import NotSideBySide
from asmil.training.side_by_side.schedule import MOST_AT_ONCE
from asmil.training.side_by_side.step import StackedSteps
from asmil.training.side_by_side.train import fit_side_by_side
from markdown_table import markdown_table
from measuring import about, synchronize

MAIN = ("abmil", "clam_sb", "asmil", "mean_pooling")
REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("ASMIL_DATA", REPOSITORY.parent / "shared" / "data")) / "tcga_hipt"
CLASSES = ("IDC", "ILC")
SURVIVAL_BINS = 10


@dataclass(frozen=True)
class Cohort:
    """Bags, their targets, and their patients."""

    name: str
    kind: TaskKind
    bags: Sequence[Bag]
    targets: np.ndarray
    patients: np.ndarray

    def task(self, train: np.ndarray) -> Task:
        """The task, fitted on the training bags."""
        targets = self.targets[train]
        if self.kind == "survival":
            return Survival(fit_bins(targets[:, 0], targets[:, 1], SURVIVAL_BINS))
        if self.kind == "regression":
            return Regression.of_training(targets)
        return MultiLabel(("ILC", "female")) if self.kind == "multilabel" else Classification(CLASSES)

    def folds(self, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Training and validation bags of every fold; the test bags of the fold are in neither."""
        names, owner = np.unique(self.patients, return_inverse=True)
        part = np.random.default_rng(0).permutation(len(names))[owner] % count
        return [
            (np.flatnonzero((part != fold) & (part != (fold + 1) % count)), np.flatnonzero(part == (fold + 1) % count))
            for fold in range(count)
        ]


@dataclass(frozen=True)
class Part:
    """Some bags of the cohort, as a source."""

    cohort: Cohort
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def stream(self, order: Sequence[int]) -> Any:
        return BagList([self.cohort.bags[i] for i in self.indices]).stream(order)

    def keys(self) -> list[Hashable]:
        return list(self.indices.tolist())


def read_cohort(limit: int | None, kind: TaskKind) -> Cohort:
    """BRCA (survival: the patients of BLCA), or bags of the same shape."""
    from asmil.datasets.downloads import Downloads
    from asmil.datasets.tcga import read_regions, read_subtypes, read_survival

    name = "blca" if kind == "survival" else "brca"
    if not (DATA / f"{name}.npz").exists():
        return made_up(limit, kind)
    if kind == "survival":
        table = read_survival(Downloads(DATA.parent), name)
        slides = read_regions(Downloads(DATA), name, table["slide"])
        by_patient = table[table["slide"].isin(slides)].groupby("patient", sort=False)
        patients = by_patient[["time_months", "event"]].first()[:limit]
        bags = [
            Bag(torch.cat([_tiles(slides, slide) for slide in by_patient.get_group(p)["slide"]]), id=p)
            for p in patients.index
        ]
        return Cohort("BLCA", kind, bags, patients.to_numpy(dtype=np.float64), patients.index.to_numpy())
    table = read_subtypes(Downloads(DATA), name)
    table = table[(table["age"] != "") & (table["is_female"] != "")][:limit]
    slides = read_regions(Downloads(DATA), name, table["slide"])
    lobular = (table["label"] == CLASSES[1]).to_numpy().astype(int)
    targets = {
        "classification": lobular,
        "regression": table["age"].to_numpy(dtype=np.float64),
        "multilabel": np.stack([lobular, table["is_female"].astype(float).to_numpy(dtype=np.int64)], axis=1),
    }
    bags = [Bag(_tiles(slides, slide), id=slide) for slide in table["slide"]]
    return Cohort("BRCA", kind, bags, targets[kind], table["patient"].to_numpy())


def _tiles(slides: dict[str, np.ndarray], slide: str) -> torch.Tensor:
    return torch.from_numpy(slides[slide]).float()


def made_up(limit: int | None, kind: TaskKind) -> Cohort:
    draw = np.random.default_rng(0)
    count = limit or 875
    sizes = np.clip(draw.gamma(1.6, 18.5, count), 1, 122).astype(int)
    features = [torch.from_numpy(draw.normal(size=(size, 192)).astype(np.float32)) for size in sizes]
    bags = [Bag(values, id=f"bag {i}") for i, values in enumerate(features)]
    targets = {
        "classification": (draw.random(count) < 0.17).astype(int),
        "regression": draw.normal(size=count),
        "multilabel": draw.integers(0, 2, (count, 2)),
        "survival": np.stack([draw.exponential(10, count), draw.integers(0, 2, count)], axis=1),
    }
    return Cohort("made up", kind, bags, targets[kind], np.arange(count))


class Measured:
    """Trainings of a method, and the seconds of their steps."""

    def __init__(self, config: RunConfig, cohort: Cohort, folds: int, seeds: int, device: torch.device) -> None:
        self.trainers: list[Trainer] = []
        self.train: list[LabeledBags] = []
        self.val: list[LabeledBags] = []
        self.device = device
        for train, val in cohort.folds(folds):
            task = cohort.task(train)
            for seed in range(seeds):
                model = build_model(config, cohort.bags[0].width, task.n_outputs, seed)
                self.trainers.append(Trainer(model, task, config, seed=seed, device=device))
                for labeled, part in ((self.train, train), (self.val, val)):
                    strata = np.zeros(len(part), dtype=np.int64)
                    labeled.append(LabeledBags(Part(cohort, part), cohort.targets[part], strata))

    def clock(self) -> float:
        synchronize(self.device)
        return time.process_time() if self.device.type == "cpu" else time.perf_counter()

    def together(self) -> list[float]:
        """Seconds of the steps of every epoch, of all trainings side by side; as many at once as in a run."""
        pool = ResidentBags(self.trainers[0].model.in_features, self.device, torch.float32)
        original, epochs = StackedSteps.run_epoch, []

        def timed(steps: Any, due: Any) -> None:
            started = self.clock()
            original(steps, due)
            epochs.append(self.clock() - started)

        groups = -(-len(self.trainers) // MOST_AT_ONCE[self.device.type])
        per_epoch: list[float] = []
        StackedSteps.run_epoch = timed  # type: ignore[method-assign, assignment]
        try:
            for group in range(groups):
                chosen = slice(len(self.trainers) * group // groups, len(self.trainers) * (group + 1) // groups)
                epochs.clear()
                fit_side_by_side(self.trainers[chosen], self.train[chosen], self.val[chosen], pool)
                per_epoch = [a + b for a, b in zip(epochs, per_epoch or [0.0] * len(epochs), strict=True)]
        finally:
            StackedSteps.run_epoch = original  # type: ignore[method-assign]
        return per_epoch

    def alone(self, number: int) -> float:
        """Seconds of the steps of the last epoch of one training."""
        trainer, seconds = self.trainers[number], []
        original = trainer._train_epoch

        def timed(*arguments: Any) -> None:
            started = self.clock()
            original(*arguments)
            seconds.append(self.clock() - started)

        trainer._train_epoch = timed  # type: ignore[assignment, method-assign]
        trainer.fit(self.train[number], self.val[number])
        return seconds[-1]


def least(config: RunConfig, cohort: Cohort, trainings: int, repeats: int = 30) -> float:
    """Seconds per bag on a CPU of what stacking cannot save: products of tiles with each training's weights, and Adam.

    Only layers that every tile passes count, without padding; each has a forward product and two backward.
    """
    model = build_model(config, cohort.bags[0].width, 2, 0)
    tiles = round(statistics.mean(len(bag) for bag in cohort.bags))
    layers = []
    for shape in [part.weight.shape for part in model.modules() if isinstance(part, TileLinear)]:
        outputs, inputs = shape
        rows, after = torch.randn(trainings, tiles, inputs), torch.randn(trainings, tiles, outputs)
        weights = torch.randn(trainings, inputs, outputs)
        layers.append((rows, weights, after, inputs == cohort.bags[0].width))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    tables = [nn.Parameter(torch.randn(parameters)) for _ in range(trainings)]
    for table in tables:
        table.grad = torch.randn_like(table)
    optimizer = torch.optim.Adam(tables, fused=True)
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        with torch.no_grad():
            for rows, weights, after, is_first in layers:
                torch.bmm(rows, weights)
                torch.bmm(rows.mT, after)
                if not is_first:
                    torch.bmm(after, weights.mT)
        optimizer.step()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds) / trainings


def measure(method: str, cohort: Cohort, options: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(options.device)
    training = {"epochs": options.epochs, "device": options.device, "select": "loss"}
    changes = {"training": training, "record": {"attention": "none"}, "task": {"kind": cohort.kind}}
    config = resolve(method, changes=changes)
    trainings = options.folds * options.seeds
    rounds = []
    for _ in range(options.rounds):
        measured = Measured(config, cohort, options.folds, options.seeds, device)
        try:
            epochs = measured.together()
        except (NotSideBySide, AsmilError, RuntimeError) as reason:
            return {"method": method, "reason": str(reason).splitlines()[0][:120]}
        steps = sum(len(part.bags) for part in measured.train)
        alone = 0.0
        if not options.without_alone:
            fresh = Measured(config, cohort, options.folds, options.seeds, device)
            chosen = range(0, trainings, max(1, trainings // options.alone))[: options.alone]
            taken = sum(len(fresh.train[number].bags) for number in chosen)
            alone = sum(fresh.alone(number) for number in chosen) / taken
        rounds.append((epochs[-1] / steps, alone, sum(epochs)))
    together = statistics.median(own for own, _, _ in rounds)
    result = {"method": method, "together": together, "seconds": statistics.median(total for _, _, total in rounds)}
    if not options.without_alone:
        result["alone"] = statistics.median(alone for _, alone, _ in rounds)
        result["ratio"] = statistics.median(alone / own for own, alone, _ in rounds)
    if device.type == "cpu":
        result["least"] = least(config, cohort, trainings)
    return result


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    headers = [
        "method",
        "side by side, ms per bag",
        "one after the other",
        "ratio",
        "products and Adam",
        "all steps, s",
    ]
    rows = [
        [
            result["method"],
            f"{1e3 * result['together']:.3f}" if "together" in result else result["reason"],
            f"{1e3 * result['alone']:.3f}" if "alone" in result else "",
            f"{result['ratio']:.1f}" if "ratio" in result else "",
            f"{1e3 * result['least']:.3f}" if "least" in result else "",
            f"{result['seconds']:.1f}" if "seconds" in result else "",
        ]
        for result in results
    ]
    return markdown_table(headers, rows)


def seconds_of_epochs(setting: dict[str, Any], result: dict[str, Any], epochs: int) -> float:
    """The seconds of the steps of so many epochs of all trainings, at the speed of the last one that was measured."""
    bags = int(setting["cohort"].rsplit(", ", 1)[1].split()[0])
    folds, seeds = (int(part.split()[0]) for part in setting["trainings"].split(" x "))
    return float(result["together"] * epochs * bags * (folds - 2) * seeds)  # two folds validate and test


def all_methods(setting: dict[str, Any], epochs: int) -> str:
    """A record of many methods as Markdown, the fastest first."""
    measured = [result for result in setting["results"] if "together" in result]
    rows = [
        [result["method"], f"{1e6 * result['together']:.1f}", f"{seconds_of_epochs(setting, result, epochs):.0f}"]
        for result in sorted(measured, key=lambda result: result["together"])
    ]
    rows += [[result["method"], result["reason"], ""] for result in setting["results"] if "reason" in result]
    return markdown_table(["method", "µs per bag", f"{epochs} epochs, s"], rows)


def seconds_of_all(setting: dict[str, Any], epochs: int, but: Sequence[str] = ()) -> float:
    """The seconds of the steps of all measured methods, one after the other; but: without these."""
    measured = [result for result in setting["results"] if "together" in result and result["method"] not in but]
    return sum(seconds_of_epochs(setting, result, epochs) for result in measured)


def before_and_after(before: dict[str, Any], after: dict[str, Any], epochs: int) -> str:
    """Two records as Markdown: the time of a bag, and the seconds of so many epochs."""
    earlier = {result["method"]: result for result in before["results"]}
    rows = []
    for result in after["results"]:
        old = earlier.get(result["method"])
        cells = [f"{1e6 * result['together']:.1f}", f"{seconds_of_epochs(after, result, epochs):.1f}"]
        if old is not None:
            cells += [f"{seconds_of_epochs(before, old, epochs):.1f}", f"{old['together'] / result['together']:.2f}"]
        rows.append([result["method"], *cells, *[""] * (4 - len(cells))])
    return markdown_table(["method", "µs per bag", f"{epochs} epochs, s", "before, s", "times faster"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(MAIN), help="names, or all")
    parser.add_argument("--task", default="classification", choices=get_args(TaskKind))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bags", type=int)
    parser.add_argument("--alone", type=int, default=2, help="trainings that are measured one after the other")
    parser.add_argument("--without-alone", action="store_true")
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    chosen = sorted(methods()) if options.methods == ["all"] else options.methods
    if options.device == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    cohort = read_cohort(options.bags, options.task)
    setting = {
        **about(torch.device(options.device)),
        "command": " ".join(["python benchmarks/side_by_side_speed.py", *sys.argv[1:]]),
        "cohort": f"{cohort.name}, {len(cohort.bags)} bags",
        "trainings": f"{options.folds} folds x {options.seeds} seeds",
    }
    print(json.dumps(setting), flush=True)
    results = []
    for method in chosen:
        results.append(measure(method, cohort, options))
        print(json.dumps(results[-1]), flush=True)
        if options.out:
            write_json(options.out, {**setting, "results": results})
    print(table(results))


if __name__ == "__main__":
    main()
