"""The functions of the public interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, overload

import pandas as pd
from rich.console import Console

from asmil.api.progress import training_progress
from asmil.api.run import BagLike, PredictOptions, TrainedRun, load_run
from asmil.cohort import manifest
from asmil.cohort.manifest import Cohort
from asmil.cohort.table import OUTCOME_COLUMNS
from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.comparison import Comparison, compare_runs
from asmil.evaluation.run_evaluation import Role, RunEvaluation
from asmil.models.base import MILModel
from asmil.runs.prediction import SlidePrediction
from asmil.settings.config import merge, nested
from asmil.tables.time_units import TimeUnit
from asmil.tasks.base import TaskKind
from asmil.training.initial_weights import resolve_with_init
from asmil.training.interruption import Interrupted
from asmil.training.run import train_run


def load_cohort(
    path: Path | str,
    *,
    features: Path | str | None = None,
    task: TaskKind | None = "classification",
    columns: Mapping[str, str] | None = None,
) -> Cohort:
    """Read a manifest and find the features of its slides.

    path: a CSV, Excel or Parquet file with the columns slide, label (survival: time, event), and optionally patient,
        site, split, fold, features
    features: a folder of feature files, a cohort file or a pack; default: the folder `features` beside the manifest
    task: the task whose outcomes the manifest holds; None for slides without outcomes
    columns: which columns to read, e.g. {"patient": "case_id", "label": "subtype"}; others are found by their names,
        and `notes` of the result says how

    All errors of a manifest are reported together, in one `AsmilError`.
    """
    if task is not None and task not in OUTCOME_COLUMNS:
        raise AsmilError(f"task {task!r} is unknown: {did_you_mean(str(task), OUTCOME_COLUMNS)}")
    return manifest.load_cohort(path, features, task, columns)


def train(
    cohort: Cohort | Path | str,
    out: Path | str,
    *,
    method: str | type[MILModel] | None = None,
    preset: str = "paper",
    task: TaskKind | None = None,
    features: Path | str | None = None,
    columns: Mapping[str, str] | None = None,
    time_unit: TimeUnit | None = None,
    folds: int = 1,
    seeds: int = 1,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    init: Path | str | None = None,
    again: bool = False,
    progress: bool = True,
) -> TrainedRun:
    """Train a method on a cohort: every fold and seed, into one run folder.

    cohort: what `load_cohort` returned, or the path of a manifest
    out: the run folder; an interrupted run in it is resumed, a finished one is only loaded
    method, preset: see `asmil.methods` and docs/methods.md; the method may be your own class, or `file.py:Class`;
        default: asmil, or the method of the weights
    task: classification (default), survival, regression or multilabel; a loaded cohort knows its task
    features, columns: where the features are and which columns to read, if `cohort` is a path; see `load_cohort`
    time_unit: of survival times, e.g. "days"; default: as the name of their column says (`time_days`)
    folds: of cross-validation; 1 is a single split
    seeds: how often each fold is trained, with the seeds `seed`, `seed + 1`, ...
    init: pretrained weights to start from: a checkpoint, run or bundle of asmil, or official weights
    settings: further settings by their dotted names, e.g. {"training.epochs": 30, "anchor.normalizer": "nsf"}
    again: train from the start if the folder contains a run with other inputs or settings, instead of refusing
    progress: whether progress bars are shown, on the standard error stream
    """
    for name, given in (("features", features), ("columns", columns)):
        if isinstance(cohort, Cohort) and given is not None:
            raise AsmilError(f"{cohort.path}: this cohort is loaded already; give `{name}` to load_cohort instead")
    kind = task or (cohort.task if isinstance(cohort, Cohort) else None) or "classification"
    asked: dict[str, Any] = {"folds": folds, "seeds": seeds, "training": {"seed": seed}, "task": {"kind": kind}}
    if time_unit is not None:
        asked["task"]["time_unit"] = time_unit
    if init is not None:
        asked["init"] = {"weights": str(init)}
    for name, value in (settings or {}).items():
        asked = merge(asked, nested(name, value))
    config = resolve_with_init(method, preset, asked, out)
    try:
        with training_progress(Console(quiet=not progress, stderr=True)) as observer:
            folder = train_run(cohort, out, config, features, observer, columns=columns, again=again)
    except Interrupted:
        raise KeyboardInterrupt(f"training was stopped; make the same call again to resume {out}") from None
    return load_run(folder.path, config.training.device, method=config.method)


def evaluate(
    run: TrainedRun | Path | str,
    role: Role = "test",
    *,
    resamples: int = 2000,
    seed: int = 0,
    unit: UnitKind = "slide",
    threshold: str | None = None,
) -> RunEvaluation:
    """Compute every metric of a run's task with a 95 % confidence interval by patient; see `TrainedRun.evaluate`."""
    return load_run(run).evaluate(role, resamples=resamples, seed=seed, unit=unit, threshold=threshold)


def compare(
    runs: Sequence[TrainedRun | Path | str],
    role: Role = "test",
    *,
    reference: TrainedRun | Path | str | None = None,
    all_pairs: bool = False,
    resamples: int = 2000,
    seed: int = 0,
    unit: UnitKind = "slide",
) -> Comparison:
    """Compare runs on the same slides: metrics, paired differences with intervals, tests, Holm's correction.

    runs: two or more runs of one task
    role: the part of the cohort, `test` or `val`
    reference: the run that the others are compared with, one of `runs`; default: the first
    all_pairs: compare every pair of runs
    resamples, seed: of the bootstrap over patients and seeds
    unit: `patient` averages the predictions of a patient's slides first

    A run that cannot be read is reported in `problems` of the result, and the others are compared.
    """
    if isinstance(runs, TrainedRun | Path | str):
        raise AsmilError("compare needs a list of at least two runs; to evaluate a single run, use asmil.evaluate")
    return compare_runs(
        [_path(run) for run in runs],
        role,
        resamples,
        seed,
        reference=None if reference is None else _path(reference),
        all_pairs=all_pairs,
        unit=unit,
    )


@overload
def predict(run: TrainedRun | Path | str, slides: BagLike) -> SlidePrediction: ...


@overload
def predict(
    run: TrainedRun | Path | str, slides: Cohort | Path | str, **options: Unpack[PredictOptions]
) -> pd.DataFrame: ...


def predict(
    run: TrainedRun | Path | str, slides: BagLike | Cohort | Path | str, **options: Any
) -> SlidePrediction | pd.DataFrame:
    """Predict new slides with all models of a run, averaged; see `TrainedRun.predict` for the options."""
    return load_run(run).predict(slides, **options)


def _path(run: TrainedRun | Path | str) -> Path | str:
    return run.path if isinstance(run, TrainedRun) else run
