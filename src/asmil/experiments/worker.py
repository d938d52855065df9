"""The work on one job of a sweep: write its cohort, or train its run and measure it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asmil.engine.jobs import Place, Worker, made_progress
from asmil.errors import AsmilError
from asmil.experiments.measures import MEASURES
from asmil.experiments.plan import TrainingJob
from asmil.experiments.store import write_failure, write_result
from asmil.files import write_json
from asmil.machine.timing import measured
from asmil.synthetic.bags import SurvivalConfig, SyntheticConfig, write_synthetic
from asmil.synthetic.bags.folder import is_synthetic
from asmil.synthetic.bags.outcomes import SyntheticTask

STOPPED = "stopped"
"""The result of a job that ran out of time and can be resumed."""


@dataclass(frozen=True)
class CohortJob:
    """A synthetic cohort to be written; again: also if the folder contains another one."""

    folder: Path
    config: SyntheticConfig
    task: SyntheticTask
    survival: SurvivalConfig
    again: bool = False

    @property
    def name(self) -> str:
        """A description of the job."""
        return f"cohort {self.folder.name}"

    def is_written(self) -> bool:
        """Whether the folder contains this cohort."""
        return is_synthetic(self.folder, self.config, self.task, self.survival)


def make_worker(place: Place) -> Worker:
    """The worker of a process; it does jobs of both kinds."""
    from asmil.machine.memory import keep_freed_memory

    keep_freed_memory()
    return _Worker(place.device)


@dataclass(frozen=True)
class _Worker:
    device: str

    def __call__(self, job: CohortJob | TrainingJob) -> Any:
        if isinstance(job, CohortJob):
            write_synthetic(
                job.folder,
                job.config,
                lambda done, total: made_progress(),
                task=job.task,
                survival=job.survival,
                again=job.again,
            )
            return None
        try:
            return self._train_and_measure(job)
        except AsmilError as error:
            write_failure(job, str(error))
            raise

    def _train_and_measure(self, job: TrainingJob) -> list[dict[str, Any]] | str:
        from asmil.training.interruption import Interrupted
        from asmil.training.run import train_run
        from asmil.training.run_parts import RunObserver

        class Watch(RunObserver):
            def epoch(self, fold: int, seed: int, record: Mapping[str, Any]) -> None:
                made_progress()
                if job.deadline is not None and time.time() > job.deadline:
                    raise Interrupted

        if job.deadline is not None and time.time() > job.deadline:
            return STOPPED
        began = time.perf_counter()
        try:
            config = job.config(self.device)
            with measured() as stages:
                train_run(job.manifest, job.folder, config, job.features, Watch(), again=job.again)
        except Interrupted:
            if job.deadline is None or time.time() < job.deadline:
                raise KeyboardInterrupt from None  # interrupted by the user, not by the time limit
            return STOPPED
        trained_s = time.perf_counter() - began
        rows = measured_rows(job, self.device)
        spent = {"train_s": trained_s, "all_s": time.perf_counter() - began, "stages_s": dict(stages.seconds)}
        write_json(job.folder / "timing.json", spent)
        write_result(job, rows)
        return rows


def measured_rows(job: TrainingJob, device: str) -> list[dict[str, Any]]:
    """One row for each training of the job's run folder: what it is, and all its numbers."""
    from asmil.runs.run import Run

    run = Run(job.folder, device)
    numbers: dict[tuple[int, int], dict[str, Any]] = {}
    for name in job.measures:
        for training, numbers_of_measure in MEASURES[name](run).items():
            numbers.setdefault(training, {}).update(numbers_of_measure)
    about = job.trial.columns()
    return [{**about, "fold": fold, "seed": seed, **numbers[fold, seed]} for fold, seed in sorted(numbers)]
