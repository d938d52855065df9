"""Who takes the steps of the trainings of a fold: fused kernels for all seeds at once, or one seed after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from asmil.errors import AsmilError
from asmil.training import checkpoint
from asmil.training.fused.applies import machine_reason, settings_reason
from asmil.training.loop import Trainer
from asmil.training.one_training import OneTraining

if TYPE_CHECKING:
    from asmil.training.fused.resident import ResidentBags

OnEpoch = Callable[[OneTraining], Callable[[Mapping[str, Any]], None]]
Trained = tuple[OneTraining, pd.DataFrame]


class JobRunner:
    """Runs the trainings of a run, and keeps what they share on the device.

    note: told once why the fused executor is not used, where a GPU would allow it
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._noted: set[str] = set()
        self._pool: ResidentBags | None = None

    def run(
        self, jobs: Sequence[OneTraining], on_start: Callable[[OneTraining], None], on_epoch: OnEpoch
    ) -> Iterator[Trained]:
        """Train the jobs of one fold; each with its predictions, as it ends."""
        fused = self._fused(jobs) if jobs else []
        if fused:
            yield from self._side_by_side(fused, on_start, on_epoch)
        for job in jobs:
            if job not in fused:
                on_start(job)
                yield job, job.run(on_epoch(job))

    def _fused(self, jobs: Sequence[OneTraining]) -> list[OneTraining]:
        """The jobs that fused kernels train: as they began, or else as the settings ask and the machine allows."""
        asked, device = jobs[0].config.training.executor, jobs[0].material.device
        reason = machine_reason(device) or settings_reason(jobs[0].config, *jobs[0].model_and_task())
        begun = {job.seed: _begun_with(job) for job in jobs}
        if reason is None:
            return [job for job in jobs if begun[job.seed] != "plain" and asked != "plain"]
        bound = next((job.folder for job in jobs if begun[job.seed] == "fused"), None)
        if asked == "fused" or bound is not None:
            what = "training.executor = fused" if bound is None else f"{bound} was begun with the fused executor"
            raise AsmilError(f"{what}, but it cannot be used here: {reason}; run it elsewhere, or give another --out")
        if device.type == "cuda" and asked != "plain":
            self._tell(f"training without fused kernels: {reason}")
        return []

    def _side_by_side(
        self, jobs: Sequence[OneTraining], on_start: Callable[[OneTraining], None], on_epoch: OnEpoch
    ) -> Iterator[Trained]:
        from asmil.training.fused.side_by_side import empty_pool, fit_side_by_side

        first = jobs[0]
        trainers: list[Trainer] = [job.trainer(on_epoch(job)) for job in jobs]
        for job in jobs:
            on_start(job)
        if self._pool is None:
            self._pool = empty_pool(first.material.in_features, first.material.device)
        fit_side_by_side(trainers, self._pool, first.train, first.val)
        for job, trainer in zip(jobs, trainers, strict=True):
            yield job, job.finish(trainer)

    def _tell(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)


def _begun_with(job: OneTraining) -> str | None:
    """The executor that a training was begun with; None if it was not."""
    path = job.folder / "checkpoints" / "last.safetensors"
    if not path.exists():
        return None
    return str(checkpoint.load_checkpoint(path)[1].get("executor", "plain"))


def executor_here(device: torch.device) -> str:
    """Which executor trains ASMIL on a device with its default settings, in words."""
    reason = machine_reason(device)
    return "fused kernels, all seeds of a fold at once" if reason is None else f"plain ({reason})"
