"""Which jobs of a sweep are done: those whose runs were trained on the same cohort with the same settings."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.cohort.covariates import parse_covariates
from asmil.cohort.features import FeatureInfo
from asmil.cohort.inspection import headers_of
from asmil.cohort.manifest import Cohort, load_cohort
from asmil.cohort.outcomes import outcomes_of
from asmil.cohort.units import units_of
from asmil.errors import AsmilError
from asmil.experiments.plan import TrainingJob
from asmil.experiments.store import forget_result, is_done, measured_from, measured_record, results_table
from asmil.runs.description import completed, describe, read_description
from asmil.runs.layout import RunLayout
from asmil.settings.made_from import DoneBefore, MadeFrom, Record
from asmil.tasks.base import TaskKind


def jobs_to_do(jobs: Sequence[TrainingJob], done: DoneBefore) -> list[TrainingJob]:
    """The jobs that are not done; results made from other inputs or settings are refused, or made again."""
    others = {out: _Others(out) for out in {job.out for job in jobs}}
    inputs = _Inputs()
    to_do, outdated, replaced = [], [], []
    for job in jobs:
        replaced += [folder for folder in others[job.out].of_job(job) if not _keeps(job, folder, inputs, done)]
        if RunLayout(job.folder).config.is_file() and not _keeps(job, job.folder, inputs, done):
            outdated.append(job)
            to_do.append(job)
        elif not is_done(job):
            to_do.append(job)
    for out in others:
        done.refuse(out)
    for job in outdated:
        forget_result(job)
    for folder in set(replaced):
        shutil.rmtree(folder)
    return to_do


def _keeps(job: TrainingJob, folder: Path, inputs: _Inputs, done: DoneBefore) -> bool:
    """Whether a run folder was made from what the job asks for; if that cannot be read, the training reports it."""
    measured = is_done(job) and folder == job.folder
    try:
        made_from = inputs.made_from(job)
        record = read_description(RunLayout(folder), job.trial.method).made_from().record()
    except AsmilError:
        if measured:
            raise  # unknown whether the result is still valid
        return True
    if measured:
        made_from = MadeFrom(made_from.values, measured_from(job).contents)
        record = Record(values=record.values, **_measured(job, made_from))
    return done.keeps(job.name, record, made_from)


def _measured(job: TrainingJob, made_from: MadeFrom) -> dict[str, Any]:
    """Version and files of the measurement; results of versions that did not record them are not compared."""
    stored = measured_record(job)
    if stored is None:
        return {"contents": {name: {} for name in made_from.contents}}
    return {"asmil": stored.asmil, "contents": stored.contents}


_Source = tuple[Path, Path | None, TaskKind, tuple[str, ...]]
"""A manifest, its features, the task and the covariates."""


class _Inputs:
    """What the jobs of one command are made from; a cohort is read once for all of its jobs."""

    def __init__(self) -> None:
        self._cohorts: dict[_Source, tuple[Cohort, list[FeatureInfo]]] = {}

    def made_from(self, job: TrainingJob) -> MadeFrom:
        """Manifest rows, features and settings of a job."""
        config = job.config()
        names = tuple(covariate.name for covariate in parse_covariates(config.data.covariates))
        key = (job.manifest, job.features, job.task, names)
        if key not in self._cohorts:
            cohort = load_cohort(job.manifest, job.features, job.task, covariates=names)
            self._cohorts[key] = (cohort, headers_of(cohort.slides))
        cohort, infos = self._cohorts[key]
        units = units_of(cohort.slides, config.unit)
        outcomes = outcomes_of(cohort, units, job.task)
        return describe(completed(config, cohort, units), cohort, outcomes.names, infos).made_from()


class _Others:
    """The results in a sweep's folder, to find those for the same row of the table as a job."""

    def __init__(self, out: Path) -> None:
        table = results_table(out)
        self._rows: dict[tuple[Any, ...], set[Path]] = {}
        for row in table.to_dict("records"):
            point = {str(name): value for name, value in row.items() if str(name).startswith("set.")}
            key = _row_key(row["cohort"], row["variant"], point, row["seed"])
            self._rows.setdefault(key, set()).add(out.absolute() / str(row["run"]))

    def of_job(self, job: TrainingJob) -> list[Path]:
        """Other run folders with the same cohort, variant, point and seed, made with other settings."""
        point = {f"set.{name}": value for name, value in job.trial.point.items()}
        keys = [_row_key(job.trial.cohort, job.trial.variant, point, seed) for seed in job.seeds]
        folders = {folder for key in keys for folder in self._rows.get(key, set())}
        return sorted(folders - {job.folder})


def _row_key(cohort: Any, variant: Any, point: dict[str, Any], seed: Any) -> tuple[Any, ...]:
    known = {name: value for name, value in point.items() if not pd.isna(value)}
    return (cohort, variant, tuple(sorted(known.items())), int(seed))
