"""Run a sweep on any engine, from its settings to its table of results."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from asmil.engine import Engine, InlineEngine, LocalEngine, RayEngine
from asmil.engine.machine import Machine
from asmil.errors import AsmilError
from asmil.experiments.done_before import jobs_to_do
from asmil.experiments.measures import ONE_SEED
from asmil.experiments.optuna_search import Proposals
from asmil.experiments.plan import (
    Point,
    TrainingJob,
    Trial,
    grid_points,
    jobs_of,
    random_points,
    synthetic_folder,
    trials_of,
)
from asmil.experiments.settings import CohortConfig, SweepConfig
from asmil.experiments.store import FAILURE_FILE, is_done, read_rows, write_failure, write_parquet, write_table
from asmil.experiments.worker import STOPPED, CohortJob, make_worker
from asmil.files import remove_abandoned
from asmil.settings.made_from import DoneBefore

TABLE_EVERY_S = 2.0
USUAL_WIDTH = 384


@dataclass(frozen=True)
class JobEnd:
    """How a job ended: done now or by an earlier command, stopped by the time limit, or failed."""

    job: TrainingJob
    status: str
    error: str | None = None


@dataclass(frozen=True)
class SweepFolder:
    """A sweep and its folder.

    on_gpu: whether trainings run on GPUs, where fused kernels train all seeds of a trial together
    """

    config: SweepConfig
    out: Path
    on_gpu: bool

    def __post_init__(self) -> None:
        if self.config.group_seeds is True and ONE_SEED & set(self.config.measures):
            raise AsmilError(
                "group_seeds: true cannot be used with the measure froc, which needs one seed per run folder"
            )

    def jobs(self, points: Sequence[Point]) -> list[TrainingJob]:
        """The jobs of some points."""
        return jobs_of(self.config, trials_of(self.config, points), self.out, self._groups_seeds)

    def _groups_seeds(self, trial: Trial) -> bool:
        if ONE_SEED & set(self.config.measures):
            return False
        if self.config.group_seeds != "auto":
            return self.config.group_seeds
        return self.on_gpu and trains_fused(self.config.cohorts[trial.cohort], trial)

    def run(self, engine: Engine, seconds: float | None = None, done: DoneBefore | None = None) -> Iterator[JobEnd]:
        """Train and measure what is not done yet; the table grows while jobs end.

        seconds: after this time no training is started, and running ones stop at the end of their epoch
        done: what to do with results made from other inputs or settings; default: refuse them
        """
        done = done or DoneBefore()
        deadline = None if seconds is None else time.time() + seconds
        search = self.config.search
        # invalid settings are refused before a cohort is written
        fixed = self.fixed_jobs() if search.strategy != "optuna" else []
        write_cohorts(self.cohort_jobs(), engine, done.again)
        if search.strategy != "optuna":
            yield from run_jobs(fixed, engine, deadline, done)
            return
        proposals = Proposals(search, self.out)
        proposals.reopen()
        while points := proposals.next_points():
            failed = set()
            for end in run_jobs(self.jobs(points), engine, deadline, done):
                yield end
                if end.status == "failed":
                    failed.add(end.job.folder)
            jobs_of = {index: self.jobs([point]) for index, point in enumerate(points)}
            finished = [index for index, jobs in jobs_of.items() if all(map(is_done, jobs))]
            proposals.tell({index: [row for job in jobs_of[index] for row in read_rows(job)] for index in finished})
            lost = [index for index, jobs in jobs_of.items() if any(job.folder in failed for job in jobs)]
            proposals.fail(lost)
            if len(finished) + len(lost) < len(points):
                return

    def fixed_jobs(self) -> list[TrainingJob]:
        """All jobs of a grid or a random search."""
        search = self.config.search
        return self.jobs(grid_points(search) if search.strategy == "grid" else random_points(search))

    def cohort_jobs(self) -> list[CohortJob]:
        """The synthetic cohorts of the sweep."""
        return [
            CohortJob(synthetic_folder(name, cohort, self.out), cohort.synthetic, cohort.task, cohort.survival)
            for name, cohort in self.config.cohorts.items()
            if cohort.synthetic is not None
        ]


def run_together(
    folders: Sequence[SweepFolder], engine: Engine, seconds: float | None = None, done: DoneBefore | None = None
) -> Iterator[JobEnd]:
    """Several sweeps without Optuna in one pool of workers, taking turns; see `SweepFolder.run`."""
    done = done or DoneBefore()
    deadline = None if seconds is None else time.time() + seconds
    queues = [folder.fixed_jobs() for folder in folders]
    cohorts = {job.folder: job for folder in folders for job in folder.cohort_jobs()}
    write_cohorts(list(cohorts.values()), engine, done.again)
    jobs = [job for group in zip_longest(*queues) for job in group if job is not None]
    yield from run_jobs(jobs, engine, deadline, done)


def run_jobs(
    jobs: Sequence[TrainingJob], engine: Engine, deadline: float | None, done: DoneBefore | None = None
) -> Iterator[JobEnd]:
    """Train and measure the jobs that are not done; the tables of their sweeps grow while jobs end.

    done: what to do with results made from other inputs or settings; default: refuse them
    """
    done = done or DoneBefore()
    to_do = jobs_to_do(jobs, done)
    waiting = [replace(job, deadline=deadline, again=done.again) for job in to_do]
    working = {job.folder for job in to_do}
    yield from (JobEnd(job, "done before") for job in jobs if job.folder not in working)
    for out in {job.out for job in jobs}:
        remove_abandoned(out, below=False)
    written: dict[Path, float] = {}
    try:
        for outcome in engine.run(make_worker, waiting):
            job = outcome.job
            if outcome.error is not None and not (job.folder / FAILURE_FILE).is_file():
                write_failure(job, outcome.error)  # the worker died, or met a bug
            status = "failed" if outcome.error else "stopped" if outcome.result == STOPPED else "done"
            if time.monotonic() - written.get(job.out, -math.inf) > TABLE_EVERY_S:
                write_table(job.out)
                written[job.out] = time.monotonic()
            yield JobEnd(job, status, outcome.error)
    finally:
        for out in {job.out for job in jobs}:
            write_table(out)
    for out in {job.out for job in jobs}:
        write_parquet(out)


def write_cohorts(jobs: Sequence[CohortJob], engine: Engine, again: bool = False) -> None:
    """Write the synthetic cohorts that are not there yet; one with other settings is refused, or written again."""
    to_do = [replace(job, again=again) for job in jobs if not job.is_written()]
    for outcome in engine.run(make_worker, to_do):
        if outcome.error is not None:
            raise AsmilError(f"{outcome.job.name}: {outcome.error}")


def trains_fused(cohort: CohortConfig, trial: Trial) -> bool:
    """Whether fused kernels would train a trial on a GPU, according to its settings."""
    from asmil.runs.model import build_model
    from asmil.tasks.classification import Classification
    from asmil.training.honored import FUSED

    if cohort.task != "classification":
        return False
    width = USUAL_WIDTH if cohort.synthetic is None else cohort.synthetic.width
    config = trial.config({"task": {"kind": cohort.task}})
    return FUSED.reason(config, build_model(config, width, 2, 0), Classification(("a", "b"))) is None


@dataclass(frozen=True)
class TrainingMachine(Machine):
    """Where trainings run, one at a time in each worker.

    workers: None: one for each GPU, or this process; 1: this process
    """

    def prepare(self) -> tuple[Engine, bool]:
        """The engine, and whether it trains on GPUs."""
        if self.uses_ray():
            return RayEngine(self.address, self.workers, self.cpus, self.gpus, concurrency=1), self.gpus > 0
        devices = self.devices()
        workers = self.workers or len(devices)
        on_gpu = devices != ["cpu"]
        if workers == 1:
            return InlineEngine(device=devices[0]), on_gpu
        return LocalEngine(workers, concurrency=1, devices=devices), on_gpu
