"""A run: the trainings of one command, fold by fold and seed by seed, into one folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.cohort.consistency import refuse_mixed
from asmil.cohort.features import FeatureInfo
from asmil.cohort.inspection import inspect_slides
from asmil.cohort.leakage import refuse_leakage
from asmil.cohort.loader import BagLoader
from asmil.cohort.manifest import Cohort, load_cohort
from asmil.cohort.outcomes import Outcomes, outcomes_of
from asmil.cohort.splits import Splits, make_splits
from asmil.cohort.units import Unit, units_of
from asmil.errors import AsmilError
from asmil.models.base import MILModel
from asmil.tasks.base import TaskKind
from asmil.training.config import RunConfig, with_settings
from asmil.training.executors import JobRunner
from asmil.training.fold_seed_job import FoldSeedJob, TrainingData
from asmil.training.nested import InnerSearch, candidates, inner_parts, own_data
from asmil.training.prediction_table import read_predictions, write_predictions
from asmil.training.run_folder import RunDescription, RunFolder, describe
from asmil.training.setup import build_model, build_stabilizers, choose_device, uses_bf16
from asmil.training.task_setup import build_task


class RunObserver:
    """Is told how a run goes on; the default listens to nothing."""

    def began(self, description: RunDescription, splits: Splits) -> None:
        """The cohort is read and split."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Work before the first training: so many of all slides are done."""

    def note(self, text: str) -> None:
        """Something that the user may not expect."""

    def already_trained(self, fold: int, seed: int) -> None:
        """The training of a fold and seed was done by an earlier call."""

    def training(self, fold: int, seed: int, epochs: int) -> None:
        """The training of a fold and seed begins, or resumes; it takes so many epochs in all."""

    def epoch(self, fold: int, seed: int, record: Mapping[str, Any]) -> None:
        """An epoch has ended."""


def train_run(
    source: Cohort | Path | str,
    out: Path | str,
    config: RunConfig,
    features: Path | str | None = None,
    observer: RunObserver | None = None,
    item_timeout_s: float | None = 0.0,
) -> RunFolder:
    """Train every fold and seed of a run; one that was begun before goes on where it stopped.

    The slides of a test fold are read only after the training of that fold has ended. One process trains into a
    folder at a time; a second is refused.

    source: the manifest, or a cohort that was read from one, with the outcomes of the task
    features: where the features are, for a manifest
    item_timeout_s: for the header of one feature file, see `inspect_slides`
    """
    folder = RunFolder(out)
    with folder.locked():
        _train(source, folder, config, features, observer or RunObserver(), item_timeout_s)
    return folder


def _train(
    source: Cohort | Path | str,
    folder: RunFolder,
    config: RunConfig,
    features: Path | str | None,
    observer: RunObserver,
    item_timeout_s: float | None,
) -> None:
    kind = config.task.kind
    candidates(config)  # a wrong grid is told before thousands of slides are looked at
    cohort = source if isinstance(source, Cohort) else load_cohort(source, features, kind)
    _refuse_other_task(cohort, kind)
    infos = _inspect(cohort, observer, item_timeout_s)
    refuse_mixed(infos)
    units = units_of(cohort.slides, config.unit)
    outcomes = outcomes_of(cohort, units, kind)
    description = describe(config, cohort, outcomes.names, infos)
    device = choose_device(config.training.device)
    uses_bf16(config.training.precision, device)  # refused before there is a folder
    splits = Splits.load(folder.splits) if folder.splits.exists() else _make_splits(cohort, config)
    refuse_leakage(cohort, splits)
    model = _trial_model(config, units, outcomes, splits, description.in_features)
    if config.nested.folds:
        for fold in range(splits.n_folds):
            inner_parts(cohort, config, splits, fold)
    folder.begin(description)
    if not folder.splits.exists():
        splits.save(folder.splits)
    observer.began(description, splits)
    for note in _notes(config, cohort, units):
        observer.note(note)

    packing = partial(observer.preparing, "packing features")
    loader = BagLoader(units, config.data.cache, folder.path / "cache", model.prepare, packing=packing)
    data = TrainingData(units, outcomes, loader, description.in_features, device)
    runner = JobRunner(observer.note)
    tables: list[pd.DataFrame] = []
    for fold in range(splits.n_folds):
        chosen = _chosen(data, cohort, config, splits, fold, folder, observer)
        own = own_data(data, chosen, data.places(splits, fold, "train"))
        seeds = range(config.training.seed, config.training.seed + config.seeds)
        jobs = [FoldSeedJob(own, chosen, splits, fold, seed, folder.training(fold, seed)) for seed in seeds]
        left = [job for job in jobs if not job.is_done]
        for job in jobs:
            if job.is_done:
                observer.already_trained(fold, job.seed)
        for job, predictions in runner.run(
            left,
            lambda job, epochs: observer.training(job.fold, job.seed, epochs),
            lambda job: partial(observer.epoch, job.fold, job.seed),
        ):
            write_predictions(job.predictions, predictions)
        tables += [read_predictions(job.predictions) for job in jobs]
    write_predictions(folder.predictions, pd.concat(tables, ignore_index=True))


def _refuse_other_task(cohort: Cohort, kind: TaskKind) -> None:
    if cohort.task != kind:
        raise AsmilError(
            f"{cohort.path}: it was loaded for {cohort.task or 'no task'}, but the run is to learn {kind}; load the "
            f"cohort for the task {kind}"
        )


def _inspect(cohort: Cohort, observer: RunObserver, item_timeout_s: float | None) -> list[FeatureInfo]:
    infos = []
    for done, (_, found) in enumerate(inspect_slides(cohort.slides, item_timeout_s=item_timeout_s), start=1):
        if isinstance(found, AsmilError):
            raise found
        infos.append(found)
        observer.preparing("reading headers", done, len(cohort))
    return infos


def _make_splits(cohort: Cohort, config: RunConfig) -> Splits:
    data = config.data
    return make_splits(
        cohort,
        config.folds,
        config.training.seed,
        data.val_share,
        data.test_share,
        config.task.kind,
        by_site=data.leave_out == "site",
    )


def _trial_model(
    config: RunConfig, units: Sequence[Unit], outcomes: Outcomes, splits: Splits, in_features: int
) -> MILModel:
    """A model as the last fold trains it. What cannot be built for any fold is refused before there is a folder."""
    for settings in candidates(config):
        chosen = with_settings(config, settings)
        for fold in range(splits.n_folds):
            trained = set(splits.slides(fold, "train"))
            train = [i for i, unit in enumerate(units) if unit.slides[0].slide in trained]
            task = build_task(chosen, outcomes, train)
        model = build_model(chosen, in_features, task.n_outputs, config.training.seed)
        build_stabilizers(chosen, model, config.training.seed)
    return model


def _notes(config: RunConfig, cohort: Cohort, units: Sequence[Unit]) -> Iterator[str]:
    if config.folds > 1 and any(slide.split for slide in cohort.slides):
        yield f"the manifest's column 'split' is not used, since {config.folds} folds were asked for"
    if config.data.leave_out == "site" and any(slide.split or slide.fold is not None for slide in cohort.slides):
        yield "the manifest's column 'split' or 'fold' is not used, since every site is a fold"
    if config.data.max_tiles is not None:
        yield f"training bags are capped at {config.data.max_tiles} tiles, drawn anew every epoch"
    if len(units) < len(cohort.slides):
        yield f"the slides of a patient are joined: {len(cohort.slides)} slides, {len(units)} bags"


def _chosen(
    data: TrainingData,
    cohort: Cohort,
    config: RunConfig,
    splits: Splits,
    fold: int,
    folder: RunFolder,
    observer: RunObserver,
) -> RunConfig:
    """The settings of a fold: those of the run, or with nested cross-validation those that it chooses."""
    if not config.nested.folds:
        return config
    search = InnerSearch(data, cohort, config, splits, fold, folder.fold(fold))
    settings = search.choose(lambda done, total: observer.preparing(f"fold {fold}: choosing settings", done, total))
    observer.note(f"fold {fold} chose {', '.join(f'{name} = {value}' for name, value in settings.items())}")
    return with_settings(config, settings)
