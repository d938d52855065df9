"""Tables that are counted or timed rather than trained on slides: affine dependence, cost, and the classic sets."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from asmil.attention.affine import cohort_dependence
from asmil.attention.anchor import Anchor
from asmil.classic.bag_set import BagSet, make_bag_set
from asmil.classic.jobs import JOBS, Job, run_jobs
from asmil.classic.reading import find_sets, read_set
from asmil.classic.settings import contenders
from asmil.cohort.bag import Bag
from asmil.engine import InlineEngine
from asmil.errors import AsmilError
from asmil.models.base import MILModel
from asmil.models.registry import build
from asmil.paper.datasets import Size, dataset, stand_in
from asmil.paper.printed import PrintedTable, printed_table
from asmil.paper.report import SMALL, SMOKE, STAND_IN
from asmil.reporting import Document, Section, Table, jsonable
from asmil.reporting.files import write_document
from asmil.reporting.formats import format_count, format_number
from asmil.settings.made_from import DoneBefore
from asmil.synthetic.bags import write_synthetic

Values = dict[tuple[str, str], float]
"""Our numbers by row and column."""
TILES, WIDTH, CLASSES = 2000, 384, 3
FORMS: dict[str, dict[str, Any]] = {
    "abmil": {},
    "clam_sb": {"inner": None, "attention": 128, "bag_weight": 1.0},
    "transmil": {"inner": 128},
    "dsmil": {"query": "linear", "query_width": 128},
    "mhim": {},
    "asmil": {},
}
"""The sizes with which the paper counts: 2,000 tiles of 384 features, embeddings 128 wide, three classes."""


@dataclass(frozen=True)
class Counted:
    """Our numbers for a printed table, and why they may not be comparable."""

    table: PrintedTable
    values: Values
    rows: tuple[str, ...]
    synthetic: bool
    size: Size
    why: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CountRequest:
    """What is counted, and where; again: count again what was counted from something else, instead of refusing."""

    out: Path
    size: Size
    cohort: Path | None
    features: Path | None
    again: bool


def write_counted(table: str, asked: CountRequest) -> Counted:
    """Count one of these tables and write `table.json`, `.md` and `.html`."""
    counted = COUNTERS[table](printed_table(table), asked)
    numbers = [{"row": row, "column": key, "ours": value} for (row, key), value in counted.values.items()]
    about = {"table": table, "synthetic": counted.synthetic, "size": asked.size}
    data = jsonable({**about, "numbers": numbers, "notes": counted.notes})
    write_document(counted_document(counted), asked.out / "table.html", data)
    return counted


def counted_document(counted: Counted) -> Document:
    """Our numbers beside the printed ones."""
    rows, verdicts = [], []
    for row, source in zip(counted.rows, counted.table.rows, strict=True):
        for column in counted.table.columns:
            ours = counted.values.get((row, column.key), math.nan)
            mean, _ = source.values.get(column.key, (math.nan, math.nan))
            unit = f" {column.unit}" if column.unit else ""
            verdict = f"cannot be compared: {counted.why}" if counted.why else "agrees" if ours == mean else "differs"
            if math.isnan(ours):
                verdict = "not measured here"
            verdicts.append(verdict)
            rows.append([row, column.key, _number(ours), _number(mean) + unit, verdict])
    warnings = [STAND_IN] if counted.synthetic else []
    if counted.size != "full" and counted.synthetic:
        warnings.append(SMALL if counted.size == "small" else SMOKE)
    # a reason that holds for all rows is in the answer
    left_out = frozenset({"verdict"}) if counted.why else frozenset()
    columns = ["row", "column", "ours", "printed", "verdict"]
    table = Table(columns, rows, "ours beside the paper's", in_terminal=True, narrow=left_out)
    return Document(
        kind="table of the paper" + (" (synthetic stand-in)" if counted.synthetic else ""),
        title=f"{counted.table.id}: {counted.table.title}",
        answer=_answer(counted, verdicts),
        sections=[Section("Numbers", [table, *counted.notes])],
        warnings=[*warnings, *(f"In print: {doubt}." for doubt in counted.table.doubts)],
    )


def _answer(counted: Counted, verdicts: Sequence[str]) -> str:
    """How many numbers there are, and how they compare with the printed ones."""
    total = f"{counted.table.id}: {format_count(len(counted.values), 'number')} counted or measured here."
    if counted.why:
        return f"{total} They cannot be compared with the printed ones: {counted.why}."
    return f"{total} {verdicts.count('agrees')} equal the printed ones, {verdicts.count('differs')} do not."


def _number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else format_number(value)


def _affine(table: PrintedTable, asked: CountRequest) -> Counted:
    values: Values = {}
    notes = []
    for column in table.columns:
        if asked.cohort is not None:
            manifest = asked.cohort
        else:
            config = stand_in(dataset(column.dataset), asked.size).synthetic
            assert config is not None
            manifest = write_synthetic(asked.out / "cohorts" / column.dataset, config, again=asked.again)
        share = cohort_dependence(manifest, asked.features).share("plain")
        values["affinely_dependent_bags", column.key] = 100.0 * share.dependent / max(1, share.slides)
        notes.append(f"{column.dataset}: {share.dependent} of {share.slides} slides, {share.by_count} by their count.")
        if asked.cohort is not None:
            break
    why = "synthetic stand-in" if asked.cohort is None else ""
    return Counted(table, values, ("affinely_dependent_bags",), asked.cohort is None, asked.size, why, tuple(notes))


def multiply_adds(model: MILModel, bag: Bag) -> float:
    """Millions of multiply-adds of one inference pass (torch's count of operations, halved)."""
    model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(model.prepare(bag))
    return float(counter.get_total_flops()) / 2e6


def cost_model(method: str) -> MILModel:
    """A method with the sizes of the paper's count."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(method, WIDTH, CLASSES, **FORMS[method])


def cost_bag() -> Bag:
    """A bag of the size that the paper counts with."""
    draw = torch.Generator().manual_seed(0)
    side = math.isqrt(TILES) + 1
    coords = torch.stack([torch.arange(TILES) % side, torch.arange(TILES) // side], dim=1) * 256
    return Bag(torch.randn(TILES, WIDTH, generator=draw), coords, id="cost")


def step_milliseconds(method: str, anchor: bool, repeats: int) -> tuple[float, float]:
    """Median milliseconds of a training step and of an inference pass on one bag, on the CPU or a GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = cost_model(method).to(device)
    bag = model.prepare(cost_bag()).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    held = Anchor(copy.deepcopy(model), normalizer="nsf").to(device) if anchor else None
    target = torch.tensor([1], device=device)

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        output = model(bag)
        loss: Tensor = torch.nn.functional.cross_entropy(output.logits[None], target)
        if held is not None:
            scores = model.attend(bag) if output.scores is None else output.scores
            loss = loss + held.loss(bag, scores)
        loss.backward()
        optimizer.step()
        if held is not None:
            held.update(model)

    def infer() -> None:
        model.eval()
        with torch.no_grad():
            model(bag)

    return _median_ms(step, repeats, device), _median_ms(infer, repeats, device)


def _median_ms(work: Callable[[], None], repeats: int, device: torch.device) -> float:
    times = []
    for _ in range(repeats + 2):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[2:])


def _cost(table: PrintedTable, asked: CountRequest) -> Counted:
    repeats = 3 if asked.size == "quick" else 20
    values: Values = {}
    names = []
    for row in table.rows:
        method = row.about["method"]
        anchor = bool(row.about.get("anchor", method == "asmil"))  # ASMIL always trains with an anchor
        name = f"{method}{'+anchor' if row.about.get('anchor') else ''}"
        names.append(name)
        training, inference = step_milliseconds(method, anchor, repeats)
        values[name, "train_time"] = training * 395 / 1e3
        values[name, "infer_time"] = inference * 395 / 1e3
        values[name, "infer_flops"] = multiply_adds(cost_model(method), cost_bag())
    notes = (
        "Multiply-adds: torch's count, halved, of one pass on 2,000 tiles of 384 features. Seconds: 395 steps or "
        f"passes on such a bag on {'a GPU' if torch.cuda.is_available() else 'the CPU of this machine'}, median of "
        f"{repeats}; the paper's are of an RTX 5000. Memory: docs/anchor_cost.md and docs/performance.md.",
    )
    return Counted(table, values, tuple(names), False, asked.size, "another machine and code", notes)


SETS: Mapping[str, tuple[int, int, int, int]] = {
    "musk1": (92, 47, 476, 166),
    "musk2": (102, 39, 6598, 166),
    "tiger": (200, 100, 1220, 230),
    "fox": (200, 100, 1320, 230),
    "elephant": (200, 100, 1391, 230),
}
"""Bags, positive bags, instances and features of the classic sets."""


def stand_in_set(name: str, share: float = 1.0) -> BagSet:
    """A synthetic set of the same size: a positive bag has one instance that is shifted along one direction."""
    bags, positive, instances, width = SETS[name]
    bags, positive = max(12, round(share * bags)), max(6, round(share * positive))
    instances = max(bags, round(share * instances))
    draw = np.random.default_rng(sum(map(ord, name)))
    bag = np.sort(np.concatenate([np.arange(bags), draw.integers(0, bags, instances - bags)]))
    features = draw.standard_normal((len(bag), width)).astype(np.float32)
    direction = draw.standard_normal(width)
    direction *= 3.0 / np.linalg.norm(direction)
    first = np.searchsorted(bag, np.arange(positive))
    features[first] += direction.astype(np.float32)
    return make_bag_set(Path(f"{name}.npz"), features, bag, (bag < positive).astype(np.int64))


def _classic_sets(table: PrintedTable, asked: CountRequest) -> Counted:
    sets = _sets(asked.cohort, asked.size)
    values: Values = {}
    for row in table.rows:
        name = row.about["dataset"]
        if name in sets:
            bag_set = sets[name]
            positive = int(bag_set.label.sum())
            counts = (bag_set.n_bags, positive, bag_set.n_bags - positive, len(bag_set.bag), bag_set.n_features)
            values |= {(name, column.key): float(n) for column, n in zip(table.columns, counts, strict=True)}
    names = tuple(row.about["dataset"] for row in table.rows)
    why = "synthetic stand-in" if asked.cohort is None else ""
    return Counted(table, values, names, asked.cohort is None, asked.size, why)


def _classic(table: PrintedTable, asked: CountRequest) -> Counted:
    sets, out = _sets(asked.cohort, asked.size), asked.out
    epochs = {"quick": 2, "small": 20, "full": 40}[asked.size]
    seeds, folds = {"quick": (1, 2), "small": (2, 5), "full": (5, 10)}[asked.size]
    rows = contenders([row.about["method"] for row in table.rows], ["paper"], {"training": {"epochs": epochs}})
    jobs = [
        Job(bag_set.name, row, seed, folds, out / JOBS / f"{bag_set.name}-{row.file_name}-{seed}-{epochs}-{folds}.json")
        for bag_set in sets.values()
        for row in rows
        for seed in range(seeds)
    ]
    accuracies: dict[tuple[str, str], list[float]] = {}
    for end in run_jobs(jobs, sets, InlineEngine(), DoneBefore(asked.again)):
        if end.result is None:
            raise AsmilError(f"{end.name}: {end.error}")
        key = (end.job.contender.method, end.job.set_name)
        accuracies.setdefault(key, []).append(float(np.mean(end.result["rules"]["last"]["folds"])))
    values: Values = {key: float(np.mean(accuracies[key])) for key in sorted(accuracies)}
    why = "the paper's folds and epoch are not stated; see docs/classic.md"
    why = "synthetic stand-in" if asked.cohort is None else why
    names = tuple(row.about["method"] for row in table.rows)
    return Counted(table, values, names, asked.cohort is None, asked.size, why)


def _sets(folder: Path | None, size: Size) -> dict[str, BagSet]:
    if folder is None:
        share = {"quick": 0.1, "small": 0.5, "full": 1.0}[size]
        return {name: stand_in_set(name, share) for name in SETS}
    bag_sets = [read_set(path) for path in find_sets([folder])]
    return {bag_set.name: bag_set for bag_set in bag_sets if bag_set.name in SETS}


Counter = Callable[[PrintedTable, CountRequest], Counted]
COUNTERS: dict[str, Counter] = {
    "affine": _affine,
    "cost": _cost,
    "cost-anchor": _cost,
    "classic-sets": _classic_sets,
    "classic": _classic,
}
