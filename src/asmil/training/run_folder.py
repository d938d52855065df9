"""A run on the disk: where its files lie and what its `config.yaml` says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from asmil.cohort.consistency import TOLERANCE
from asmil.cohort.fingerprint import fingerprint
from asmil.cohort.manifest import Cohort
from asmil.cohort.source import FeatureInfo
from asmil.config import flat
from asmil.errors import AsmilError
from asmil.extraction.store import slide_settings
from asmil.files import replacing, write_text
from asmil.training.config import RunConfig, parse_run_config, with_settings
from asmil.training.layout import CHOICE_FILE, RunLayout
from asmil.version import __version__

_FREE_TO_CHANGE = {"training.device", "training.checkpoint_seconds", "cohort.manifest", "asmil"}
"""Settings that may differ when a run goes on: they do not change what it computes."""

_ADDED = ("attention", "stabilizers", "record", "nested")
"""Sections that runs of earlier versions do not have; their defaults train what those versions trained."""

_SIZES = ("tile_um", "tile_px", "magnification")
_FEATURE_KEYS = ("width", "encoder", "weights_hash", *_SIZES)


@dataclass(frozen=True)
class RunDescription:
    """All that `config.yaml` holds: the settings, the classes, and what the features were.

    features: width, encoder, tile size of the training features, to refuse others at prediction; and how they were
        extracted (None if that is not known), to do the same with new slides
    cohort: the manifest's path and hashes of its rows and features, to refuse going on with another cohort
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
        """Plain values, as they are written."""
        settings = self.config.model_dump(mode="json")
        return {
            "asmil": __version__,
            **settings,
            "task": {**settings["task"], "classes": list(self.classes)},
            "features": dict(self.features),
            "cohort": dict(self.cohort),
        }

    def refuse_other_features(self, info: FeatureInfo) -> None:
        """Raise if a feature file was made in another way than those of the training; what is not stated passes."""
        differing = []
        for key in _FEATURE_KEYS:
            trained, found = self.features.get(key), getattr(info, key)
            if trained is None or found is None:
                continue
            sizes = key in _SIZES
            if abs(found - trained) > TOLERANCE * trained if sizes else found != trained:
                differing.append(f"{key} {found} instead of {trained}")
        if differing:
            raise AsmilError(
                f"{info.source}: its features differ from those of the training ({', '.join(differing)}); "
                "extract this slide as the training slides were"
            )


def describe(config: RunConfig, cohort: Cohort, classes: tuple[str, ...], infos: list[FeatureInfo]) -> RunDescription:
    """The description of a run on a cohort; of each property of the features the first file that states it counts."""
    features = {
        key: next((value for info in infos if (value := getattr(info, key)) is not None), None) for key in _FEATURE_KEYS
    }
    features["extraction"] = next((made for info in infos if (made := slide_settings(info)) is not None), None)
    survives = config.task.kind == "survival"
    rows = [
        (s.slide, s.patient, s.label, s.site, s.split, s.fold, *((s.time, s.event) if survives else ()))
        for s in cohort.slides
    ]
    about = {
        "manifest": str(cohort.path),
        "slides": len(cohort),
        "rows_sha256": _sha256(rows),
        "features_sha256": _sha256([fingerprint(slide.source) for slide in cohort.slides]),
    }
    return RunDescription(config, classes, features, about)


def _sha256(values: list[Any]) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


class RunFolder(RunLayout):
    """A run folder that is trained into: its description is written once and compared ever after."""

    def read(self) -> RunDescription:
        """The description in `config.yaml`."""
        values = self.read_values()
        try:
            classes = tuple(map(str, values["task"]["classes"]))
            features, cohort = dict(values["features"]), dict(values["cohort"])
            settings = {key: values[key] for key in RunConfig.model_fields if key not in _ADDED or key in values}
            settings["task"] = {key: value for key, value in values["task"].items() if key != "classes"}
        except (KeyError, TypeError) as error:
            raise AsmilError(f"{self.config} lacks {error}; it was not written by asmil train") from None
        return RunDescription(parse_run_config(settings), classes, features, cohort)

    def config_of(self, description: RunDescription, fold: int) -> RunConfig:
        """The settings of a fold: those of the run, with what nested cross-validation chose for it."""
        note = self.fold(fold) / CHOICE_FILE
        if not note.exists():
            return description.config
        try:
            return with_settings(description.config, json.loads(note.read_text(encoding="utf-8"))["settings"])
        except AsmilError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise AsmilError(f"{note} cannot be read ({error}); restore it or train again") from None

    def begin(self, description: RunDescription) -> None:
        """Write the description, or, where a run was begun before, make sure that it is the same."""
        if not self.config.exists():
            if self.path.exists() and not self.path.is_dir():
                raise AsmilError(f"{self.path} is a file; give --out a new folder")
            write_text(self.config, yaml.safe_dump(description.to_dict(), sort_keys=False, allow_unicode=True))
            return
        before, now = flat(self.read().to_dict()), flat(description.to_dict())
        differing = sorted(
            key for key in before.keys() | now.keys() if key not in _FREE_TO_CHANGE and before.get(key) != now.get(key)
        )
        if differing:
            shown = ", ".join(f"{key}: {before.get(key)!r} there, {now.get(key)!r} now" for key in differing[:4])
            more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
            raise AsmilError(
                f"{self.path} holds a run with other settings ({shown}{more}); "
                "give another --out, or the same settings to go on with that run"
            )

    def write_predictions(self, path: Path, table: pd.DataFrame) -> None:
        """Write a table of predictions whole or not at all."""
        with replacing(path) as partial:
            table.to_parquet(partial, index=False)
