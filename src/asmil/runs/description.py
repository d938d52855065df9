"""The content of a run's `config.yaml`, with complete settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, FiniteFloat, PositiveInt

from asmil.cohort.consistency import TOLERANCE
from asmil.cohort.fingerprint import fingerprint
from asmil.cohort.manifest import Cohort
from asmil.cohort.source import FeatureInfo, read_extraction
from asmil.cohort.splits import Splits
from asmil.cohort.units import Unit
from asmil.errors import AsmilError
from asmil.models.own_method import confirm
from asmil.runs.config import RunConfig, parse_run_config, with_settings
from asmil.runs.covariates import with_covariate_kinds
from asmil.runs.layout import CHOICE_FILE, RunLayout
from asmil.runs.notes import read_choice
from asmil.settings.config import flat
from asmil.settings.documents import validated
from asmil.settings.made_from import MadeFrom
from asmil.settings.own_code import same_attribute
from asmil.tasks.base import TaskKind
from asmil.version import __version__

_FREE_TO_CHANGE = {
    "training.device",
    "training.checkpoint_seconds",
    "training.track",
    "cohort.manifest",
    "cohort.features",
    "init.weights",
    "data.splits",
    "asmil",
}
"""Settings that may change when a run resumes: they do not affect its results."""

_ADDED = ("attention", "stabilizers", "record", "nested", "init", "smoothing")
"""Sections that runs of earlier versions do not have; their defaults reproduce those versions."""

_NAMES = {"cohort.rows_sha256": "manifest rows", "cohort.features_sha256": "features", "cohort.splits_sha256": "splits"}
"""Names of some entries of `config.yaml` in messages."""

_SIZES = ("tile_um", "tile_px", "magnification")
_FEATURE_KEYS = ("width", "encoder", "weights_hash", *_SIZES)


class _Features(BaseModel):
    width: PositiveInt
    encoder: str | None = None
    weights_hash: str | None = None
    tile_um: FiniteFloat | None = None
    tile_px: FiniteFloat | None = None
    magnification: FiniteFloat | None = None
    extraction: dict[str, Any] | None = None
    slide_vectors: bool = False
    coarser: str | None = None


class _Task(BaseModel, extra="allow"):
    classes: tuple[str, ...]


class _File(BaseModel):
    """What `config.yaml` must contain besides the settings."""

    task: _Task
    features: _Features
    cohort: dict[str, Any]


@dataclass(frozen=True)
class RunDescription:
    """The content of `config.yaml`: the settings, the classes, and the properties of the features.

    features: width, encoder and tile size of the training features, to detect different ones at prediction; and how
        they were extracted (None if unknown), to extract new slides in the same way
    cohort: path of the manifest and hashes of its rows and features, to detect a different cohort when resuming
    """

    config: RunConfig
    classes: tuple[str, ...]
    features: Mapping[str, Any]
    cohort: Mapping[str, Any]

    @property
    def in_features(self) -> int:
        """The width of the features."""
        return int(self.features["width"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as written to the file."""
        settings = self.config.model_dump(mode="json")
        return {
            "asmil": __version__,
            **settings,
            "task": {**settings["task"], "classes": list(self.classes)},
            "features": dict(self.features),
            "cohort": dict(self.cohort),
        }

    def made_from(self) -> MadeFrom:
        """Everything that affects the results of the run."""
        known = {key: value for key, value in flat(self.to_dict()).items() if value is not None}
        return MadeFrom({_NAMES.get(key, key): value for key, value in known.items() if key not in _FREE_TO_CHANGE})

    def refuse_other_features(self, info: FeatureInfo) -> None:
        """Raise if a feature file was made differently from the training features; missing metadata is ignored."""
        differing = []
        vectors = bool(self.features.get("slide_vectors"))
        if (info.slide_vector and not vectors) or (vectors and not info.may_be_slide_vector):
            kinds = ("features of tiles", "one vector per slide")
            differing.append(f"{kinds[not vectors]} instead of {kinds[vectors]}")
        coarser = self.features.get("coarser")
        if coarser != info.coarser:
            differing.append(f"{_magnifications(info.coarser)} instead of {_magnifications(coarser)}")
        for key in _FEATURE_KEYS:
            trained, here = self.features.get(key), getattr(info, key)
            if trained is None or here is None:
                continue
            if key in _SIZES:
                differs = abs(here - trained) > TOLERANCE * trained
            else:
                differs = here != trained and not (key == "encoder" and same_attribute(trained, here))
            if differs:
                differing.append(f"{key} {here} instead of {trained}")
        if differing:
            raise AsmilError(
                f"{info.source}: its features differ from the training features ({', '.join(differing)}); "
                "extract this slide like the training slides"
            )


def _magnifications(coarser: str | None) -> str:
    return f"several magnifications ({coarser})" if coarser else "one magnification"


def completed(config: RunConfig, cohort: Cohort, units: Sequence[Unit]) -> RunConfig:
    """The settings with what the cohort decides: the unit of survival times and the kind of every covariate."""
    stated, given = cohort.time_unit, config.task.time_unit
    if config.task.kind == "survival" and stated not in (None, given):
        if given is not None:
            raise AsmilError(
                f"{cohort.path}: the name of the column of times states {stated}, but --time-unit (task.time_unit) is "
                f"{given}; leave the option out, or rename the column"
            )
        config = with_settings(config, {"task.time_unit": stated})
    return with_covariate_kinds(config, cohort, units)


def describe(config: RunConfig, cohort: Cohort, classes: tuple[str, ...], infos: list[FeatureInfo]) -> RunDescription:
    """The description of a run on a cohort; feature properties come from the first file that contains them."""
    features = {
        key: next((value for info in infos if (value := getattr(info, key)) is not None), None) for key in _FEATURE_KEYS
    }
    features["extraction"] = next(
        (made.settings for info in infos if (made := read_extraction(info)) is not None and made.settings is not None),
        None,
    )
    if all(info.may_be_slide_vector for info in infos):
        features["slide_vectors"] = True
    if coarser := next((info.coarser for info in infos if info.coarser), None):
        features["coarser"] = coarser
    about: dict[str, Any] = {
        "manifest": str(cohort.path),
        "slides": len(cohort),
        "rows_sha256": rows_sha256(config.task.kind, cohort),
        "features_sha256": _sha256([fingerprint(slide.source) for slide in cohort.slides]),
    }
    if config.data.splits is not None:
        about["splits_sha256"] = _sha256(Splits.load(config.data.splits).table.to_numpy().tolist())
    if cohort.columns:
        about["columns"] = dict(cohort.columns)
    if cohort.features is not None:
        about["features"] = str(cohort.features)
    return RunDescription(config, classes, features, about)


def rows_sha256(kind: TaskKind, cohort: Cohort) -> str:
    """A checksum of the values that a run reads from its manifest."""
    survives = kind == "survival"
    rows = [
        (
            *(s.slide, s.patient, s.label, s.site, s.split, s.fold),
            *((s.time, s.event) if survives else ()),
            *sorted(s.covariates.items()),
        )
        for s in cohort.slides
    ]
    return _sha256(rows)


def _sha256(values: list[Any]) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


def read_description(layout: RunLayout, method: str | None = None) -> RunDescription:
    """The description in the `config.yaml` of a run.

    method: the run's method as given by the user; required if it is code, `module:Class`
    """
    values = layout.read_values()
    known = validated(values, _File, str(layout.config), "restore it or train again")
    missing = [key for key in RunConfig.model_fields if key not in values and key not in _ADDED]
    if missing:
        raise AsmilError(f"{layout.config}: missing {', '.join(missing)}; it was not written by asmil train")
    settings = {key: values[key] for key in RunConfig.model_fields if key in values}
    settings["task"] = {key: value for key, value in values["task"].items() if key != "classes"}
    confirm(str(settings["method"]), method, str(layout.config))
    try:
        config = parse_run_config(settings)
    except AsmilError as error:
        raise AsmilError(f"{layout.config}: {error}") from None
    return RunDescription(config, known.task.classes, dict(values["features"]), known.cohort)


def config_of_fold(layout: RunLayout, description: RunDescription, fold: int) -> RunConfig:
    """The settings of a fold: those of the run, with the choices of nested cross-validation."""
    chosen = read_choice(layout.fold(fold))
    if chosen is None:
        return description.config
    try:
        return with_settings(description.config, chosen)
    except AsmilError as error:
        raise AsmilError(f"{layout.fold(fold) / CHOICE_FILE}: {error}") from None
