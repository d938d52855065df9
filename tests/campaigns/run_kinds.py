"""The files of a run folder, each read by the verb that needs it: predict, evaluate, stability, train (resumed)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from asmil.cohort.features import FeatureSource
from asmil.cohort.manifest import Slide
from asmil.cohort.units import units_of
from asmil.errors import AsmilError
from asmil.evaluation.evaluate import evaluate_run
from asmil.evaluation.stability import read_stability, summary_of
from asmil.extraction.settings import parse_extraction
from asmil.runs.config import resolve
from asmil.runs.operating_point import OperatingPoint
from asmil.runs.prediction import RunPredictor
from asmil.runs.run import read_run, read_training
from asmil.settings.folder_settings import claim_folder
from asmil.training.run import train_run
from tests.campaigns.contents import Aside
from tests.campaigns.kinds import Kind
from tests.training.small_task_cohorts import write_cohort

TRAINING = "run/fold-0/seed-0"
EPOCHS = 2
_CHANGES: dict[str, dict[str, Any]] = {
    "classification": {"seeds": 2, "record": {"attention": "all"}},
    "survival": {"task": {"kind": "survival", "loss": "hazard"}},
    "cox": {"task": {"kind": "survival", "loss": "cox"}, "training": {"accumulate": 4}},
    "regression": {"task": {"kind": "regression"}},
    "multilabel": {"task": {"kind": "multilabel"}},
    "nested": {"folds": 2, "nested": {"folds": 2, "grid": {"training.lr": [0.001, 0.01]}}},
}


class _Stopped(BaseException):
    """Ends a training as a kill does: nothing is cleaned up."""


def _settings(task: str) -> Any:
    changes = {"record": {"attention": "none"}, **_CHANGES[task]}
    changes["training"] = {"epochs": EPOCHS, "checkpoint_seconds": 0, **changes.get("training", {})}
    return resolve("abmil", changes=changes)


def _train(folder: Path, task: str) -> None:
    """A run, with the same bytes every time: relative paths, and no time passes."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        Path("cohort").mkdir()
        outcome = "survival" if task == "cox" else task if task != "nested" else "classification"
        write_cohort(Path("cohort"), outcome, split=task != "nested", n_patients=8)
        with patch("time.monotonic", return_value=0.0):
            train_run(Path("cohort/cohort.csv"), Path("run"), _settings(task))
    finally:
        os.chdir(here)


_MADE: dict[str, TemporaryDirectory[str]] = {}


def _make(task: str, folder: Path) -> None:
    """Copies of one training serve all kinds of its files."""
    if task not in _MADE:
        _MADE[task] = TemporaryDirectory()
        _train(Path(_MADE[task].name), task)
    shutil.copytree(_MADE[task].name, folder, dirs_exist_ok=True)


def _with_threshold(folder: Path) -> None:
    _make("classification", folder)
    OperatingPoint("youden", "b", {(0, 0): 0.5, (0, 1): 0.5}).save(folder / "run")


def _unfinished(folder: Path) -> None:
    """A run of two epochs that ended after the first, with recorded parts of its attention."""
    from asmil.training.epoch_log import EpochLog

    added = EpochLog.add

    def stop(self: EpochLog, record: Any) -> None:
        added(self, record)
        if record["epoch"] == EPOCHS:
            raise _Stopped

    with patch.object(EpochLog, "add", stop):
        try:
            _train(folder, "classification")
        except _Stopped:
            return
    raise AssertionError("the training was not stopped")


def _part_of_attention(folder: Path) -> None:
    _unfinished(folder)
    parts = sorted((folder / TRAINING / "attention.parts").iterdir())
    parts[-1].rename(parts[-1].with_name("part-000000099.h5"))


def _predict(folder: Path) -> Any:
    predictor = RunPredictor(folder / "run", "cpu")
    slides = [Slide(f"s{n:02d}", "p", None, FeatureSource(folder / "cohort/features" / f"s{n:02d}.h5")) for n in (0, 1)]
    rows = []
    for _, found in predictor.predict_all(units_of(slides, predictor.unit), attention=True):
        if isinstance(found, AsmilError):
            raise found
        rows.append((predictor.row(found), found.tile_map))
    return rows


def _evaluate(folder: Path) -> Any:
    run = folder / "run"
    found = evaluate_run(run, resamples=20)
    opened = read_run(run)
    survives = opened.kind == "survival"  # whose risk may be infinite
    return Aside(opened.predictions) if survives else opened.predictions, Aside(found)


def _course(folder: Path) -> Any:
    found = read_training(folder / "run", 0, 0)
    return None if found is None else (Aside(found.epochs), found.selected_epoch)  # an undefined metric is null


def _stability(folder: Path) -> Any:
    found = read_stability(folder / "run")
    return found.slides, Aside(summary_of(found)), [training.record.embedding for training in found.trainings]


def _resume(task: str, folder: Path) -> Any:
    run = train_run(folder / "cohort/cohort.csv", folder / "run", _settings(task))
    courses = [read_training(run.path, fold, seed) for fold, seed, _ in run.trainings()]
    return [Aside(course.epochs.drop(columns="seconds", errors="ignore")) for course in courses if course is not None]


def _kind(name: str, task: str, file: str, form: str, read: Callable[[Path], Any], **more: Any) -> Kind:
    return Kind(f"run {name}", file, form, partial(_make, task), read, **more)


def _tracked_settings(folder: Path) -> None:
    settings = {"encoder": {"name": "uni", "weights_hash": "1234"}, "tiling": {"tile_um": 128.0}}
    claim_folder(folder / "extraction.yaml", settings, "features")


def _read_tracked_settings(folder: Path) -> Any:
    _tracked_settings(folder)
    return (folder / "extraction.yaml").read_text()


def _extraction_settings(folder: Path) -> None:
    values = parse_extraction({"encoder": "efficientnet_lite0"}).model_dump(mode="json")
    (folder / "settings.json").write_text(json.dumps(values))


def _read_extraction_settings(folder: Path) -> Any:
    """The settings of an extraction, as a run or a feature file carries them."""
    try:
        values = json.loads((folder / "settings.json").read_text())
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise AsmilError("settings.json: no settings")  # such a file is not asmil's own
    try:
        return parse_extraction(values).model_dump(mode="json")
    except AsmilError as error:
        raise AsmilError(f"settings.json: {error}") from None


KINDS = (
    _kind("config for predict", "classification", "run/config.yaml", "yaml", _predict),
    _kind("config for evaluate", "classification", "run/config.yaml", "yaml", _evaluate),
    _kind("config of survival", "survival", "run/config.yaml", "yaml", _predict),
    _kind("splits", "classification", "run/splits.csv", "csv", partial(_resume, "classification"), writes=True),
    _kind("metrics", "classification", f"{TRAINING}/metrics.jsonl", "jsonl", _course),
    Kind(
        "run metrics resumed",
        f"{TRAINING}/metrics.jsonl",
        "jsonl",
        _unfinished,
        partial(_resume, "classification"),
        True,
    ),
    _kind("predictions", "classification", "run/predictions.parquet", "parquet", _evaluate),
    _kind("predictions of survival", "survival", "run/predictions.parquet", "parquet", _evaluate),
    _kind("predictions of regression", "regression", "run/predictions.parquet", "parquet", _evaluate),
    _kind("predictions of multilabel", "multilabel", "run/predictions.parquet", "parquet", _evaluate),
    _kind("weights", "classification", f"{TRAINING}/checkpoints/best.safetensors", "safetensors", _predict),
    _kind("weights of regression", "regression", f"{TRAINING}/checkpoints/best.safetensors", "safetensors", _predict),
    _kind("state", "classification", f"{TRAINING}/checkpoints/best.json", "json", _stability),
    Kind(
        "run checkpoint resumed",
        f"{TRAINING}/checkpoints/last.safetensors",
        "safetensors",
        _unfinished,
        partial(_resume, "classification"),
        True,
    ),
    _kind("task of classification", "classification", f"{TRAINING}/task.json", "json", _predict),
    _kind("task of survival", "survival", f"{TRAINING}/task.json", "json", _predict),
    _kind("task of cox", "cox", f"{TRAINING}/task.json", "json", _predict),
    _kind("task of regression", "regression", f"{TRAINING}/task.json", "json", _predict),
    _kind("choice", "nested", "run/fold-0/choice.json", "json", _predict),
    Kind("run operating point", "run/operating_point.json", "json", _with_threshold, _predict),
    _kind("attention", "classification", f"{TRAINING}/attention.h5", "hdf5", _stability),
    Kind(
        "run attention part",
        f"{TRAINING}/attention.parts/part-000000099.h5",
        "hdf5",
        _part_of_attention,
        _stability,
    ),
    Kind("settings of a folder", "extraction.yaml", "yaml", _tracked_settings, _read_tracked_settings, True),
    Kind("settings of an extraction", "settings.json", "json", _extraction_settings, _read_extraction_settings),
)
