"""Writing a run as a bundle."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import yaml

from asmil.errors import AsmilError
from asmil.evaluation.evaluate import RunEvaluation, evaluate_run
from asmil.export.card import model_card
from asmil.files import write_json, write_text
from asmil.reporting import jsonable
from asmil.training.bundle import BUNDLE_FILE, FORMAT, Bundle, BundleMetric, is_bundle, sha256
from asmil.training.finished_run import read_run
from asmil.training.layout import CHOICE_FILE, TASK_FILE
from asmil.training.operating_point import FILE as OPERATING_POINT_FILE
from asmil.training.prediction import RunPredictor
from asmil.version import __version__

CARD_FILE = "README.md"
_OF_A_TRAINING = (TASK_FILE, "checkpoints/best.safetensors", "checkpoints/best.json")


def write_bundle(run: Path | str, out: Path | str, method: str | None = None) -> Path:
    """Write the trained models of a run, its settings and a model card into a new folder, and return the folder.

    No file about single slides or patients is included: no splits, no predictions, no recorded attention, and not the
    path of the manifest.

    method: the run's method, if it is your own code
    """
    out = Path(out)
    if is_bundle(Path(run)):
        raise AsmilError(f"{run} is a bundle already; copy the folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AsmilError(f"{out} exists and is not empty; give --out a new folder")
    predictor = RunPredictor(run, "cpu", method)  # loads every model, so nothing damaged is handed on
    evaluation = evaluate_run(read_run(run))
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    try:
        _write(partial, predictor, evaluation)
        if out.exists():
            out.rmdir()
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def _write(folder: Path, predictor: RunPredictor, evaluation: RunEvaluation) -> None:
    run = predictor.folder
    settings = predictor.description.to_dict()
    settings["asmil"] = run.read_values().get("asmil", __version__)
    settings["cohort"] = {"slides": settings["cohort"].get("slides")}
    write_text(folder / run.config.name, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    for one in predictor.trained:
        source, target = run.training(one.fold, one.seed), Path(run.training(one.fold, one.seed).relative_to(run.path))
        for name in _OF_A_TRAINING:
            _copy(source / name, folder / target / name)
        _copy(run.fold(one.fold) / CHOICE_FILE, folder / target.parent / CHOICE_FILE)
    _copy(run.path / OPERATING_POINT_FILE, folder / OPERATING_POINT_FILE)
    write_text(folder / CARD_FILE, model_card(predictor, evaluation))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    bundle = Bundle(
        format=FORMAT,
        asmil=__version__,
        files={path.relative_to(folder).as_posix(): sha256(path) for path in files},
        metrics=_metrics(evaluation),
        sizes=evaluation.sizes,
    )
    write_json(folder / BUNDLE_FILE, bundle.model_dump(mode="json"))


def _copy(source: Path, target: Path) -> None:
    if source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _metrics(evaluation: RunEvaluation) -> dict[str, BundleMetric]:
    titles = {metric.name: metric.title for metric in evaluation.run.format.metrics}
    found = {}
    for name, estimate in evaluation.metrics.items():
        value, low, high = jsonable([estimate.value, *estimate.interval])
        found[name] = BundleMetric(title=titles.get(name, name), value=value, low=low, high=high)
    return found
