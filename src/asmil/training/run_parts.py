"""Split the trainings of a run into parts that several processes, GPUs or machines can train in parallel.

A training is a pure function of its settings, seed, bags and number of threads, so a run has the same results
whichever process trains its parts. Every training has its own checkpoints: the next call resumes whatever was
interrupted or failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from asmil.cohort.covariates import parse_covariates
from asmil.cohort.loader import BagLoader
from asmil.cohort.manifest import Cohort
from asmil.cohort.outcomes import Outcomes, outcomes_of
from asmil.cohort.source import bag_bytes
from asmil.cohort.splits import Splits
from asmil.cohort.units import Unit, units_of
from asmil.engine import Engine, LocalEngine, Place, RayEngine, Worker
from asmil.engine.jobs import Report, attempt
from asmil.engine.machine import Machine, choose_device
from asmil.errors import AsmilError
from asmil.machine.cores import physical_cores
from asmil.machine.memory import how_many_fit
from asmil.models.base import MILModel
from asmil.models.own_method import method_name
from asmil.runs.checkpoint import drop_training_state
from asmil.runs.config import RunConfig, with_settings
from asmil.runs.description import RunDescription
from asmil.runs.layout import RunLayout
from asmil.runs.model import build_model
from asmil.runs.notes import read_epochs_done
from asmil.runs.predictions import write_predictions
from asmil.runs.task import build_task
from asmil.training.executors import JobRunner
from asmil.training.fold_seed_job import FoldSeedJob, TrainingData
from asmil.training.initial_weights import load_initial
from asmil.training.nested import InnerSearch, candidates, own_data
from asmil.training.setup import build_stabilizers
from asmil.training.shared_steps import OneProcess


class RunObserver:
    """Observes a run; this default ignores all events."""

    def began(self, description: RunDescription, splits: Splits) -> None:
        """The cohort is read and split."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Progress of the work before the first training, in slides."""

    def note(self, text: str) -> None:
        """A note on something that the user may not expect."""

    def already_trained(self, fold: int, seed: int) -> None:
        """The training of a fold and seed was completed by an earlier call."""

    def training(self, fold: int, seed: int, epochs: int, epochs_done: int) -> None:
        """The training of a fold and seed starts, or resumes after `epochs_done` epochs."""

    def epoch(self, fold: int, seed: int, record: Mapping[str, Any]) -> None:
        """An epoch has ended; record: its metrics, with `effective_share` of the tiles if attention was recorded."""

    def trained(self, fold: int, seed: int) -> None:
        """A training has ended, and its predictions are written."""


CONTEXT_BYTES = 2 << 30
"""Memory that a process needs on a GPU in addition to the features: libraries, weights and steps."""
MOST_ON_ONE_GPU = 4


@dataclass(frozen=True)
class FoldSeeds:
    """A fold and some of its seeds, which one worker trains."""

    fold: int
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        return f"fold {self.fold}, seed {', '.join(map(str, self.seeds))}"


@dataclass(frozen=True)
class Share:
    """What one worker trains at a time, side by side where the executor can."""

    parts: tuple[FoldSeeds, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.parts))


class Trainings:
    """The trainings of a run that one process runs."""

    def __init__(
        self, part: RunPart, device: torch.device, observer: RunObserver, processes: OneProcess, sharers: int
    ) -> None:
        config, cohort = part.config, part.cohort
        self.config, self.cohort, self.observer = config, cohort, observer
        self.folder = RunLayout(part.folder)
        self.splits = Splits.load(self.folder.splits)
        units = units_of(cohort.slides, config.unit)
        outcomes = outcomes_of(cohort, units, config.task.kind)
        model = trial_model(config, units, outcomes, self.splits, part.in_features)
        packing = partial(observer.preparing, "packing features")
        loader = BagLoader(
            units,
            config.data.cache,
            part.folder / "cache",
            model.prepare,
            packing=packing,
            processes=max(sharers, processes.on_this_machine),
        )
        covariates = parse_covariates(config.data.covariates)
        self.data = TrainingData(
            units, outcomes, loader, part.in_features, device, load_initial(part.folder), processes, covariates
        )
        self.runner = JobRunner(observer.note)

    def train(self, *parts: FoldSeeds) -> None:
        """Train some seeds of some folds and write their predictions; finished trainings are skipped."""
        observer = self.observer
        chosen = self._chosen([part.fold for part in parts])
        jobs = [job for part in parts for job in self._jobs(part, chosen[part.fold])]
        for job in jobs:
            if job.is_done:
                drop_training_state(job.folder)
                observer.already_trained(job.fold, job.seed)
        for job, predictions in self.runner.run(
            [job for job in jobs if not job.is_done],
            lambda job, epochs: observer.training(job.fold, job.seed, epochs, read_epochs_done(job.folder)),
            lambda job: partial(observer.epoch, job.fold, job.seed),
        ):
            write_predictions(job.predictions, predictions)
            drop_training_state(job.folder)
            observer.trained(job.fold, job.seed)

    def _jobs(self, part: FoldSeeds, chosen: RunConfig) -> list[FoldSeedJob]:
        """The trainings of a part, with the settings of its fold."""
        fold = part.fold
        own = own_data(self.data, chosen, self.data.indices(self.splits, fold, "train"))
        return [
            FoldSeedJob(own, chosen, self.splits, fold, seed, self.folder.training(fold, seed)) for seed in part.seeds
        ]

    def follow(self, part: FoldSeeds) -> None:
        """Compute this process's share of the steps of a training; nothing is written."""
        data = self.data.fitted_on(self.config, self.data.indices(self.splits, part.fold, "train"))
        for seed in part.seeds:
            folder = self.folder.training(part.fold, seed)
            job = FoldSeedJob(data, self.config, self.splits, part.fold, seed, folder)
            job.trainer(lambda record: None).fit(job.train, job.val)

    def _chosen(self, folds: Sequence[int]) -> dict[int, RunConfig]:
        """The settings of some folds: those of the run, or those chosen by nested cross-validation."""
        if not self.config.nested.folds:
            return dict.fromkeys(folds, self.config)
        searches = {
            fold: InnerSearch(self.data, self.cohort, self.config, self.splits, fold, self.folder.fold(fold))
            for fold in folds
        }
        self._search(list(searches.values()))
        chosen = {}
        for fold, search in searches.items():
            settings = search.choose()
            listed = ", ".join(f"{name} = {value}" for name, value in settings.items())
            self.observer.note(f"{self.splits.fold_names[fold]} chose {listed}")
            chosen[fold] = with_settings(self.config, settings)
        return chosen

    def _search(self, searches: Sequence[InnerSearch]) -> None:
        """Run the inner trainings of some folds."""
        jobs = [job for search in searches for job in search.jobs()]
        waiting = [job for job in jobs if not job.is_done]
        done = len(jobs) - len(waiting)
        for _ in self.runner.run(waiting, lambda job, epochs: None, lambda job: lambda record: None):
            done += 1
            self.observer.preparing("choosing settings", done, len(jobs))


@dataclass(frozen=True)
class RunPart:
    """Everything a process needs to train a part of a run; the run folder must exist."""

    cohort: Cohort
    config: RunConfig
    folder: Path
    in_features: int

    def open(
        self, device: torch.device, observer: RunObserver, processes: OneProcess | None = None, sharers: int = 1
    ) -> Trainings:
        """Prepare for training on a device; sharers: the workers that read the same bags and share its memory."""
        method_name(self.config.method)  # registers a user-defined method in a new process
        return Trainings(self, device, observer, processes or OneProcess(), sharers)


def follow(processes: OneProcess) -> None:
    """Compute a share of the steps of the run that the leader of these processes trains."""
    nothing: RunPart | None = None
    part = processes.from_leader(nothing)
    assert part is not None, "the leader sends its run"
    device = processes.device(part.config.training.device)
    part.open(device, RunObserver(), processes).follow(FoldSeeds(0, part.config.all_seeds))


@dataclass(frozen=True)
class _MakeTrainer:
    """Called in every worker process.

    threads: of each worker; the number of threads affects rounding
    """

    part: RunPart
    threads: int

    def __call__(self, place: Place) -> Worker:
        torch.set_num_threads(self.threads)
        asked = self.part.config.training.device
        device = choose_device(place.device if asked in ("auto", "cuda") else asked)
        trainings = self.part.open(device, _Reporter(place.report), sharers=place.sharers)
        return partial(train_share, trainings)


def train_share(trainings: Trainings, share: Share) -> list[str]:
    """Train a share; which parts failed, with the reasons. If one fails, the others are trained one by one."""
    _, error = attempt(lambda whole: trainings.train(*whole.parts), share)
    if error is None:
        return []
    if len(share.parts) == 1:
        return [f"{share}: {error}"]
    ends = [(part, attempt(trainings.train, part)[1]) for part in share.parts]
    return [f"{part}: {error}" for part, error in ends if error is not None]


class _Reporter(RunObserver):
    """Sends the events of a worker to the observer of the run."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def note(self, text: str) -> None:
        self._report(("note", text))

    def already_trained(self, fold: int, seed: int) -> None:
        self._report(("already_trained", fold, seed))

    def training(self, fold: int, seed: int, epochs: int, epochs_done: int) -> None:
        self._report(("training", fold, seed, epochs, epochs_done))

    def epoch(self, fold: int, seed: int, record: Mapping[str, Any]) -> None:
        self._report(("epoch", fold, seed, dict(record)))

    def trained(self, fold: int, seed: int) -> None:
        self._report(("trained", fold, seed))


@dataclass(frozen=True)
class TrainingEngine(Machine):
    """Where the folds and seeds of a run are trained at the same time; the device is that of the settings.

    workers: None: on GPUs as many as their memory takes, else one for each core; never more than there are trainings
    """

    def __post_init__(self) -> None:
        self.uses_ray()  # refuses what does not exist before anything is read

    def build(self, device: str, feature_bytes: int, trainings: int, observer: RunObserver) -> Engine:
        """The engine for so many trainings, whose features need this many bytes on a GPU."""

        def forward(event: tuple[Any, ...]) -> None:
            getattr(observer, event[0])(*event[1:])

        if self.uses_ray():
            return RayEngine(self.address, self.workers, self.cpus, self.gpus, concurrency=1, note=observer.note)
        devices = gpu_places(feature_bytes) if choose_device(device).type == "cuda" else ["cpu"]
        workers = self.workers or (len(devices) if devices != ["cpu"] else physical_cores())
        workers = min(workers, trainings)
        return LocalEngine(workers, concurrency=1, devices=devices, note=observer.note, report=forward)


def gpu_places(feature_bytes: int) -> list[str]:
    """The GPUs of this machine, each repeated by the number of trainings that fit into its free memory."""
    gpus = range(torch.cuda.device_count())
    fit = [trainings_that_fit(torch.cuda.mem_get_info(gpu)[0], feature_bytes) for gpu in gpus]
    return [f"cuda:{gpu}" for turn in range(max(fit)) for gpu in gpus if turn < fit[gpu]]


def trainings_that_fit(free: int, feature_bytes: int) -> int:
    """How many processes fit on a GPU with this much free memory; at least 1."""
    return how_many_fit(free, feature_bytes + CONTEXT_BYTES, MOST_ON_ONE_GPU)


def split_run(n_folds: int, seeds: Sequence[int], workers: int, *, whole_folds: bool) -> list[Share]:
    """A run as one share for each worker, of nearly equal size; seeds of a fold stay together where they can.

    whole_folds: keep all seeds of a fold together, since the fold chooses its settings once
    """
    smallest = [
        FoldSeeds(fold, part)
        for fold in range(n_folds)
        for part in ([tuple(seeds)] if whole_folds else [(seed,) for seed in seeds])
    ]
    count = min(workers, len(smallest))
    bounds = [len(smallest) * i // count for i in range(count + 1)]
    return [Share(_joined(smallest[first:last])) for first, last in pairwise(bounds)]


def _joined(parts: Sequence[FoldSeeds]) -> tuple[FoldSeeds, ...]:
    """The same trainings, with one part for each fold."""
    by_fold: dict[int, tuple[int, ...]] = {}
    for part in parts:
        by_fold[part.fold] = by_fold.get(part.fold, ()) + part.seeds
    return tuple(FoldSeeds(fold, seeds) for fold, seeds in by_fold.items())


def train_on_engine(part: RunPart, n_folds: int, asked: TrainingEngine, observer: RunObserver) -> None:
    """Train all folds and seeds of a run on an engine; a failure does not stop the others."""
    config = part.config
    nested = bool(config.nested.folds)
    trainings = n_folds * (1 if nested else len(config.all_seeds))
    engine = asked.build(config.training.device, _feature_bytes(part), trainings, observer)
    workers = getattr(engine, "workers", None) or trainings
    shares = split_run(n_folds, config.all_seeds, workers, whole_folds=nested)
    failed: list[str] = []
    for outcome in engine.run(_MakeTrainer(part, _threads_each(engine)), shares):
        failed += [f"{outcome.job}: {outcome.error}"] if outcome.error is not None else outcome.result or []
    if failed:
        raise AsmilError(
            f"{len(failed)} of {sum(len(share.parts) for share in shares)} parts of the run failed ({failed[0]}); the "
            "others are complete; run the same command again to train the rest"
        )


def _threads_each(engine: Engine) -> int:
    """The threads of each worker: those of this process, or fewer if the workers would share cores."""
    threads = torch.get_num_threads()
    if not isinstance(engine, LocalEngine):
        return threads
    return min(threads, max(1, physical_cores() // engine.workers))


def _feature_bytes(part: RunPart) -> int:
    """The size of the features of the whole cohort, from their file sizes."""
    return bag_bytes(slide.source for slide in part.cohort.slides)


def trial_model(
    config: RunConfig, units: Sequence[Unit], outcomes: Outcomes, splits: Splits, in_features: int
) -> MILModel:
    """The model of the last fold; raises for settings that do not work, before the run folder is created."""
    for settings in candidates(config):
        chosen = with_settings(config, settings)
        for fold in range(splits.n_folds):
            trained = set(splits.slides(fold, "train"))
            train = [i for i, unit in enumerate(units) if unit.slides[0].slide in trained]
            task = build_task(chosen, outcomes, train)
        model = build_model(chosen, in_features, task.n_outputs, config.training.seed)
        build_stabilizers(chosen, model, config.training.seed)
    return model
