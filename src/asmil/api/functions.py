"""Cohorts to runs, and runs to metrics and predictions: the functions that most scripts need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack, overload

import pandas as pd
from rich.console import Console

from asmil.api.inputs import as_path, run_path, tree, warn_of_changed_labels
from asmil.api.progress import training_progress
from asmil.api.run import BagLike, PredictOptions, TrainedRun, load_run
from asmil.cohort import manifest
from asmil.cohort.covariates import parse_covariates
from asmil.cohort.manifest import Cohort
from asmil.cohort.table import OUTCOME_COLUMNS
from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.comparison import Comparison, compare_runs, write_comparison
from asmil.evaluation.report import write_report
from asmil.evaluation.run_evaluation import Role, RunEvaluation
from asmil.models.base import MILModel
from asmil.models.own_method import confirm
from asmil.runs.config import RunConfig
from asmil.runs.prediction import SlidePrediction
from asmil.runs.settings_file import SettingsFile, read_settings_file
from asmil.runs.writer import RunWriter
from asmil.settings.config import merge
from asmil.tables.columns import parse_mapping
from asmil.tables.time_units import TimeUnit
from asmil.tasks.base import TaskKind
from asmil.training.initial_weights import resolve_with_init
from asmil.training.interruption import Interrupted
from asmil.training.run import RunPlan, plan_run, train_run
from asmil.training.run_parts import TrainingEngine
from asmil.training.shared_steps import OneProcess


def load_cohort(
    path: Path | str,
    *,
    features: Path | str | None = None,
    task: TaskKind | None = "classification",
    columns: Mapping[str, str] | None = None,
    covariates: Sequence[str] = (),
) -> Cohort:
    """Read a manifest and find the features of its slides.

    path: a CSV, Excel or Parquet file with the columns slide, label (survival: time, event), and optionally patient,
        site, split, fold, features
    features: a folder of feature files, a cohort file or a pack; default: the folder `features` beside the manifest
    task: the task whose outcomes the manifest holds; None for slides without outcomes
    columns: which columns to read, e.g. {"patient": "case_id", "label": "subtype"}; others are found by their names,
        and `notes` of the result says how
    covariates: names of columns to keep, for `train` with covariates

    All errors of a manifest are reported together, in one `AsmilError`.
    """
    if task is not None and task not in OUTCOME_COLUMNS:
        raise AsmilError(f"task {task!r} is unknown: {did_you_mean(str(task), OUTCOME_COLUMNS)}")
    names = [covariate.name for covariate in parse_covariates(covariates)]
    return manifest.load_cohort(path, features, task, columns, names)


SETTINGS_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class TrainingRequest:
    """What is trained, and where: a settings file and what was given beside it, together.

    engine: trains folds and seeds at the same time; None: in this process, one after the other
    """

    cohort: Cohort | Path
    out: Path
    config: RunConfig
    features: Path | None = None
    columns: Mapping[str, str] | None = None
    engine: TrainingEngine | None = None
    item_timeout: float | None = 0.0
    again: bool = False

    @classmethod
    def of(
        cls,
        cohort: Cohort | Path | str | None,
        out: Path | str | None = None,
        *,
        config: Path | str | None = None,
        method: str | type[MILModel] | None = None,
        preset: str | None = None,
        settings: Mapping[str, Any] | None = None,
        features: Path | str | None = None,
        columns: Mapping[str, str] | None = None,
        **more: Any,
    ) -> TrainingRequest:
        """A request from what a user gives.

        cohort: a cohort, the path of its manifest, or that of a settings file which names it
        config: a settings file; what is given beside it has precedence
        settings: by sections
        """
        if isinstance(cohort, Path | str) and Path(cohort).suffix.lower() in SETTINGS_FILES:
            if config is not None:
                raise AsmilError(f"{cohort} and --config {config} are both settings files; give one of them")
            cohort, config = None, cohort
        written = SettingsFile(None, None, None, None, None, {}) if config is None else read_settings_file(Path(config))
        cohort, out = cohort or written.cohort, out or written.out
        if cohort is None:
            raise AsmilError("give COHORT, the manifest, or a settings file that names it")
        if out is None:
            raise AsmilError("give --out, the run folder, or name it in the settings file")
        if method is None and written.method is not None:
            confirm(written.method, None, str(config))
        asked, changes = dict(settings or {}), dict(written.changes)
        if "weights" in asked.get("init", {}):
            changes.pop("init", None)  # the hash in the file is that of other weights
        resolved = resolve_with_init(
            method or written.method, preset or written.preset or "paper", merge(changes, asked), out
        )
        return cls(
            cohort if isinstance(cohort, Cohort) else Path(cohort),
            Path(out),
            resolved,
            as_path(features) or written.features,
            columns or (parse_mapping(written.columns) if written.columns else None),
            **more,
        )

    def plan(self, processes: OneProcess | None = None) -> RunPlan:
        """Check everything that the training needs, without writing anything."""
        return plan_run(
            self.cohort,
            self.out,
            self.config,
            self.features,
            item_timeout_s=self.item_timeout,
            columns=self.columns,
            processes=processes,
        )

    def run(self, progress: Console, log: Path | None = None, processes: OneProcess | None = None) -> RunWriter:
        """Train, with progress on a console and in a log file."""
        try:
            with training_progress(progress, log) as observer:
                return train_run(
                    self.cohort,
                    self.out,
                    self.config,
                    self.features,
                    observer,
                    self.item_timeout,
                    self.columns,
                    self.engine,
                    processes,
                    self.again,
                )
        except Interrupted:
            again = "make the same call, or run the same command, again to resume"
            raise KeyboardInterrupt(f"stopped; everything done so far is in {self.out}; {again}") from None


def training_engine(
    engine: str | None, address: str | None, workers: int | None, cpus: float, gpus: float
) -> TrainingEngine | None:
    """Where folds and seeds are trained at the same time; None: one after the other."""
    if engine is None and (workers or address or gpus):
        raise AsmilError("--workers, --address and --gpus belong to an engine; give --engine local or --engine ray")
    return None if engine is None else TrainingEngine(engine, address, workers, cpus=cpus, gpus=gpus)


def train(
    cohort: Cohort | Path | str,
    out: Path | str | None = None,
    *,
    config: Path | str | None = None,
    method: str | type[MILModel] | None = None,
    preset: str | None = None,
    task: TaskKind | None = None,
    features: Path | str | None = None,
    columns: Mapping[str, str] | None = None,
    covariates: Sequence[str] | None = None,
    time_unit: TimeUnit | None = None,
    folds: int | None = None,
    seeds: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    init: Path | str | None = None,
    engine: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    cpus: float = 1,
    gpus: float = 0,
    item_timeout: float | None = 0.0,
    log: Path | str | None = None,
    again: bool = False,
    progress: bool = True,
) -> TrainedRun:
    """Train a method on a cohort: every fold and seed, into one run folder.

    cohort: what `load_cohort` returned, the path of a manifest, or that of a settings file that names it
    out: the run folder; an interrupted run in it is resumed, a finished one is only loaded
    config: a settings file, as `init` and `plan` write it; what is given beside it has precedence
    method, preset: see `asmil.methods` and docs/methods.md; the method may be your own class, or `file.py:Class`;
        default: asmil, or the method of the weights, and its preset paper
    task: classification (default), survival, regression or multilabel; a loaded cohort knows its task
    features, columns: where the features are and which columns to read, if `cohort` is a path; see `load_cohort`
    covariates: columns of the manifest that are added to the logits, e.g. ["age", "stage:category"]; a loaded cohort
        must have them
    time_unit: of survival times, e.g. "days"; default: as the name of their column says (`time_days`)
    folds: of cross-validation; default: 1, a single split
    seeds: how often each fold is trained, with the seeds `seed`, `seed + 1`, ...; default: once, with seed 0
    init: pretrained weights to start from: a checkpoint, run or bundle of asmil, or official weights
    settings: further settings by their dotted names, e.g. {"training.epochs": 30, "anchor.normalizer": "nsf"}
    engine, address, workers, cpus, gpus: train folds and seeds at the same time: local (processes) or ray, the address
        of the Ray cluster, number of processes, cores and GPUs per worker for Ray
    item_timeout: leave out, and report, a feature file that takes longer than this many seconds; 0: no limit
    log: a file that plain lines of progress are appended to
    again: train from the start if the folder contains a run with other inputs or settings, instead of refusing
    progress: whether progress bars are shown, on the standard error stream
    """
    for name, given in (("features", features), ("columns", columns)):
        if isinstance(cohort, Cohort) and given is not None:
            raise AsmilError(f"{cohort.path}: this cohort is loaded already; give `{name}` to load_cohort instead")
    shorthands = {
        "folds": folds,
        "seeds": seeds,
        "training.seed": seed,
        "task.kind": task or (cohort.task if isinstance(cohort, Cohort) else None),
        "task.time_unit": time_unit,
        "data.covariates": None if covariates is None else list(covariates),
        "init.weights": None if init is None else str(init),
    }
    given_shorthands = {name: value for name, value in shorthands.items() if value is not None}
    request = TrainingRequest.of(
        cohort,
        out,
        config=config,
        method=method,
        preset=preset,
        settings=tree({**given_shorthands, **(settings or {})}),
        features=features,
        columns=columns,
        engine=training_engine(engine, address, workers, cpus, gpus),
        item_timeout=item_timeout,
        again=again,
    )
    folder = request.run(Console(quiet=not progress, stderr=True), as_path(log))
    return load_run(folder.path, request.config.training.device, method=request.config.method)


def evaluate(
    run: TrainedRun | Path | str,
    role: Role = "test",
    *,
    resamples: int = 2000,
    seed: int = 0,
    unit: UnitKind = "slide",
    threshold: str | None = None,
    out: Path | str | None = None,
) -> RunEvaluation:
    """Compute every metric of a run's task with a 95 % confidence interval by patient; see `TrainedRun.evaluate`.

    out: a folder for the report; `asmil.evaluation.write_report` writes one of several runs
    """
    evaluation = load_run(run).evaluate(role, resamples=resamples, seed=seed, unit=unit, threshold=threshold)
    if out is not None:
        write_report(evaluation, out)
    return evaluation


def compare(
    runs: Sequence[TrainedRun | Path | str],
    role: Role = "test",
    *,
    reference: TrainedRun | Path | str | None = None,
    all_pairs: bool = False,
    resamples: int = 2000,
    seed: int = 0,
    unit: UnitKind = "slide",
    names: Sequence[str] = (),
    out: Path | str | None = None,
) -> Comparison:
    """Compare runs on the same slides: metrics, paired differences with intervals, tests, Holm's correction.

    runs: two or more runs of one task
    role: the part of the cohort, `test` or `val`
    reference: the run that the others are compared with, one of `runs`; default: the first
    all_pairs: compare every pair of runs
    resamples, seed: of the bootstrap over patients and seeds
    unit: `patient` averages the predictions of a patient's slides first
    names: of the runs in the report, in their order; default: the names of their folders
    out: a folder for the page and tables

    A run that cannot be read is reported in `problems` of the result, and the others are compared.
    """
    if isinstance(runs, TrainedRun | Path | str):
        raise AsmilError("compare needs a list of at least two runs; to evaluate a single run, use asmil.evaluate")
    paths = [run_path(run) for run in runs]
    with_reference = None if reference is None else run_path(reference)
    comparison = compare_runs(
        paths,
        role,
        resamples,
        seed,
        reference=with_reference,
        all_pairs=all_pairs,
        unit=unit,
        names=names,
    )
    warn_of_changed_labels(path for path in paths if (path / "config.yaml").is_file())
    if out is not None:
        write_comparison(comparison, out)
    return comparison


@overload
def predict(
    run: TrainedRun | Path | str, slides: BagLike, *, covariates: Mapping[str, Any] | None = None
) -> SlidePrediction: ...


@overload
def predict(
    run: TrainedRun | Path | str, slides: Cohort | Path | str, **options: Unpack[PredictOptions]
) -> pd.DataFrame: ...


def predict(
    run: TrainedRun | Path | str, slides: BagLike | Cohort | Path | str, **options: Any
) -> SlidePrediction | pd.DataFrame:
    """Predict new slides with all models of a run, averaged; see `TrainedRun.predict` for the options."""
    return load_run(run).predict(slides, **options)
