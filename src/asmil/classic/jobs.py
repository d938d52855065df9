"""The jobs of a benchmark: one set, one method and one seed each, with all folds, on any engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asmil.classic.bag_set import BagSet
from asmil.classic.baselines import BASELINES
from asmil.classic.folds import Fold, make_folds
from asmil.classic.rules import RuleResult, joined_result, read_rules
from asmil.classic.settings import Contender
from asmil.classic.training import train_parts
from asmil.engine.jobs import Engine, Place, Worker
from asmil.errors import AsmilError
from asmil.files import write_json
from asmil.machine.arithmetic import exact_arithmetic
from asmil.settings.config import flat
from asmil.settings.made_from import DoneBefore, MadeFrom, Record
from asmil.version import __version__

JOBS = "jobs"


@dataclass(frozen=True)
class Job:
    """set_name: the set; file: where the result is kept, if anywhere."""

    set_name: str
    contender: Contender
    seed: int
    n_folds: int
    file: Path | None = None

    def made_from(self, bag_set: BagSet) -> dict[str, Any]:
        """Everything that determines the result."""
        return {"data": bag_set.fingerprint(), "folds": self.n_folds, "settings": self.contender.settings()}


def run_job(job: Job, bag_set: BagSet) -> dict[str, Any]:
    """The result of a job as JSON: accuracy of every fold by every rule."""
    began = time.perf_counter()
    folds = make_folds(bag_set, job.n_folds, job.seed)
    config, one_at_a_time = job.contender.config, None
    if config is None:
        rules = {"last": _predict_baseline(job.contender.method, bag_set, folds, job.seed)}
    else:
        # a training on all training bags of each fold, and one on its `fit` part
        parts = [fold.train for fold in folds] + [fold.fit for fold in folds]
        probabilities, one_at_a_time = train_parts(config, bag_set, parts, job.seed)
        rules = read_rules(probabilities, bag_set.label, folds)
    return {
        "set": job.set_name,
        "method": job.contender.method,
        "preset": job.contender.preset,
        "name": job.contender.name,
        "seed": job.seed,
        "rules": {rule: asdict(result) for rule, result in rules.items()},
        "seconds": round(time.perf_counter() - began, 2),
        **({} if one_at_a_time is None else {"one_at_a_time": one_at_a_time}),
        "made_from": job.made_from(bag_set),
        "asmil": __version__,
    }


@dataclass(frozen=True)
class ClassicWorker:
    """Makes workers, which get all sets and write every result as soon as it is finished."""

    sets: Mapping[str, BagSet]

    def __call__(self, worker: Place) -> Worker:
        return self._work

    def _work(self, job: Job) -> dict[str, Any]:
        with exact_arithmetic(threads=1):  # every core has its own worker
            result = run_job(job, self.sets[job.set_name])
        if job.file is not None:
            write_json(job.file, result)
        return result


def _predict_baseline(method: str, bag_set: BagSet, folds: list[Fold], seed: int) -> RuleResult:
    scores = np.zeros((bag_set.n_bags, 2))
    for fold in folds:
        scores[fold.test] = BASELINES[method].predict(bag_set, fold.train, fold.test, seed)
    return joined_result(scores, bag_set.label, folds, [])


@dataclass(frozen=True)
class Done:
    """A job that has ended: its result, or why it has none. before: an earlier command ran it."""

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
    """Every set with every method and seed; all jobs of a seed come before those of the next."""

    def file(name: str) -> Path | None:
        # workers may have another working folder
        return None if out is None else out.absolute() / JOBS / f"{name}.json"

    return [
        Job(bag_set.name, row, seed, n_folds, file(f"{bag_set.name}-{row.file_name}-seed{seed}"))
        for seed in seeds
        for bag_set in sets
        for row in rows
    ]


def run_jobs(
    jobs: Sequence[Job], sets: Mapping[str, BagSet], engine: Engine, done: DoneBefore | None = None
) -> Iterator[Done]:
    """The jobs as they end, first those of earlier calls; a job that fails does not stop the others.

    done: decides about results that were made from something else; default: they are refused
    """
    done = done or DoneBefore()
    waiting, kept = [], []
    for job in jobs:
        result = _done_before(job, sets[job.set_name], done)
        if result is None:
            waiting.append(job)
        else:
            kept.append(Done(job, result, before=True))
    if jobs and jobs[0].file is not None:
        done.refuse(jobs[0].file.parents[1])
    yield from kept
    for outcome in engine.run(ClassicWorker(sets), waiting):
        yield Done(outcome.job, outcome.result, outcome.error)


def _done_before(job: Job, bag_set: BagSet, done: DoneBefore) -> dict[str, Any] | None:
    """The result of a job that is kept."""
    if job.file is None or not job.file.is_file():
        return None
    try:
        result = json.loads(job.file.read_text(encoding="utf-8"))
        record = Record(asmil=result.get("asmil"), values=flat(result["made_from"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise AsmilError(f"{job.file} cannot be read as a result; remove it, and it is computed again") from None
    kept = done.keeps(Done(job).name, record, MadeFrom(flat(job.made_from(bag_set))))
    return dict(result) if kept else None
