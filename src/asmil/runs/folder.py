"""A run folder on disk: its files and the content of its `config.yaml`."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, FiniteFloat, PositiveInt

from asmil.cohort.consistency import TOLERANCE
from asmil.cohort.fingerprint import fingerprint
from asmil.cohort.manifest import Cohort
from asmil.cohort.source import FeatureInfo, read_extraction
from asmil.errors import AsmilError
from asmil.files import leftovers, write_text
from asmil.machine.locks import locked_folder
from asmil.models.own_method import confirm
from asmil.runs.config import RunConfig, parse_run_config, with_settings
from asmil.runs.layout import CHOICE_FILE, LOCK_FILE, RunLayout
from asmil.runs.notes import read_choice
from asmil.settings.config import flat
from asmil.settings.documents import validated
from asmil.settings.made_from import MadeFrom, in_short
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
    "asmil",
}
"""Settings that may change when a run resumes: they do not affect its results."""

TIME_UNIT = "task.time_unit"

_ADDED = ("attention", "stabilizers", "record", "nested", "init")
"""Sections that runs of earlier versions do not have; their defaults reproduce those versions."""

_NAMES = {"cohort.rows_sha256": "manifest rows", "cohort.features_sha256": "features"}
"""What users call some entries of `config.yaml`."""

_WRITTEN = (
    "predictions*",
    "splits*",
    "init.safetensors",
    "init.json",
    "labels.csv",
    "training_slides.safetensors",
    "cache",
    "operating_point*",
    "evaluation*",
    "report*",
    "stability*",
)
_WRITTEN_FOLDERS = ("fold-*", "localization*", "faithfulness*")
"""What a run folder holds: the run, and reports about it that are written there unless another folder is named."""

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
        known = flat(self.to_dict())
        return MadeFrom(
            {
                _NAMES.get(key, key): value
                for key, value in known.items()
                if key not in _FREE_TO_CHANGE and value is not None
            }
        )

    def refuse_other_features(self, info: FeatureInfo) -> None:
        """Raise if a feature file was made differently from the training features; missing metadata is ignored."""
        differing = []
        vectors = bool(self.features.get("slide_vectors"))
        if (info.slide_vector and not vectors) or (vectors and not info.may_be_slide_vector):
            kinds = ("features of tiles", "one vector per slide")
            differing.append(f"{kinds[not vectors]} instead of {kinds[vectors]}")
        for key in _FEATURE_KEYS:
            trained, found = self.features.get(key), getattr(info, key)
            if trained is None or found is None:
                continue
            if key in _SIZES:
                differs = abs(found - trained) > TOLERANCE * trained
            else:
                differs = found != trained and not (key == "encoder" and same_attribute(trained, found))
            if differs:
                differing.append(f"{key} {found} instead of {trained}")
        if differing:
            raise AsmilError(
                f"{info.source}: its features differ from the training features ({', '.join(differing)}); "
                "extract this slide like the training slides"
            )


def describe(config: RunConfig, cohort: Cohort, classes: tuple[str, ...], infos: list[FeatureInfo]) -> RunDescription:
    """The description of a run on a cohort; feature properties come from the first file that states them."""
    features = {
        key: next((value for info in infos if (value := getattr(info, key)) is not None), None) for key in _FEATURE_KEYS
    }
    features["extraction"] = next(
        (made.settings for info in infos if (made := read_extraction(info)) is not None and made.settings is not None),
        None,
    )
    if all(info.may_be_slide_vector for info in infos):
        features["slide_vectors"] = True
    about: dict[str, Any] = {
        "manifest": str(cohort.path),
        "slides": len(cohort),
        "rows_sha256": rows_sha256(config.task.kind, cohort),
        "features_sha256": _sha256([fingerprint(slide.source) for slide in cohort.slides]),
    }
    if cohort.columns:
        about["columns"] = dict(cohort.columns)
    if cohort.features is not None:
        about["features"] = str(cohort.features)
    return RunDescription(config, classes, features, about)


def rows_sha256(kind: TaskKind, cohort: Cohort) -> str:
    """A checksum of what a run reads of the rows of its manifest."""
    survives = kind == "survival"
    rows = [
        (s.slide, s.patient, s.label, s.site, s.split, s.fold, *((s.time, s.event) if survives else ()))
        for s in cohort.slides
    ]
    return _sha256(rows)


def _sha256(values: list[Any]) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


class OtherRunError(AsmilError):
    """The folder contains a run that was made from something else."""


class RunFolder(RunLayout):
    """A run folder for training: its description is written once and checked on every resume."""

    def read(self, method: str | None = None) -> RunDescription:
        """The description in `config.yaml`.

        method: the run's method as given by the user; required if it is code, `module:Class`
        """
        values = self.read_values()
        found = validated(values, _File, str(self.config), "restore it or train again")
        missing = [key for key in RunConfig.model_fields if key not in values and key not in _ADDED]
        if missing:
            raise AsmilError(f"{self.config}: missing {', '.join(missing)}; it was not written by asmil train")
        settings = {key: values[key] for key in RunConfig.model_fields if key in values}
        settings["task"] = {key: value for key, value in values["task"].items() if key != "classes"}
        confirm(str(settings["method"]), method, str(self.config))
        try:
            config = parse_run_config(settings)
        except AsmilError as error:
            raise AsmilError(f"{self.config}: {error}") from None
        return RunDescription(config, found.task.classes, dict(values["features"]), found.cohort)

    def config_of(self, description: RunDescription, fold: int) -> RunConfig:
        """The settings of a fold: those of the run, with the choices of nested cross-validation."""
        chosen = read_choice(self.fold(fold))
        if chosen is None:
            return description.config
        try:
            return with_settings(description.config, chosen)
        except AsmilError as error:
            raise AsmilError(f"{self.fold(fold) / CHOICE_FILE}: {error}") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for training by this process."""
        if self.path.exists() and not self.path.is_dir():
            raise AsmilError(f"{self.path} is a file; give --out a new folder")
        busy = f"{self.path}: another process is training into this folder; wait for it, or give another --out"
        with locked_folder(self.path, LOCK_FILE, busy):
            self._remove_leftovers()
            yield

    def _remove_leftovers(self) -> None:
        """Remove temporary files of killed trainings; those of reports may be in use by another command."""
        own = (self.config, self.splits, self.predictions)
        for partial, path in leftovers(self.path):
            if path in own or path.relative_to(self.path).parts[0].startswith(("fold-", "cache")):
                partial.unlink(missing_ok=True)

    def begin(self, description: RunDescription) -> None:
        """Write the description or, if there is already a run, check that it is the same."""
        self.refuse_other_run(description)
        if not self.config.exists():
            self._write(description.to_dict())
            return
        unit, values = description.config.task.time_unit, self.read_values()
        if unit is not None and values["task"].get("time_unit") is None:  # runs of earlier versions have no unit
            self._write({**values, "task": {**values["task"], "time_unit": unit}})

    def _write(self, values: Mapping[str, Any]) -> None:
        write_text(self.config, yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))

    def refuse_other_run(self, description: RunDescription) -> None:
        """Raise if the folder contains a run with a different description."""
        if not self.config.exists():
            return
        there, now = dict(self.read().made_from().values), dict(description.made_from().values)
        if TIME_UNIT not in there or TIME_UNIT not in now:  # an unknown unit contradicts none
            there.pop(TIME_UNIT, None)
            now.pop(TIME_UNIT, None)
        differing = MadeFrom(now).differences(MadeFrom(there).record())
        if differing:
            raise OtherRunError(
                f"{self.path} contains a run that was made from something else ({in_short(differing)}); give another "
                "--out, the same inputs and settings to resume it, or --again to train it again from the start"
            )

    def clear(self) -> None:
        """Remove the run and the reports in its folder; files of others stay."""
        for pattern in (*_WRITTEN, *_WRITTEN_FOLDERS):
            for path in self.path.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        # last: a run that was cleared in part is still known as the one that it was
        self.config.unlink(missing_ok=True)
