"""How the steps of a training are executed.

| executor | steps | used by |
| --- | --- | --- |
| plain | `loop.py`, one training at a time | everything that no other executor honors |
| graphed | `graphed/step.py`, CUDA graphs, the seeds of a fold at the same time | GPUs |
| fused | `fused/step.py`, kernels of ASMIL, many trainings at once | GPUs |
| side_by_side | `side_by_side/step.py`, stacked models, folds and seeds at once; on GPUs in CUDA graphs | short bags |

All share one loop: `Trainer.session` does everything else, and yields when the steps of an epoch are due. `honored.py`
declares what each executor honors. This module chooses the executor for the trainings of a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from asmil.errors import AsmilError
from asmil.machine.bf16 import uses_bf16
from asmil.machine.memory import free_gpu_memory
from asmil.models.base import MILModel
from asmil.models.blocks.tile_passes import HAS_TRITON
from asmil.runs import checkpoint
from asmil.runs.checkpoint import Executor, Progress
from asmil.settings.config import flat
from asmil.training.fold_seed_job import FoldSeedJob
from asmil.training.honored import FUSED, GRAPHED, HONORED, MAY_DIFFER
from asmil.training.loop import Trainer
from asmil.training.turns import MOST_TILES_ON_GPU, TrainingPart

if TYPE_CHECKING:
    from asmil.runs.config import RunConfig
    from asmil.tasks.base import Task
    from asmil.training.resident import ResidentBags

OnStart = Callable[[FoldSeedJob, int], None]
"""Called when a job starts, with the job and its number of epochs."""
OnEpoch = Callable[[FoldSeedJob], Callable[[Mapping[str, Any]], None]]
Trained = tuple[FoldSeedJob, pd.DataFrame]
PREFERENCE: tuple[Executor, ...] = ("fused", "side_by_side", "graphed", "plain")
LOOKED_AT = 64
"""Bags whose lengths decide whether trainings run side by side."""
DESCRIPTIONS: dict[Executor, str] = {
    "fused": "fused kernels, many trainings at once",
    "graphed": "CUDA graphs, the seeds of a fold at once",
    "side_by_side": "short bags, folds and seeds side by side",
    "plain": "plain PyTorch, one training after the other",
}


class JobRunner:
    """Runs the trainings of a run, and keeps their shared data on the device.

    note: called once with the executor that is used, and with the reason if it is the plain one
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._noted: set[str] = set()
        self._started: set[Path] = set()
        self._pools: dict[torch.dtype, ResidentBags] = {}

    def run(self, jobs: Sequence[FoldSeedJob], on_start: OnStart, on_epoch: OnEpoch) -> Iterator[Trained]:
        """Train some jobs; yield each with its predictions when it ends."""
        for alike in _by_settings(jobs, MAY_DIFFER):
            executors = self._executors(alike)
            for chosen in PREFERENCE:
                group = [job for job, executor in zip(alike, executors, strict=True) if executor == chosen]
                for together in self._groups(chosen, group):
                    yield from self._train(chosen, together, on_start, on_epoch)

    def _groups(self, executor: Executor, jobs: Sequence[FoldSeedJob]) -> Iterator[Sequence[FoldSeedJob]]:
        """The jobs that an executor trains at the same time; where it needs it, with the same bags."""
        for alike in _by_outputs(jobs) if executor == "side_by_side" else _by_settings(jobs):
            most = self._at_once(executor, alike[0])
            for own in [alike] if self._mixes_folds(executor, alike[0]) else _by_bags(alike):
                parts = -(-len(own) // most)
                for i in range(parts):
                    yield own[len(own) * i // parts : len(own) * (i + 1) // parts]

    def _mixes_folds(self, executor: Executor, job: FoldSeedJob) -> bool:
        """Whether an executor trains several folds at the same time: on a GPU only if bags are short."""
        if executor != "fused":
            return executor == "side_by_side"
        return self._mean_tiles(job) <= MOST_TILES_ON_GPU

    def _executors(self, jobs: Sequence[FoldSeedJob]) -> list[Executor]:
        """The executor of each job: the one it started with, or else one that settings and machine allow."""
        if jobs[0].data.processes.count > 1:
            return ["plain"] * len(jobs)
        asked = jobs[0].config.training.executor
        reasons: dict[Executor, str | None] = {}
        chosen: list[Executor] = []
        for job in jobs:
            begun = _begun_with(job)
            wanted: Sequence[Executor] = PREFERENCE if asked == "auto" else [asked]
            if begun is not None:
                wanted = [begun] if asked != "plain" else ["plain"]
            for executor in wanted:
                if executor not in reasons:
                    alone = executor == "side_by_side" and begun is None and asked == "auto" and _is_one_short(jobs)
                    reasons[executor] = "there is only one training" if alone else self._reason(executor, job)
                if reasons[executor] is None:
                    chosen.append(executor)
                    break
            else:
                what = f"training.executor = {asked}" if begun is None else f"{job.folder} was started with it"
                raise AsmilError(
                    f"{what}, but the {wanted[0]} executor cannot be used here: {reasons[wanted[0]]}; run it "
                    "on another machine, or give another --out"
                )
        on_gpu = jobs[0].data.device.type == "cuda"
        others: Sequence[Executor] = ("side_by_side", "graphed") if on_gpu else ("side_by_side",)
        why = "; ".join(f"{other.replace('_', ' ')}: {reasons[other]}" for other in others if reasons.get(other))
        for executor in dict.fromkeys(chosen):
            explained = f" ({why})" if executor == "plain" and why else ""
            self._tell(f"executor: {DESCRIPTIONS[executor]}{explained}")
        return chosen

    def _reason(self, executor: Executor, job: FoldSeedJob) -> str | None:
        """Why an executor cannot train a job here, or None if it can."""
        if executor == "plain":
            return None
        honored, device = HONORED[executor], job.data.device
        reason = honored.machine(device)
        if reason is None:
            model, task = job.model_and_task()
            reason = honored.reason(job.config, model, task)
        if reason is None and executor == "side_by_side":
            reason = self._side_by_side_reason(job, model)
        if reason is None and self._pool_with(job) is None:
            reason = "the features of the training and validation slides do not fit into GPU memory"
        return reason

    def _side_by_side_reason(self, job: FoldSeedJob, model: MILModel) -> str | None:
        """Why trainings side by side would not be faster, or would need too much memory."""
        if job.data.loader.cache != "memory":
            return f"the features are not in memory (data.cache = {job.data.loader.cache})"
        if job.config.training.executor == "side_by_side":
            return None
        graphed = self._reason("graphed", job) is None
        return _no_gain_side_by_side(model, self._mean_tiles(job), job.data.device, graphed)

    def _mean_tiles(self, job: FoldSeedJob) -> float:
        bags = job.train.bags
        lengths = [len(bag) for bag in bags.stream(range(min(LOOKED_AT, len(bags))))]
        return sum(lengths) / len(lengths)

    def _at_once(self, executor: Executor, job: FoldSeedJob) -> int:
        """How many trainings like this one an executor runs at the same time: as many as fit on the device."""
        if executor == "plain":
            return 1
        model, pool = job.model_and_task()[0], self._resident(job)
        if executor == "side_by_side":
            from asmil.training.side_by_side.schedule import trainings_that_fit as stacked_that_fit

            return stacked_that_fit(model, pool)
        if executor == "fused":
            from asmil.training.fused.train import members_that_fit

            return members_that_fit(model, pool)
        from asmil.training.graphed.train import trainings_that_fit

        return trainings_that_fit(model, pool, job.config.training.batch)

    def _train(
        self, executor: Executor, jobs: Sequence[FoldSeedJob], on_start: OnStart, on_epoch: OnEpoch
    ) -> Iterator[Trained]:
        """Train the jobs at the same time."""
        trainers: list[Trainer] = [job.trainer(on_epoch(job)) for job in jobs]

        def start() -> None:
            for job, trainer in zip(jobs, trainers, strict=True):
                if job.folder not in self._started:
                    self._started.add(job.folder)
                    on_start(job, trainer.total_epochs)

        if executor == "side_by_side":
            is_full = False
            try:
                reason = self._fit_side_by_side(jobs, trainers, start)
            except torch.cuda.OutOfMemoryError:
                is_full = len(jobs) > 1
                if not is_full:
                    raise
            if is_full:  # here, where nothing holds the memory any more
                trainers.clear()
                free_gpu_memory()
                half = len(jobs) // 2
                self._tell(f"the memory of the GPU is full with {len(jobs)} trainings side by side; trying with {half}")
                for part in (jobs[:half], jobs[half:]):
                    yield from self._train(executor, part, on_start, on_epoch)
                return
            if reason is not None:
                other: Executor = "graphed" if self._reason("graphed", jobs[0]) is None else "plain"
                self._tell(f"executor: {DESCRIPTIONS[other]} (side by side: {reason})")
                for together in self._groups(other, jobs):
                    yield from self._train(other, together, on_start, on_epoch)
                return
        else:
            start()
            self._fit(executor, jobs, trainers)
        for job, trainer in zip(jobs, trainers, strict=True):
            yield job, job.finish(trainer)

    def _fit(self, executor: Executor, jobs: Sequence[FoldSeedJob], trainers: Sequence[Trainer]) -> None:
        """Train the jobs: seeds of one fold, or also of several if the executor is the fused one."""
        train, val = jobs[0].train, jobs[0].val
        if executor == "fused":
            from asmil.training.fused.train import fit_fused

            parts = []
            trainer_of = dict(zip(map(id, jobs), trainers, strict=True))
            for same in _by_bags(jobs):
                own = [trainer_of[id(job)] for job in same]
                parts.append(TrainingPart(own, same[0].train, same[0].val))
            fit_fused(parts, self._resident(jobs[0]))
        elif executor == "graphed":
            from asmil.training.graphed.train import fit_graphed

            fit_graphed(trainers, self._resident(jobs[0]), train, val)
        else:
            trainers[0].fit(train, val)

    def _fit_side_by_side(
        self, jobs: Sequence[FoldSeedJob], trainers: Sequence[Trainer], start: Callable[[], None]
    ) -> str | None:
        """Train all at once; if the steps of this method cannot be stacked, return the reason."""
        from asmil.training.side_by_side.bags import NotSideBySide
        from asmil.training.side_by_side.train import fit_side_by_side

        train, val = [job.train for job in jobs], [job.val for job in jobs]
        is_new = all(_begun_with(job) is None for job in jobs)
        is_free = is_new and jobs[0].config.training.executor == "auto"
        has_choice = is_free and self._reason("graphed", jobs[0]) is None
        try:
            fit_side_by_side(trainers, train, val, self._resident(jobs[0]), start, recorded=has_choice)
        except NotSideBySide as obstacle:
            return str(obstacle)
        return None

    def _pool_with(self, job: FoldSeedJob) -> ResidentBags | None:
        """The features of the job's training and validation bags on the device; None if they do not fit."""
        from asmil.training.resident import ResidentBags

        device = job.data.device
        dtype = torch.bfloat16 if uses_bf16(job.config.training.precision, device) else torch.float32
        pool = self._pools.setdefault(dtype, ResidentBags(job.data.in_features, device, dtype))
        try:
            for part in (job.train, job.val):
                if part is not None:
                    pool.add(part.bags)
        except torch.cuda.OutOfMemoryError:
            del self._pools[dtype]
            torch.cuda.empty_cache()
            return None
        return pool

    def _resident(self, job: FoldSeedJob) -> ResidentBags:
        pool = self._pool_with(job)
        assert pool is not None, "checked before that the features fit"
        return pool

    def _tell(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)


def _by_settings(jobs: Sequence[FoldSeedJob], may_differ: Sequence[str] = ()) -> list[list[FoldSeedJob]]:
    """The jobs that have the same settings, except for some."""
    groups: dict[str, list[FoldSeedJob]] = {}
    for job in jobs:
        settings = flat(job.config.model_dump(mode="json"))
        common = {name: value for name, value in settings.items() if name not in may_differ}
        groups.setdefault(json.dumps(common), []).append(job)
    return list(groups.values())


def _is_one_short(jobs: Sequence[FoldSeedJob]) -> bool:
    """Whether there is nothing to compute at once: one training, with one bag per step."""
    return len(jobs) == 1 and jobs[0].config.training.bags_per_step == 1


def _by_outputs(jobs: Sequence[FoldSeedJob]) -> list[list[FoldSeedJob]]:
    """The jobs whose models have the same outputs: the time bins of a survival task depend on the training patients."""
    groups: dict[int, list[FoldSeedJob]] = {}
    for job in jobs:
        survival = job.config.task.kind == "survival"
        groups.setdefault(job.model_and_task()[1].n_outputs if survival else 0, []).append(job)
    return list(groups.values())


def _by_bags(jobs: Sequence[FoldSeedJob]) -> list[list[FoldSeedJob]]:
    """The jobs of the same fold of the same splits."""
    return [list(same) for _, same in groupby(jobs, key=lambda job: (id(job.splits), job.fold))]


def _begun_with(job: FoldSeedJob) -> Executor | None:
    """The executor that a training was started with; None if it was not started."""
    path = job.folder / "checkpoints" / "last.safetensors"
    if not path.exists():
        return None
    _, state = checkpoint.load_checkpoint(path)
    with checkpoint.restoring(path):
        return Progress.from_json(state).executor


def _no_gain_side_by_side(model: MILModel, mean_tiles: float, device: torch.device, graphed: bool) -> str | None:
    """Why trainings side by side would not be faster than others; graphed: whether the others are CUDA graphs."""
    from asmil.training.side_by_side.schedule import work_reason

    if device.type == "cuda" and not HAS_TRITON and graphed:
        return "it needs Triton to be faster than CUDA graphs of single trainings"
    return work_reason(model, mean_tiles, device.type)


def likely_executor(
    config: RunConfig, model: MILModel, task: Task, device: torch.device, mean_tiles: float, trainings: int
) -> Executor:
    """The executor that will train this, if the features fit into memory."""

    def honors(executor: Executor) -> bool:
        honored = HONORED[executor]
        return honored.machine(device) is None and honored.reason(config, model, task) is None

    if honors("fused"):
        return "fused"
    graphed = honors("graphed")
    several = trainings > 1 or config.training.bags_per_step > 1
    if several and honors("side_by_side") and _no_gain_side_by_side(model, mean_tiles, device, graphed) is None:
        return "side_by_side"
    return "graphed" if graphed else "plain"


def executor_here(device: torch.device) -> str:
    """The executors used on a device with default settings, as a phrase."""
    side_by_side = "folds and seeds side by side if bags are short"
    reason = GRAPHED.machine(device)
    if reason is not None:
        return f"{side_by_side}, else plain PyTorch ({reason})"
    graphs = "else CUDA graphs for the methods whose bags can be padded, all seeds of a fold at once"
    reason = FUSED.machine(device)
    fused = "fused kernels for asmil" if reason is None else f"no fused kernels ({reason})"
    return f"{fused}; {side_by_side}; {graphs}"
