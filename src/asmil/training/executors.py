"""Who takes the steps of the trainings of a fold: fused kernels for all seeds at once, or one seed after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from asmil.errors import AsmilError
from asmil.training import checkpoint
from asmil.training.fold_seed_job import FoldSeedJob
from asmil.training.fused.applies import machine_reason, settings_reason
from asmil.training.loop import Trainer

if TYPE_CHECKING:
    from asmil.training.fused.resident import ResidentBags

OnStart = Callable[[FoldSeedJob, int], None]
"""Called with a job that begins, and the number of its epochs."""
OnEpoch = Callable[[FoldSeedJob], Callable[[Mapping[str, Any]], None]]
Trained = tuple[FoldSeedJob, pd.DataFrame]


class JobRunner:
    """Runs the trainings of a run, and keeps what they share on the device.

    note: told once why the fused executor is not used, where a GPU would allow it
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._noted: set[str] = set()
        self._pool: ResidentBags | None = None

    def run(self, jobs: Sequence[FoldSeedJob], on_start: OnStart, on_epoch: OnEpoch) -> Iterator[Trained]:
        """Train the jobs of one fold; each with its predictions, as it ends."""
        fused = self._fused(jobs) if jobs else []
        if fused:
            yield from self._side_by_side(fused, on_start, on_epoch)
        for job in jobs:
            if job not in fused:
                trainer = job.trainer(on_epoch(job))
                on_start(job, trainer.total_epochs)
                trainer.fit(job.train, job.val)
                yield job, job.finish(trainer)

    def _fused(self, jobs: Sequence[FoldSeedJob]) -> list[FoldSeedJob]:
        """The jobs that fused kernels train: as they began, or else as the settings ask and the machine allows."""
        asked, device = jobs[0].config.training.executor, jobs[0].data.device
        begun = {job.seed: _begun_with(job) for job in jobs}
        wanted = [job for job in jobs if begun[job.seed] != "plain" and asked != "plain"]
        if not wanted:
            return []
        reason = machine_reason(device) or settings_reason(wanted[0].config, *wanted[0].model_and_task())
        if reason is None and not self._fits(wanted[0]):
            reason = "the features of the training and validation slides do not fit into the memory of the GPU"
        if reason is None:
            return wanted
        bound = next((job.folder for job in jobs if begun[job.seed] == "fused"), None)
        if asked == "fused" or bound is not None:
            what = "training.executor = fused" if bound is None else f"{bound} was begun with the fused executor"
            raise AsmilError(f"{what}, but it cannot be used here: {reason}; run it elsewhere, or give another --out")
        if device.type == "cuda":
            self._tell(f"training without fused kernels: {reason}")
        return []

    def _side_by_side(self, jobs: Sequence[FoldSeedJob], on_start: OnStart, on_epoch: OnEpoch) -> Iterator[Trained]:
        """Train the jobs, as many at once as the memory of the device takes."""
        from asmil.training.fused.side_by_side import fit_side_by_side, members_that_fit

        train, val, pool = jobs[0].train, jobs[0].val, self._resident(jobs[0])
        at_once = members_that_fit(jobs[0].model_and_task()[0], pool)
        for first in range(0, len(jobs), at_once):
            together = jobs[first : first + at_once]
            trainers: list[Trainer] = [job.trainer(on_epoch(job)) for job in together]
            for job, trainer in zip(together, trainers, strict=True):
                on_start(job, trainer.total_epochs)
            fit_side_by_side(trainers, pool, train, val)
            for job, trainer in zip(together, trainers, strict=True):
                yield job, job.finish(trainer)

    def _fits(self, job: FoldSeedJob) -> bool:
        """Whether the features of the job's training and validation bags fit on the device; they are then there."""
        from asmil.training.fused.side_by_side import empty_pool

        if self._pool is None:
            self._pool = empty_pool(job.data.in_features, job.data.device)
        try:
            for part in (job.train, job.val):
                if part is not None:
                    self._pool.add(part.bags)
        except torch.OutOfMemoryError:
            self._pool = None
            torch.cuda.empty_cache()
            return False
        return True

    def _resident(self, job: FoldSeedJob) -> ResidentBags:
        fits = self._fits(job)
        assert fits, "its features were found to fit before"
        assert self._pool is not None
        return self._pool

    def _tell(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)


def _begun_with(job: FoldSeedJob) -> str | None:
    """The executor that a training was begun with; None if it was not."""
    path = job.folder / "checkpoints" / "last.safetensors"
    if not path.exists():
        return None
    return str(checkpoint.load_checkpoint(path)[1].get("executor", "plain"))


def executor_here(device: torch.device) -> str:
    """Which executor trains ASMIL on a device with its default settings, in words."""
    reason = machine_reason(device)
    return "fused kernels, all seeds of a fold at once" if reason is None else f"plain ({reason})"
