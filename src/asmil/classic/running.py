"""All jobs of a benchmark, on any engine; finished jobs are not repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asmil.classic.bag_set import BagSet
from asmil.classic.jobs import Job, JobRunner
from asmil.classic.settings import Contender
from asmil.engine.jobs import Engine
from asmil.errors import AsmilError

JOBS = "jobs"


@dataclass(frozen=True)
class Done:
    """A job that is through: its result, or why it has none. before: it was done by an earlier command."""

    job: Job
    result: dict[str, Any] | None = None
    error: str | None = None
    before: bool = False

    @property
    def name(self) -> str:
        """A description of the job."""
        return f"{self.job.contender.name} on {self.job.set_name}, seed {self.job.seed}"


def make_jobs(
    sets: Sequence[BagSet], rows: Sequence[Contender], seeds: Sequence[int], n_folds: int, out: Path | None
) -> list[Job]:
    """Every set with every method and seed; one seed of all comes before the next."""

    def file(name: str) -> Path | None:
        # workers may have another working folder
        return None if out is None else out.absolute() / JOBS / f"{name}.json"

    return [
        Job(one.name, row, seed, n_folds, file(f"{one.name}-{row.file_name}-seed{seed}"))
        for seed in seeds
        for one in sets
        for row in rows
    ]


def run_jobs(jobs: Sequence[Job], sets: Mapping[str, BagSet], engine: Engine) -> Iterator[Done]:
    """The jobs as they end, first those of earlier calls; a job that fails does not stop the others."""
    waiting = []
    for job in jobs:
        result = _done_before(job, sets[job.set_name])
        if result is None:
            waiting.append(job)
        else:
            yield Done(job, result, before=True)
    for outcome in engine.run(JobRunner(sets), waiting):
        yield Done(outcome.job, outcome.result, outcome.error)


def _done_before(job: Job, bag_set: BagSet) -> dict[str, Any] | None:
    if job.file is None or not job.file.is_file():
        return None
    try:
        result = json.loads(job.file.read_text(encoding="utf-8"))
        made_from = result["made_from"]
    except (ValueError, TypeError, KeyError):
        raise AsmilError(f"{job.file} cannot be read as a result; remove it, and it is computed again") from None
    if made_from != job.made_from(bag_set):
        raise AsmilError(
            f"{job.file} was made from other data or with other settings; choose another --out, or remove the file to "
            "compute it again"
        )
    return dict(result)
