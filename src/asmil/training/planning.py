"""Plan a training for a cohort: settings with reasons, warnings, and the expected cost on this machine.

The rules are simple and written down with each choice; change the choices in the file that `asmil plan` writes.
"""

from __future__ import annotations

import shlex
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from asmil.cohort.bag import Bag
from asmil.cohort.manifest import Cohort, Slide
from asmil.cohort.source import FeatureInfo
from asmil.cohort.splits import make_splits
from asmil.cohort.table import label_names
from asmil.engine.machine import choose_device
from asmil.machine.memory import available_bytes
from asmil.models.base import MILModel
from asmil.reporting.formats import format_duration
from asmil.runs.checkpoint import Executor
from asmil.runs.config import RunConfig, resolve
from asmil.runs.model import build_model
from asmil.runs.settings_file import setting_line
from asmil.settings.config import assign
from asmil.tables.time_units import TimeUnit
from asmil.tasks.base import Task, TaskKind
from asmil.tasks.classification import Classification
from asmil.tasks.multilabel import MultiLabel
from asmil.tasks.regression import Regression
from asmil.tasks.survival import Survival
from asmil.training.executors import DESCRIPTIONS, likely_executor

FEWEST_IN_GROUP = 30
"""Patients in the smallest group: with 30, the 95 % interval (Wilson) of a sensitivity of 0.8 is 0.63 to 0.90."""
MANY_PATIENTS = 1000
IMBALANCE = 3.0
FOLDS = 5
SEEDS = 3
LONG_BAG = 50_000
SAMPLED_TILES = 20_000
TRIAL_TILES = 4_000
SIDE_BY_SIDE_GAIN = 2.0
"""How many times as fast trainings of `abmil` are side by side on a CPU, at least (docs/performance.md)."""
ANCHOR_COST = 1.4
"""Approximate cost of a step with the anchor relative to one without (docs/anchor_cost.md)."""


@dataclass(frozen=True)
class Choice:
    """One setting, by its dotted name, and why it has this value."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class TrainingCost:
    """The expected cost of the training on this machine, from a few timed steps of the plain executor.

    seconds: of all trainings; on a GPU, an upper limit if another executor trains them
    """

    seconds: float
    memory_bytes: int
    device: str
    steps: int
    executor: Executor


@dataclass(frozen=True)
class TrainingPlan:
    """Settings, warnings and costs of a training.

    facts: properties of the cohort, one line each
    config: all settings that result from the choices
    """

    facts: tuple[str, ...]
    choices: tuple[Choice, ...]
    warnings: tuple[str, ...]
    config: RunConfig
    estimate: TrainingCost


def plan_training(
    cohort: Cohort, infos: Sequence[FeatureInfo], kind: TaskKind, time_unit: TimeUnit | None = None
) -> TrainingPlan:
    """Plan the training of a cohort; infos: the properties of its feature files.

    time_unit: of survival times; None: as the name of their column states
    """
    groups = _patients_by_group(cohort, kind)
    patients = len({slide.patient for slide in cohort.slides})
    vectors = all(info.may_be_slide_vector for info in infos)
    choices = (*_choices(cohort, infos, kind, groups, patients, vectors), *_time_choice(cohort, kind, time_unit))
    chosen = {choice.key: choice.value for choice in choices}
    settings = {name: value for name, value in chosen.items() if name not in ("method", "preset")}
    config = resolve(chosen["method"], chosen["preset"], assign({}, settings))
    tiles = [info.n_tiles for info in infos]
    facts = (
        f"{len(cohort)} slides of {patients} patients"
        + (
            f" ({', '.join(f'{name}: {len(patients)} patients' for name, patients in groups.items())})"
            if groups
            else ""
        ),
        f"{min(tiles):,} to {max(tiles):,} tiles per slide, median {median(tiles):,.0f}; {infos[0].width} features"
        + (f", encoder {infos[0].encoder}" if infos[0].encoder else ""),
        *_site_facts(cohort.slides),
    )
    warnings = tuple(_warnings(cohort, kind, groups, tiles))
    return TrainingPlan(facts, choices, warnings, config, _estimate(config, cohort, infos, kind, len(groups)))


def _choices(
    cohort: Cohort,
    infos: Sequence[FeatureInfo],
    kind: TaskKind,
    groups: dict[str, set[str]],
    patients: int,
    vectors: bool,
) -> Iterator[Choice]:
    if vectors:
        yield Choice("method", "linear", "the files contain one vector per slide, so there are no tiles to weight")
    else:
        yield Choice("method", "abmil", "attention over tiles; also train linear and mean_pooling as baselines")
    yield Choice("preset", "paper", "the common settings")
    yield Choice("task.kind", kind, "what --task says, or its default")
    yield from _split_choices(cohort, groups, patients)
    sizes = [len(patients) for patients in groups.values()]
    if kind == "classification" and sizes and max(sizes) > IMBALANCE * min(sizes):
        reason = f"the largest class has {max(sizes) / max(min(sizes), 1):.1f} times the patients of the smallest"
        yield Choice("training.class_weights", "balanced", reason)
    longest = max(info.n_tiles for info in infos)
    if longest > LONG_BAG and not vectors:
        reason = f"the longest slide has {longest:,} tiles; tiles are drawn anew every epoch; prediction uses all tiles"
        yield Choice("data.max_tiles", SAMPLED_TILES, reason)


def _time_choice(cohort: Cohort, kind: TaskKind, given: TimeUnit | None) -> Iterator[Choice]:
    if given is not None:
        yield Choice("task.time_unit", given, "what --time-unit says")
    elif kind == "survival" and cohort.time_unit is not None:
        yield Choice("task.time_unit", cohort.time_unit, "the name of the column of times")
    elif kind == "survival":
        yield Choice("task.time_unit", None, "unknown, so reports say 'time units'; set days, weeks, months or years")


def _split_choices(cohort: Cohort, groups: dict[str, set[str]], patients: int) -> Iterator[Choice]:
    smallest = min((len(patients) for patients in groups.values()), default=patients)
    if any(slide.split for slide in cohort.slides):
        yield Choice("folds", 1, "the manifest defines a split")
    elif any(slide.fold is not None for slide in cohort.slides):
        yield Choice("folds", 1, "the folds of the manifest are used")
    elif patients > MANY_PATIENTS:
        yield Choice(
            "folds",
            1,
            f"a quarter of {patients:,} patients is a large enough test set; folds would cost {FOLDS} times as much",
        )
    else:
        folds = max(2, min(FOLDS, smallest))
        yield Choice("folds", folds, f"every patient is tested once; {smallest} patients in the smallest group")
    seeds = 1 if patients > MANY_PATIENTS else SEEDS
    yield Choice(
        "seeds",
        seeds,
        "results of small cohorts vary between seeds" if seeds > 1 else "results vary little between seeds",
    )


def _patients_by_group(cohort: Cohort, kind: TaskKind) -> dict[str, set[str]]:
    """The patients of each class, label, or follow-up outcome; regression has no groups."""
    groups: dict[str, set[str]] = defaultdict(set)
    for slide in cohort.slides:
        for name in _groups_of(slide, kind):
            groups[name].add(slide.patient)
    return dict(sorted(groups.items()))


def _groups_of(slide: Slide, kind: TaskKind) -> list[str]:
    if kind == "survival":
        return ["with an event" if slide.event else "censored"]
    if kind == "multilabel":
        return sorted(label_names(slide.label or ""))
    return [str(slide.label)] if kind == "classification" else []


def _site_facts(slides: Sequence[Slide]) -> list[str]:
    sites = {slide.site for slide in slides if slide.site}
    return [f"{len(sites)} sites"] if sites else []


def _warnings(cohort: Cohort, kind: TaskKind, groups: dict[str, set[str]], tiles: Sequence[int]) -> Iterator[str]:
    if groups:
        name, patients = min(groups.items(), key=lambda item: len(item[1]))
        if len(patients) < FEWEST_IN_GROUP:
            yield f"only {len(patients)} patients in the smallest group ('{name}'): intervals will be wide"
    if not any(slide.patient != slide.slide for slide in cohort.slides):
        yield "there is no column 'patient': if some patients have several slides, the results are optimistic"
    yield from _confounded_sites(cohort.slides, kind)
    if max(tiles) > 50 * max(1, median(tiles)):
        yield f"one slide has {max(tiles):,} tiles, but the median is {median(tiles):,.0f}: check its tissue mask"


def _confounded_sites(slides: Sequence[Slide], kind: TaskKind) -> Iterator[str]:
    sites: dict[str, list[Slide]] = defaultdict(list)
    for slide in slides:
        if slide.site:
            sites[slide.site].append(slide)
    if len(sites) < 2 or kind not in ("classification", "survival"):
        return
    everywhere = {name for slide in slides for name in _groups_of(slide, kind)}
    partial = [
        site
        for site, of_site in sites.items()
        if len(of_site) >= 5 and {name for slide in of_site for name in _groups_of(slide, kind)} != everywhere
    ]
    if partial:
        shown = ", ".join(partial[:5])
        groups = "all classes" if kind == "classification" else "both events and censored patients"
        yield (
            f"sites without {groups} ({shown}): the model can learn the site; compare with "
            "`asmil train --leave-one-site-out`"
        )
    else:
        yield f"{len(sites)} sites: `asmil train --leave-one-site-out` shows whether results generalize to new sites"


def _estimate(
    config: RunConfig, cohort: Cohort, infos: Sequence[FeatureInfo], kind: TaskKind, n_groups: int
) -> TrainingCost:
    device = choose_device(config.training.device)
    n_outputs = max(1, n_groups) if kind in ("classification", "multilabel") else 4 if kind == "survival" else 1
    width = infos[0].width
    model = build_model(config, width, n_outputs, seed=0).to(device)
    cap = config.data.max_tiles or max(info.n_tiles for info in infos)
    mean_tiles = sum(min(info.n_tiles, cap) for info in infos) / len(infos)
    tried = max(1, min(TRIAL_TILES, round(mean_tiles)))
    seconds = _seconds_per_step(model, tried, width, device) * max(1.0, mean_tiles / tried)
    if config.anchor.normalizer != "none":
        seconds *= ANCHOR_COST
    splits = make_splits(cohort, config.folds, kind=kind)
    train = sum(len(splits.slides(fold, "train")) for fold in range(splits.n_folds))
    steps = train * config.seeds * config.training.epochs
    # validation after every epoch is a forward pass over fewer slides
    parameters = sum(parameter.numel() for parameter in model.parameters())
    longest = min(max(info.n_tiles for info in infos), cap)
    inner = max((parameter.shape[0] for parameter in model.parameters() if parameter.ndim == 2), default=width)
    memory = 16 * parameters + 4 * longest * (width + 4 * inner)
    executor = likely_executor(config, model, _task(kind, n_outputs), device, mean_tiles, splits.n_folds * config.seeds)
    if device.type == "cpu" and executor == "side_by_side":
        seconds /= SIDE_BY_SIDE_GAIN
    return TrainingCost(1.2 * seconds * steps, memory, str(device), steps, executor)


def _task(kind: TaskKind, n_outputs: int) -> Task:
    """A task of this kind, not fitted; it decides which executors can train it."""
    if kind == "survival":
        return Survival(range(n_outputs + 1))
    if kind == "regression":
        return Regression()
    names = tuple(map(str, range(n_outputs)))
    return Classification(names) if kind == "classification" else MultiLabel(names)


def _seconds_per_step(model: MILModel, tiles: int, width: int, device: torch.device, repeats: int = 5) -> float:
    """Time of a step with a synthetic bag: the fastest of a few."""
    grid = torch.stack([torch.arange(tiles) % 64, torch.arange(tiles) // 64], dim=1) * 256
    bag = model.prepare(Bag(torch.randn(tiles, width, generator=torch.Generator().manual_seed(0)), grid, id="trial"))
    bag = bag.to(device, torch.float32)
    adam = torch.optim.Adam(model.parameters(), lr=1e-6)
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        adam.zero_grad()
        model(bag).logits.square().sum().backward()
        adam.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def memory_warning(estimate: TrainingCost) -> str | None:
    """A sentence if the largest bag may not fit into memory."""
    free = available_bytes()
    if estimate.device != "cpu" or estimate.memory_bytes < 0.7 * free:
        return None
    return (
        f"the longest slide needs about {estimate.memory_bytes / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free: "
        "set data.max_tiles"
    )


def plan_text(
    plan: TrainingPlan, name: str, cohort: str, out: str, features: str | None = None, columns: str | None = None
) -> str:
    """The text of `run.yaml`.

    name: the name of the file
    cohort, out, features: paths relative to the file
    columns: which columns of the manifest to read, as for `--columns`
    """
    lines = [
        f"# Written by `asmil plan`. Edit it as needed, then run: asmil train {shlex.quote(name)}",
        *(f"# {fact}" for fact in plan.facts),
        f"# {cost_line(plan)}",
        *(f"# WARNING: {warning}" for warning in plan.warnings),
        "",
        setting_line("cohort", cohort),
        setting_line("out", out, "the run folder; run the same command again to resume"),
    ]
    if features is not None:
        lines.append(setting_line("features", features))
    if columns:
        lines.append(setting_line("columns", columns))
    sections: dict[str, list[Choice]] = defaultdict(list)
    for choice in plan.choices:
        section, _, key = choice.key.rpartition(".")
        sections[section].append(Choice(key, choice.value, choice.reason))
    for section, choices in sorted(sections.items(), key=lambda item: item[0] != ""):
        if section:
            lines.append(f"{section}:")
        lines += [setting_line(choice.key, choice.value, choice.reason, "  " if section else "") for choice in choices]
    return "\n".join(lines) + "\n"


def cost_line(plan: TrainingPlan) -> str:
    """The cost of the training, in one sentence."""
    estimate = plan.estimate
    faster = estimate.device != "cpu" and estimate.executor != "plain"
    return (
        f"{'at most' if faster else 'about'} {format_duration(estimate.seconds)} on {estimate.device} "
        f"({estimate.steps:,} steps, timed here on a synthetic slide; {DESCRIPTIONS[estimate.executor]}) and "
        f"{max(estimate.memory_bytes / 1e9, 0.1):.1f} GB for the longest slide"
    )
