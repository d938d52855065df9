"""From a sweep to its jobs: one run folder for each cohort, variant, point of the search and group of seeds."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from asmil.errors import AsmilError
from asmil.experiments.settings import CohortConfig, SearchConfig, Span, SweepConfig
from asmil.runs.config import RunConfig
from asmil.settings.config import assign
from asmil.tasks.base import TaskKind
from asmil.training.initial_weights import resolve_with_init

Point = dict[str, Any]
"""Values of the varied settings, by dotted name."""
COHORT_FOLDER, RUN_FOLDER = "cohorts", "runs"
_LONGEST_SLUG = 60


@dataclass(frozen=True)
class Trial:
    """A cohort, a variant and a point of the search, to be trained with several seeds."""

    cohort: str
    variant: str
    method: str
    preset: str
    settings: Mapping[str, Any]
    point: Point = field(default_factory=dict)

    def config(self, given: Mapping[str, Any]) -> RunConfig:
        """The settings of a run of this trial; `given`: the sections that do not depend on the trial."""
        return resolve_with_init(self.method, self.preset, assign(given, {**self.settings, **self.point}))

    def columns(self) -> dict[str, Any]:
        """The columns of a table of results that identify this trial."""
        about = {"cohort": self.cohort, "variant": self.variant, "method": self.method, "preset": self.preset}
        return about | {f"set.{name}": value for name, value in self.point.items()}

    @property
    def slug(self) -> str:
        """A name for folders: readable, and different for different settings."""
        words = "-".join([self.cohort, self.variant, *(f"{name}={value}" for name, value in self.point.items())])
        decided = [self.cohort, self.method, self.preset, dict(self.settings), self.point]
        digest = hashlib.sha256(json.dumps(decided, sort_keys=True, default=str).encode()).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9._=-]+', '_', words)[:_LONGEST_SLUG]}-{digest}"


@dataclass(frozen=True)
class TrainingJob:
    """One run folder to be trained and measured; it is sent to a worker.

    deadline: a time of `time.time()`; after it, training stops at the end of an epoch, to be resumed later
    again: train from the start if its folder contains another run
    """

    trial: Trial
    manifest: Path
    features: Path | None
    task: TaskKind
    folds: int
    seeds: tuple[int, ...]
    folder: Path
    measures: tuple[str, ...]
    deadline: float | None = None
    again: bool = False
    splits: Path | None = None

    @property
    def name(self) -> str:
        """A description of the job."""
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"seeds {self.seeds[0]} to {self.seeds[-1]}"
        values = ", ".join(f"{name}={format_value(value)}" for name, value in self.trial.point.items())
        return f"{self.trial.cohort}, {self.trial.variant}{f' ({values})' if values else ''}, {seeds}"

    @property
    def out(self) -> Path:
        """The folder of the sweep."""
        return self.folder.parents[2]

    def config(self, device: str | None = None) -> RunConfig:
        """The settings of the run; a worker on another device names it."""
        training = {"seed": self.seeds[0], **({} if device is None else {"device": device})}
        given = {"folds": self.folds, "seeds": len(self.seeds), "task": {"kind": self.task}, "training": training}
        if self.splits is not None:
            given["data"] = {"splits": str(self.splits)}
        return self.trial.config(given)


def format_value(value: Any) -> str:
    """A value of a setting, with four digits if it is a drawn number."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def grid_points(search: SearchConfig) -> list[Point]:
    """Every combination of the values, the last name varying fastest; one empty point without a space."""
    lists = [values for values in search.space.values() if isinstance(values, list)]
    return [dict(zip(search.space, values, strict=True)) for values in itertools.product(*lists)]


def random_points(search: SearchConfig) -> list[Point]:
    """Drawn points; point i is the same however many are drawn."""
    points = []
    for index in range(search.trials):
        draw = np.random.default_rng([search.seed, index])
        points.append({name: _drawn(values, draw) for name, values in search.space.items()})
    return points


def _drawn(values: Sequence[Any] | Span, draw: np.random.Generator) -> Any:
    if not isinstance(values, Span):
        return values[int(draw.integers(len(values)))]
    if values.low.is_integer() and values.high.is_integer() and not values.log:
        return int(draw.integers(int(values.low), int(values.high) + 1))
    if values.log:
        return float(np.exp(draw.uniform(np.log(values.low), np.log(values.high))))
    return float(draw.uniform(values.low, values.high))


def trials_of(config: SweepConfig, points: Iterable[Point]) -> list[Trial]:
    """Every cohort with every variant and point; invalid settings are refused before any training."""
    trials = []
    for point, (cohort_name, cohort), (variant_name, variant) in itertools.product(
        points, config.cohorts.items(), config.variants.items()
    ):
        settings = {**config.settings, **cohort.settings, **variant.settings}
        trials.append(Trial(cohort_name, variant_name, variant.method, variant.preset, settings, dict(point)))
    return trials


def manifest_of(name: str, cohort: CohortConfig, out: Path) -> Path:
    """Where the manifest of a cohort is, or will be."""
    if cohort.manifest is not None:
        return cohort.manifest.absolute()
    return synthetic_folder(name, cohort, out) / "cohort.csv"


def synthetic_folder(name: str, cohort: CohortConfig, out: Path) -> Path:
    """Where a synthetic cohort is written."""
    return (cohort.folder or out / COHORT_FOLDER / name).absolute()


def jobs_of(
    config: SweepConfig, trials: Sequence[Trial], out: Path, groups_seeds: Callable[[Trial], bool]
) -> list[TrainingJob]:
    """The jobs of the trials: first those that train all seeds together, then one seed of all before the next.

    groups_seeds: whether all seeds of a trial share a run folder
    """
    seeds = tuple(range(config.first_seed, config.first_seed + config.seeds))
    grouped = {trial.slug for trial in trials if groups_seeds(trial)}
    planned = [(seeds, trial) for trial in trials if trial.slug in grouped]
    planned += [((seed,), trial) for seed in seeds for trial in trials if trial.slug not in grouped]
    jobs = []
    for group, trial in planned:
        cohort = config.cohorts[trial.cohort]
        folder = out.absolute() / RUN_FOLDER / trial.slug / f"seed-{group[0]}-of-{len(group)}"
        manifest = manifest_of(trial.cohort, cohort, out)
        features = None if cohort.features is None else cohort.features.absolute()
        measures = tuple(config.measures)
        splits = None if cohort.splits is None else cohort.splits.absolute()
        job = TrainingJob(trial, manifest, features, cohort.task, config.folds, group, folder, measures, splits=splits)
        try:
            job.config()
        except AsmilError as error:
            raise AsmilError(f"{job.name}: {error}") from None
        jobs.append(job)
    return jobs
