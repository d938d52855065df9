"""Train a run: all folds and seeds of one command, into one folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from asmil.cohort.consistency import refuse_mixed
from asmil.cohort.covariates import describe_covariates, parse_covariates
from asmil.cohort.features import FeatureInfo
from asmil.cohort.inspection import headers_of
from asmil.cohort.leakage import refuse_leakage
from asmil.cohort.manifest import Cohort, load_cohort, refuse_without_covariates
from asmil.cohort.outcomes import outcomes_of
from asmil.cohort.patient_names import patient_name_problems
from asmil.cohort.splits import ROLES, Splits, given_splits, make_splits
from asmil.cohort.units import Unit, units_of
from asmil.errors import AsmilError
from asmil.evaluation.uncertainty.similarity import FILE as SIMILARITY_FILE
from asmil.evaluation.uncertainty.similarity import describe_similarity
from asmil.machine.bf16 import uses_bf16
from asmil.machine.timing import timed
from asmil.models.registry import find_method
from asmil.runs.config import RunConfig, preset_changes
from asmil.runs.covariates import TERMS_FILE
from asmil.runs.description import RunDescription, completed, describe
from asmil.runs.layout import PREDICTIONS_FILE, is_finished
from asmil.runs.predictions import read_predictions, write_predictions
from asmil.runs.stored_labels import FILE as LABELS_FILE
from asmil.runs.stored_labels import store_labels
from asmil.runs.training_slides import FILE as TRAINING_SLIDES_FILE
from asmil.runs.training_slides import describe_training_slides
from asmil.runs.writer import OtherRunError, RunWriter
from asmil.tables.columns import ColumnMapping
from asmil.tasks.base import TaskKind
from asmil.training.initial_checks import class_note, refuse_unsuitable_start
from asmil.training.initial_weights import (
    INIT_FILE,
    Initialization,
    InitialWeights,
    read_initial_weights,
    store_initial,
    try_initialization,
)
from asmil.training.nested import candidates, inner_parts
from asmil.training.run_parts import FoldSeeds, RunObserver, RunPart, TrainingEngine, train_on_engine, trial_model
from asmil.training.shared_steps import (
    OneProcess,
    refuse_unshareable_method,
    refuse_unshareable_run,
    refuse_unshareable_splits,
)
from asmil.training.trackers import require_trackers


@dataclass(frozen=True)
class RunPlan:
    """The plan of a run, made before anything is written.

    finished: trainings that are already in the run folder
    vectors: whether the features are one vector per slide
    initial: pretrained weights for a new run, and which tensors are loaded from them
    """

    cohort: Cohort
    units: Sequence[Unit]
    description: RunDescription
    device: torch.device
    splits: Splits
    finished: int
    vectors: bool
    initial: tuple[InitialWeights, Initialization] | None = None

    def slides_per_fold(self) -> list[dict[str, int]]:
        """The number of slides of each role, fold by fold."""
        folds = range(self.splits.n_folds)
        return [{role: len(self.splits.slides(fold, role)) for role in ROLES} for fold in folds]


def plan_run(
    source: Cohort | Path | str,
    out: Path | str,
    config: RunConfig,
    features: Path | str | None = None,
    observer: RunObserver | None = None,
    item_timeout_s: float | None = 0.0,
    columns: ColumnMapping | None = None,
    processes: OneProcess | None = None,
) -> RunPlan:
    """Check everything that `train_run` needs and plan the run, without writing anything; same arguments."""
    folder, kind, processes = RunWriter(out), config.task.kind, processes or OneProcess()
    require_trackers(config.training.track)
    candidates(config)  # an invalid grid raises before thousands of slides are inspected
    if processes.count > 1:
        refuse_unshareable_run(config, processes.count)
    names = [covariate.name for covariate in parse_covariates(config.data.covariates)]
    cohort = source if isinstance(source, Cohort) else load_cohort(source, features, kind, columns, names)
    _refuse_other_task(cohort, kind)
    refuse_without_covariates(cohort, names)
    units = units_of(cohort.slides, config.unit)
    config = completed(config, cohort, units)
    # a run that began compared all tiles, and its features are the same
    begins = not folder.splits.exists()
    preparing = partial((observer or RunObserver()).preparing, "comparing slides" if begins else "reading headers")
    with timed("checking slides"):
        infos = headers_of(cohort.slides, item_timeout_s, tiles=begins, progress=preparing)
    refuse_mixed(infos)
    vectors = all(info.may_be_slide_vector for info in infos)
    if vectors:
        _refuse_attention(config, infos[0])
    outcomes = outcomes_of(cohort, units, kind)
    description = describe(config, cohort, outcomes.names, infos)
    device = processes.device(config.training.device)
    uses_bf16(config.training.precision, device, "training.precision", "fp32")
    folder.refuse_other_run(description)
    splits = _make_splits(cohort, config) if begins else Splits.load(folder.splits)
    refuse_leakage(cohort, splits, tiles=begins)
    model = trial_model(config, units, outcomes, splits, description.in_features)
    if model.magnifications == "one" and "coarser" in description.features:
        raise AsmilError(
            f"{config.method} reads features of one magnification, but those of {cohort.path} have several; give the "
            "folder of one of them with --features"
        )
    if processes.count > 1:
        refuse_unshareable_method(model, config.method, processes.count)
        refuse_unshareable_splits(units, splits, processes.count)
    initial = None
    if config.init.weights is not None and not (folder.path / INIT_FILE).exists():
        weights = read_initial_weights(Path(config.init.weights))
        if config.init.sha256 != weights.sha256:
            raise AsmilError(
                f"{weights.path}: the file has changed since the settings were read; run the command again"
            )
        initial = (weights, try_initialization(model, weights))
        refuse_unsuitable_start(*initial, cohort, splits, description, model.n_outputs)
    if config.nested.folds:
        for fold in range(splits.n_folds):
            inner_parts(cohort, config, splits, fold)
    finished = sum(is_finished(training) for _, _, training in folder.trainings())
    return RunPlan(cohort, units, description, device, splits, finished, vectors, initial)


def train_run(
    source: Cohort | Path | str,
    out: Path | str,
    config: RunConfig,
    features: Path | str | None = None,
    observer: RunObserver | None = None,
    item_timeout_s: float | None = 0.0,
    columns: ColumnMapping | None = None,
    engine: TrainingEngine | None = None,
    processes: OneProcess | None = None,
    again: bool = False,
) -> RunWriter:
    """Train every fold and seed of a run; an interrupted run is resumed.

    The slides of a test fold are read only after the training of that fold has ended. Only one process at a time can
    train into a folder.

    source: the manifest, or a cohort loaded from one, with the outcomes of the task
    features: the location of the features, for a manifest
    item_timeout_s: time limit for the header of one feature file, see `inspect_slides`
    columns: which columns of a manifest to read, see `load_cohort`
    engine: trains folds and seeds in parallel, with the same results; None: in this process, one after the other
    processes: the processes that share the steps of the training, led by this one; None: this process alone
    again: train from the start if the folder contains a run that was made from something else, instead of refusing
    """
    folder, observer = RunWriter(out), observer or RunObserver()
    with folder.locked():
        try:
            plan = plan_run(source, out, config, features, observer, item_timeout_s, columns, processes)
        except OtherRunError:
            if not again:
                raise
            # planned as if the folder was empty: what cannot be trained does not cost the run that is there
            empty = folder.path / "empty"
            plan = plan_run(source, empty, config, features, observer, item_timeout_s, columns, processes)
            folder.clear()
        _train(plan, folder, plan.description.config, observer, engine, processes or OneProcess())
    return folder


def _train(
    plan: RunPlan,
    folder: RunWriter,
    config: RunConfig,
    observer: RunObserver,
    engine: TrainingEngine | None,
    processes: OneProcess,
) -> None:
    cohort, splits = plan.cohort, plan.splits
    folder.begin(plan.description)
    if not folder.splits.exists():
        splits.save(folder.splits)
    if not (folder.path / TRAINING_SLIDES_FILE).exists():
        with timed("checking slides"):
            describe_training_slides(cohort.slides, splits).save(folder.path)
    if not (folder.path / SIMILARITY_FILE).exists():
        with timed("checking slides"):
            similarity = describe_similarity(cohort.slides, splits)
        if similarity is not None:
            similarity.save(folder.path)
    if not (folder.path / LABELS_FILE).exists():
        store_labels(folder.path, cohort, config.task.kind)
    if plan.initial is not None:
        store_initial(folder.path, *plan.initial)
    observer.began(plan.description, splits)
    for line in initialization_lines(plan):
        observer.note(line)
    if plan.vectors:
        observer.note("one vector per slide: every bag is one tile without coordinates, and there are no heat maps")
    doubts = [str(problem) for problem in patient_name_problems(cohort, splits)]
    for note in [*(f"{cohort.path}: {note}" for note in cohort.notes), *doubts, *_notes(config, cohort, plan.units)]:
        observer.note(note)

    part = RunPart(cohort, config, folder.path.resolve(), plan.description.in_features)
    if engine is None:
        trainings = part.open(plan.device, observer, processes)
        if processes.count > 1 and not is_finished(folder.training(0, config.training.seed)):
            observer.note(
                f"{processes.count} processes share the bags of every step; steps are computed by plain PyTorch"
            )
            processes.from_leader(part)
        trainings.train(*(FoldSeeds(fold, config.all_seeds) for fold in range(splits.n_folds)))
    else:
        part.open(plan.device, observer)  # write the disk cache once, before the workers read it
        train_on_engine(part, splits.n_folds, engine, observer)
    trained = [folder.training(fold, seed) for fold in range(splits.n_folds) for seed in config.all_seeds]
    tables = [read_predictions(path / PREDICTIONS_FILE) for path in trained]
    if config.data.covariates:
        of_terms = [read_predictions(path / TERMS_FILE) for path in trained]
        write_predictions(folder.path / TERMS_FILE, pd.concat(of_terms, ignore_index=True))
    write_predictions(folder.predictions, pd.concat(tables, ignore_index=True))


def initialization_lines(plan: RunPlan) -> list[str]:
    """Which pretrained weights a new run uses, one line each."""
    if plan.initial is None:
        return []
    weights, done = plan.initial
    return [*done.lines(weights.path), *class_note(weights, plan.description)]


def _refuse_other_task(cohort: Cohort, kind: TaskKind) -> None:
    if cohort.task != kind:
        raise AsmilError(
            f"{cohort.path}: the cohort was loaded for {cohort.task or 'no task'}, but the task of the run is {kind}; "
            f"load it for the task {kind}"
        )


def _refuse_attention(config: RunConfig, info: FeatureInfo) -> None:
    """Raise if an attention method is to be trained on slide vectors, which have no tiles."""
    if find_method(config.method).model.score_axes:
        raise AsmilError(
            f"{info.source}: the files contain one vector per slide, but {config.method} needs the tiles of a slide; "
            "use --method linear (or mean_pooling), or give tile features"
        )


def _make_splits(cohort: Cohort, config: RunConfig) -> Splits:
    data = config.data
    if data.splits is not None:
        return given_splits(cohort, Path(data.splits), config.folds, config.task.kind)
    return make_splits(
        cohort,
        config.folds,
        config.training.seed,
        data.val_share,
        data.test_share,
        config.task.kind,
        by_site=data.leave_out == "site",
    )


def _notes(config: RunConfig, cohort: Cohort, units: Sequence[Unit]) -> Iterator[str]:
    if changes := preset_changes(config):
        listed = ", ".join(f"{name} = {value} (paper: {before})" for name, (value, before) in changes.items())
        yield f"preset {config.preset}: {listed}"
    if config.folds > 1 and any(slide.split for slide in cohort.slides):
        yield f"the manifest's column 'split' is not used, since {config.folds} folds were requested"
    if config.data.leave_out == "site" and any(slide.split or slide.fold is not None for slide in cohort.slides):
        yield "the manifest's column 'split' or 'fold' is not used, since each site is one fold"
    if config.data.max_tiles is not None:
        yield f"training bags are limited to {config.data.max_tiles} tiles, drawn anew every epoch"
    yield from describe_covariates(units, parse_covariates(config.data.covariates))
    if len(units) < len(cohort.slides):
        yield f"the slides of a patient are joined: {len(cohort.slides)} slides, {len(units)} bags"
