"""One job of the search: a candidate on some folds, with its own folder; a finished one is never trained again.

The jobs of a candidate in a stage have the same settings, so they are trained at the same time, as a batch.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

from asmil.cohort.loader import BagLoader
from asmil.cohort.manifest import Cohort
from asmil.cohort.outcomes import outcomes_of
from asmil.cohort.splits import Splits
from asmil.cohort.units import UnitKind, units_of
from asmil.engine.jobs import Place, Worker, made_progress
from asmil.engine.machine import choose_device
from asmil.errors import AsmilError
from asmil.files import write_json
from asmil.models.base import MILModel
from asmil.models.own_method import method_name
from asmil.models.registry import find_method
from asmil.reporting import jsonable
from asmil.runs.config import RunConfig
from asmil.runs.layout import RunLayout
from asmil.runs.predictions import read_predictions, write_predictions
from asmil.settings.documents import read_json
from asmil.tasks.base import Metric, PredictionFormat, TaskKind
from asmil.tasks.prediction_format import prediction_format
from asmil.training.executors import JobRunner
from asmil.training.fold_seed_job import FoldSeedJob, TrainingData
from asmil.training.interruption import Interrupted

RESULT_FILE = "result.json"
OUT_OF_TIME = "the budget ended"
METRICS: dict[TaskKind, str] = {
    "classification": "macro_auc",
    "multilabel": "macro_auc",
    "survival": "c_index",
    "regression": "r2",
}
"""What candidates are chosen and reported by; higher is better."""


class JobResult(BaseModel):
    """What a finished job leaves in its folder.

    scores: the metric on the held-out part of each fold; None where it is undefined
    seconds: of the whole job, its share of the batch; epoch_s: of the last epoch of the batch, per training bag
    error: why the candidate could not be trained
    """

    scores: list[float | None] = []
    seconds: float = 0.0
    epoch_s: float = 0.0
    error: str | None = None

    @property
    def score(self) -> float:
        """The mean over the folds in which the metric is defined; nan if there is none."""
        defined = [score for score in self.scores if score is not None]
        return fmean(defined) if defined else float("nan")


@dataclass(frozen=True)
class SearchJob:
    """A candidate to be trained on the folds of `splits`; the role `test` is what each fold holds out."""

    name: str
    folder: Path
    config: RunConfig
    splits: Splits = field(repr=False)

    @property
    def result(self) -> JobResult | None:
        """The result, or None if the job is not done."""
        path = self.folder / RESULT_FILE
        return read_json(path, JobResult, "remove it, and the job is done again") if path.is_file() else None

    def predictions(self) -> pd.DataFrame:
        """The predictions of all folds for what they held out."""
        layout, seed = RunLayout(self.folder), self.config.training.seed
        files = [layout.training(fold, seed) / layout.predictions.name for fold in range(self.splits.n_folds)]
        return pd.concat([read_predictions(file) for file in files], ignore_index=True)


@dataclass(frozen=True)
class JobBatch:
    """Jobs with the same settings, trained at the same time.

    ends_at: the time (`time.time()`) at which they must be done; they are not begun if they would take longer, and
        stopped if they do; None: they may take as long as they need
    seconds: that they will take, as expected
    """

    jobs: tuple[SearchJob, ...]
    ends_at: float | None = None
    seconds: float = 0.0


class OutOfTimeError(AsmilError):
    """A batch would not be done in time."""

    def __init__(self) -> None:
        super().__init__(OUT_OF_TIME)


def covered(intervals: Sequence[tuple[float, float]]) -> float:
    """The length of the union of intervals.

    >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, end = 0.0, -math.inf
    for low, high in sorted(intervals):
        total += max(0.0, high - max(low, end))
        end = max(end, high)
    return total


def metric_of(form: PredictionFormat) -> Metric:
    """The metric that candidates are chosen and reported by."""
    return next(metric for metric in form.metrics if metric.name == METRICS[form.kind])


def fold_score(form: PredictionFormat, table: pd.DataFrame) -> float | None:
    """The metric of a table of predictions; None where it is undefined."""
    function = metric_of(form).function
    assert function is not None
    try:
        value = float(function(form.truth(table), form.predictions(table), np.ones((1, len(table))))[0])
    except AsmilError:
        return None
    return value if np.isfinite(value) else None


@dataclass(frozen=True)
class MakeTrainer:
    """Called once in each worker process; bags stay in memory from job to job if they fit."""

    cohort: Cohort
    kind: TaskKind
    unit: UnitKind
    in_features: int

    def __call__(self, place: Place) -> Worker:
        """A function that does jobs."""
        from asmil.machine.memory import keep_freed_memory

        keep_freed_memory()
        units = units_of(self.cohort.slides, self.unit)
        outcomes = outcomes_of(self.cohort, units, self.kind)
        device = choose_device(place.device)
        data = TrainingData(units, outcomes, BagLoader(units), self.in_features, device)
        return JobTrainer(data, prediction_format(self.kind, outcomes.names))


class JobTrainer:
    """Does batches of jobs on the same bags."""

    def __init__(self, data: TrainingData, form: PredictionFormat) -> None:
        self._data, self._form = data, form
        self._runner = JobRunner(lambda note: None)

    def __call__(self, batch: JobBatch) -> None:
        if batch.ends_at is not None and time.time() + batch.seconds > batch.ends_at:
            raise OutOfTimeError
        try:
            self._do(batch.jobs, batch.ends_at)
        except OutOfTimeError:
            raise
        except AsmilError:
            if len(batch.jobs) == 1:
                raise
            self._do_one_by_one(batch)

    def _do_one_by_one(self, batch: JobBatch) -> None:
        """Do the jobs that can be done after another one failed, then raise its error."""
        errors = []
        for job in batch.jobs:
            try:
                self._do([job], batch.ends_at)
            except OutOfTimeError:
                raise
            except AsmilError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _do(self, jobs: Sequence[SearchJob], ends_at: float | None) -> None:
        began = time.perf_counter()
        trainings = {job.folder: [self._training(job, fold) for fold in range(job.splits.n_folds)] for job in jobs}
        for job in jobs:
            job.splits.save(job.folder / "splits.csv")
        clock = _EpochClock(ends_at)
        self._train([own for owned in trainings.values() for own in owned if not own.is_done], clock)
        for job in jobs:
            tables = [read_predictions(training.predictions) for training in trainings[job.folder]]
            result = JobResult(
                scores=[fold_score(self._form, table) if len(table) else None for table in tables],
                seconds=(time.perf_counter() - began) / len(jobs),
                epoch_s=clock.epoch_s,
            )
            write_json(job.folder / RESULT_FILE, jsonable(result.model_dump()))

    def _training(self, job: SearchJob, fold: int) -> FoldSeedJob:
        method_name(job.config.method)  # registers a user-defined method in a new process
        data, seed = self._data, job.config.training.seed
        if find_method(job.config.method).model.prepare is not MILModel.prepare:
            data = data.prepared_for(job.config, data.indices(job.splits, fold, "train"))
        return FoldSeedJob(data, job.config, job.splits, fold, seed, RunLayout(job.folder).training(fold, seed))

    def _train(self, trainings: Sequence[FoldSeedJob], clock: _EpochClock) -> None:
        """Train folds and write their predictions; interrupted trainings are resumed."""
        try:
            for training, predictions in self._runner.run(trainings, lambda training, epochs: None, clock.of):
                write_predictions(training.predictions, predictions)
                shutil.rmtree(training.folder / "checkpoints", ignore_errors=True)  # only its predictions are needed
        except Interrupted:
            raise KeyboardInterrupt from None


class _EpochClock:
    """Measures the last epochs of trainings, and stops them when their time has ended.

    Trainings may run at the same time or one after the other: what counts is the time in which any of them runs.
    """

    def __init__(self, ends_at: float | None) -> None:
        self._ends_at = ends_at
        self._last: dict[Path, tuple[tuple[float, float], int]] = {}

    def of(self, training: FoldSeedJob) -> Callable[[Mapping[str, Any]], None]:
        """What is called when an epoch of a training ends."""
        bags = len(training.train.targets)

        def on_epoch(record: Mapping[str, Any]) -> None:
            made_progress()
            now = time.monotonic()
            self._last[training.folder] = ((now - record["seconds"], now), bags)
            if self._ends_at is not None and time.time() > self._ends_at:
                raise OutOfTimeError

        return on_epoch

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch per bag."""
        bags = sum(bags for _, bags in self._last.values())
        return covered([interval for interval, _ in self._last.values()]) / max(1, bags)
