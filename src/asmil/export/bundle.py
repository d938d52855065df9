"""Write a run as a bundle, with its model card."""

from __future__ import annotations

import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from asmil.cohort.splits import ROLES, Splits
from asmil.errors import AsmilError
from asmil.evaluation.evaluate import evaluate_run
from asmil.evaluation.rows import part_of
from asmil.evaluation.run_evaluation import RunEvaluation
from asmil.evaluation.site_overlap import UNKNOWN_SITES, site_overlap
from asmil.evaluation.uncertainty.run_calibration import calibration_of, save_calibration
from asmil.evaluation.uncertainty.similarity import FILE as SIMILARITY_FILE
from asmil.files import write_text
from asmil.models.own_method import is_own
from asmil.reporting import escape_markdown, jsonable, markdown_table
from asmil.reporting.formats import format_count, format_interval, format_number
from asmil.runs.bundle import BundleAlarm, BundleMetric, is_bundle, seal_bundle
from asmil.runs.covariates import COVARIATES_FILE
from asmil.runs.layout import CHOICE_FILE, TASK_FILE
from asmil.runs.operating_point import FILE as OPERATING_POINT_FILE
from asmil.runs.prediction import open_models
from asmil.runs.run import Run, read_run
from asmil.tables.time_units import unit_in_words
from asmil.version import __version__

CARD_FILE = "README.md"
_OF_A_TRAINING = (TASK_FILE, COVARIATES_FILE, "checkpoints/best.safetensors", "checkpoints/best.json")
SMALL_TEST_PART = 100
"""With fewer patients, the model card says that the test set is small."""
_FRONT_MATTER = """\
---
library_name: asmil
tags:
- pathology
- whole-slide-images
- multiple-instance-learning
---
"""


def write_bundle(
    run: Path | str,
    out: Path | str,
    method: str | None = None,
    *,
    evaluation: RunEvaluation | None = None,
    limit: str = "",
) -> Path:
    """Write the trained models of a run, its settings and a model card to a new folder, and return the folder.

    No file about single slides or patients is included: no splits, no predictions, no recorded attention, and not the
    paths of the manifest and of initial weights. Hashes of some training tiles and of the names of slides and patients
    are included, each in one list for all slides, so that training slides and patients are recognized; see
    `TrainingSlides`. So are the probabilities of validation slides and the distances of training slides to each other,
    without names and order, for conformal sets and for `similarity_p`.

    method: the run's method, if it is your own code
    evaluation: its metrics are stored, if the run has no test slides; limit: a sentence on what they do not say
    """
    out = Path(out)
    if is_bundle(Path(run)):
        raise AsmilError(f"{run} is a bundle already; copy the folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AsmilError(f"{out} exists and is not empty; give --out a new folder")
    opened = open_models(run, "cpu", method)  # loads every model, so that no damaged file is exported
    evaluation = evaluation or evaluate_run(read_run(run))
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    try:
        _write(partial, opened, evaluation, limit)
        if out.exists():
            out.rmdir()
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def _write(folder: Path, run: Run, evaluation: RunEvaluation, limit: str) -> None:
    layout, settings = run.layout, run.description.to_dict()
    settings["asmil"] = run.values.get("asmil", __version__)
    settings["cohort"] = {"slides": settings["cohort"].get("slides")}
    if settings["init"]["weights"] is not None:  # only the name of the file, not its path
        settings["init"]["weights"] = Path(settings["init"]["weights"]).name
    write_text(folder / layout.config.name, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    for trained in run.trained:
        source = layout.training(trained.fold, trained.seed)
        target = folder / source.relative_to(run.path)
        for name in _OF_A_TRAINING:
            _copy(source / name, target / name)
        _copy(source.parent / CHOICE_FILE, target.parent / CHOICE_FILE)
    _copy(run.path / OPERATING_POINT_FILE, folder / OPERATING_POINT_FILE)
    _copy(run.path / SIMILARITY_FILE, folder / SIMILARITY_FILE)
    if run.kind == "classification" and len(part_of(run, "val")):
        save_calibration(calibration_of(run), folder)
    if run.training_slides is not None:
        run.training_slides.for_bundle(run.patients_seen).save(folder)
    write_text(folder / CARD_FILE, model_card(run, evaluation, limit))
    alarms = tuple(BundleAlarm(**asdict(alarm)) for alarm in evaluation.raised)
    seal_bundle(folder, _metrics(evaluation), evaluation.sizes, alarms)


def _copy(source: Path, target: Path) -> None:
    if source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _metrics(evaluation: RunEvaluation) -> dict[str, BundleMetric]:
    titles = _titles(evaluation)
    metrics = {}
    for name, estimate in evaluation.metrics.items():
        value, low, high = jsonable([estimate.value, *estimate.interval])
        metrics[name] = BundleMetric(title=titles.get(name, name), value=value, low=low, high=high)
    return metrics


def _titles(evaluation: RunEvaluation) -> dict[str, str]:
    return {metric.name: metric.title for metric in evaluation.run.format.metrics}


def model_card(run: Run, evaluation: RunEvaluation, limit: str = "") -> str:
    """The card as Markdown."""
    config = run.description.config
    title = f"{config.method} for {config.task.kind}"
    parts = [
        _FRONT_MATTER + f"# {title}",
        _summary(run),
        *_alarms(evaluation),
        "## Data\n\n" + markdown_table(["property", "value"], _data(run)),
        "## Metrics\n\n" + _results(evaluation),
        "## Limits\n\n" + "\n".join(f"- {line}" for line in _limits(run, evaluation, limit)),
        "## Use\n\n" + _use(run),
        f"Written by asmil {__version__}. Add the license under which you share the weights.",
    ]
    return "\n\n".join(parts) + "\n"


def _use(run: Run) -> str:
    """Commands that predict: a table with covariates, slides if it is known how to extract them, or features."""
    given = "slides/" if run.description.features.get("extraction") else "features/"
    given = "table.csv" if run.settings.covariates else given
    method = run.description.config.method
    option, argument = (f" --method {shlex.quote(method)}", f", method={method!r}") if is_own(method) else ("", "")
    return (
        f"```bash\nasmil predict THIS_FOLDER {given} --out predictions.csv{option}\n```\n\n"
        f'```python\nimport asmil\n\nrun = asmil.load_run("THIS_FOLDER"{argument})\nprint(run.predict("{given}"))\n```'
    )


def _summary(run: Run) -> str:
    folds, seeds = (len({getattr(trained, name) for trained in run.trained}) for name in ("fold", "seed"))
    parts = f"{format_count(folds, 'fold')}, {format_count(seeds, 'seed')} per fold"
    n = len(run.trained)
    models = "One trained model" if n == 1 else f"The mean prediction of {n} trained models ({parts})"
    task, classes = run.description.config.task, run.description.classes
    names = "Labels" if task.kind == "multilabel" else "Classes"
    among = f" {names}: {escape_markdown(', '.join(classes))}." if classes else ""
    unit = f" Times are in {unit_in_words(task.time_unit)}." if task.kind == "survival" else ""
    return f"{models} of the method `{run.description.config.method}`.{among}{unit}"


def _alarms(evaluation: RunEvaluation) -> list[str]:
    """The section on alarms, which is above the results; none if there is no alarm."""
    lines = [f"- {escape_markdown(alarm.finding)}" for alarm in evaluation.raised]
    return ["## Alarms\n\n" + "\n".join(lines)] if lines else []


def _data(run: Run) -> Iterator[tuple[str, str]]:
    features: Mapping[str, Any] = run.description.features
    yield "slides in the cohort", _or_unknown(run.description.cohort.get("slides"))
    splits = Splits.load(run.layout.splits)
    yield "patients in the cohort", str(splits.table["patient"].nunique())
    in_turn = f", over {splits.n_folds} folds" if splits.n_folds > 1 else ""
    for role in ROLES:
        part = splits.table[splits.table["role"] == role]
        patients = format_count(part["patient"].nunique(), "patient")
        yield f"{role} slides", f"{part['slide'].nunique()} of {patients}{in_turn}"
    yield "encoder", _or_unknown(features.get("encoder"))
    yield "SHA-256 of the encoder's weights", _or_unknown(features.get("weights_hash"))
    yield "numbers per tile", str(run.description.in_features)
    yield "tile size in microns", _or_unknown(features.get("tile_um"))
    yield "tile size in pixels", _or_unknown(features.get("tile_px"))
    if run.settings.covariates:
        yield "covariates", escape_markdown(", ".join(run.description.config.data.covariates))
    if run.operating_point is not None:
        point = run.operating_point
        threshold = f"{point.positive} from a probability of {format_number(point.threshold)}"
        yield "operating point", f"{threshold}, chosen on validation slides ({point.rule})"


def _results(evaluation: RunEvaluation) -> str:
    titles = _titles(evaluation)
    rows = [
        (titles.get(name, name), format_number(estimate.value), format_interval(estimate.interval))
        for name, estimate in evaluation.metrics.items()
    ]
    trainings = f"folds: {evaluation.n_folds}, seeds: {evaluation.n_seeds}"
    how = f"On the test set: {evaluation.sizes} ({trainings}). Intervals: bootstrap over patients."
    return f"{how}\n\n{markdown_table(['metric', 'value', '95 % interval'], rows)}"


def _limits(run: Run, evaluation: RunEvaluation, limit: str) -> Iterator[str]:
    if evaluation.n_patients < SMALL_TEST_PART:
        yield f"The test set is small: {evaluation.sizes}."
    overlap = site_overlap(run)
    yield UNKNOWN_SITES if overlap is None else overlap.sentence
    if limit:
        yield limit
    elif evaluation.n_trainings > 1:
        yield "The metrics are those of single trainings. The mean of all models was not tested on its own."
    yield _of_features(run.description.features)
    for warning in evaluation.warnings:
        yield escape_markdown(warning)


def _of_features(features: Mapping[str, Any]) -> str:
    """The features that the models need, as far as they are known."""
    known = [f"{features['width']} numbers per tile"]
    known += [f"the encoder {escape_markdown(str(features['encoder']))}"] if features.get("encoder") else []
    known += [f"tiles of {features['tile_um']:g} microns"] if features.get("tile_um") else []
    missing = [name for name, key in (("encoder", "encoder"), ("tile size", "tile_um")) if not features.get(key)]
    unknown = f" Its {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} unknown." if missing else ""
    return f"The models were trained on features with {', '.join(known)}.{unknown}"


def _or_unknown(value: Any) -> str:
    return "unknown" if value is None else str(value)
