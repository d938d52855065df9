"""How the steps of a training are executed.

| executor | steps | used by |
| --- | --- | --- |
| plain | `loop.py`, one training at a time | everything that no other executor honors |
| graphed | `graphed/step.py`, CUDA graphs, the seeds of a fold at the same time | GPUs |
| fused | `fused/step.py`, kernels of ASMIL, the seeds of a fold at once | GPUs |
| side_by_side | `side_by_side/step.py`, stacked models, folds and seeds at once | `asmil classic` |

All share one loop: `Trainer.session` does everything else, and yields when the steps of an epoch are due. `honored.py`
declares what each executor honors. This module chooses the executor for the trainings of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from asmil.errors import AsmilError
from asmil.machine.bf16 import uses_bf16
from asmil.runs import checkpoint
from asmil.runs.checkpoint import Executor, Progress
from asmil.training.fold_seed_job import FoldSeedJob
from asmil.training.honored import FUSED, GRAPHED, HONORED
from asmil.training.loop import Trainer

if TYPE_CHECKING:
    from asmil.training.resident import ResidentBags

OnStart = Callable[[FoldSeedJob, int], None]
"""Called when a job starts, with the job and its number of epochs."""
OnEpoch = Callable[[FoldSeedJob], Callable[[Mapping[str, Any]], None]]
Trained = tuple[FoldSeedJob, pd.DataFrame]
PREFERENCE: tuple[Executor, ...] = ("fused", "graphed", "plain")


class JobRunner:
    """Runs the trainings of a run, and keeps their shared data on the device.

    note: called once with the reason why the plain executor is used on a GPU
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._noted: set[str] = set()
        self._pools: dict[torch.dtype, ResidentBags] = {}

    def run(self, jobs: Sequence[FoldSeedJob], on_start: OnStart, on_epoch: OnEpoch) -> Iterator[Trained]:
        """Train the jobs of one fold; yield each with its predictions when it ends."""
        executors = self._executors(jobs) if jobs else []
        for chosen in PREFERENCE:
            group = [job for job, executor in zip(jobs, executors, strict=True) if executor == chosen]
            at_once = self._at_once(chosen, group[0]) if group else 1
            for first in range(0, len(group), at_once):
                yield from self._train(chosen, group[first : first + at_once], on_start, on_epoch)

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
                    reasons[executor] = self._reason(executor, job)
                if reasons[executor] is None:
                    chosen.append(executor)
                    break
            else:
                what = f"training.executor = {asked}" if begun is None else f"{job.folder} was started with it"
                raise AsmilError(
                    f"{what}, but the {wanted[0]} executor cannot be used here: {reasons[wanted[0]]}; run it "
                    "on another machine, or give another --out"
                )
        if "plain" in chosen and asked == "auto" and jobs[0].data.device.type == "cuda" and reasons.get("graphed"):
            self._tell(f"training without CUDA graphs: {reasons['graphed']}")
        return chosen

    def _reason(self, executor: Executor, job: FoldSeedJob) -> str | None:
        """Why an executor cannot train a job here, or None if it can."""
        if executor == "plain":
            return None
        if executor not in PREFERENCE:
            return "it trains small benchmark sets (asmil classic)"
        honored = HONORED[executor]
        reason = honored.machine(job.data.device) or honored.reason(job.config, *job.model_and_task())
        if reason is None and self._pool_with(job) is None:
            reason = "the features of the training and validation slides do not fit into GPU memory"
        return reason

    def _at_once(self, executor: Executor, job: FoldSeedJob) -> int:
        """How many trainings like this one an executor runs at the same time: as many as fit on the device."""
        if executor == "plain":
            return 1
        model, pool = job.model_and_task()[0], self._resident(job)
        if executor == "fused":
            from asmil.training.fused.train import members_that_fit

            return members_that_fit(model, pool)
        from asmil.training.graphed.train import trainings_that_fit

        return trainings_that_fit(model, pool, job.config.training.batch)

    def _train(
        self, executor: Executor, jobs: Sequence[FoldSeedJob], on_start: OnStart, on_epoch: OnEpoch
    ) -> Iterator[Trained]:
        """Train the jobs at the same time."""
        train, val = jobs[0].train, jobs[0].val
        trainers: list[Trainer] = [job.trainer(on_epoch(job)) for job in jobs]
        for job, trainer in zip(jobs, trainers, strict=True):
            on_start(job, trainer.total_epochs)
        if executor == "fused":
            from asmil.training.fused.train import fit_fused

            fit_fused(trainers, self._resident(jobs[0]), train, val)
        elif executor == "graphed":
            from asmil.training.graphed.train import fit_graphed

            fit_graphed(trainers, self._resident(jobs[0]), train, val)
        else:
            trainers[0].fit(train, val)
        for job, trainer in zip(jobs, trainers, strict=True):
            yield job, job.finish(trainer)

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
        except torch.OutOfMemoryError:
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


def _begun_with(job: FoldSeedJob) -> Executor | None:
    """The executor that a training was started with; None if it was not started."""
    path = job.folder / "checkpoints" / "last.safetensors"
    if not path.exists():
        return None
    _, state = checkpoint.load_checkpoint(path)
    with checkpoint.restoring(path):
        return Progress.from_json(state).executor


def executor_here(device: torch.device) -> str:
    """The executors used on a device with default settings, as a phrase."""
    reason = GRAPHED.machine(device)
    if reason is not None:
        return f"plain PyTorch ({reason})"
    graphs = "CUDA graphs for the attention methods whose bags can be padded, all seeds of a fold at once"
    reason = FUSED.machine(device)
    return f"fused kernels for asmil, {graphs}" if reason is None else f"{graphs} ({reason})"
