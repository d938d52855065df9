"""Settings of a training as a YAML file: read by `asmil train FILE`, and written with comments by `asmil init`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from asmil.errors import AsmilError, did_you_mean
from asmil.runs.cohort import RunCohort
from asmil.runs.config import RunConfig, resolve
from asmil.runs.stored_settings import StoredSettings
from asmil.settings.documents import read_yaml, validated
from asmil.tables.columns import format_mapping

_PATHS = ("cohort", "features", "out")
_CHOICES = ("method", "preset", "columns")
_TOP = ("folds", "seeds")
_HEADER = """\
# Settings for `asmil train {name}`. Options of the command override this file.
# Lines that begin with # show the default; remove the # to change a value.
# Paths are relative to this file. All settings are explained in docs/settings.md.
"""


@dataclass(frozen=True)
class SettingsFile:
    """The content of a settings file; None for keys that it does not contain.

    changes: the sections and keys that differ from the method's preset
    columns: which columns of the manifest to read, as for `--columns`
    """

    cohort: Path | None
    features: Path | None
    out: Path | None
    method: str | None
    preset: str | None
    changes: Mapping[str, Any]
    columns: str | None = None


def read_settings_file(path: Path) -> SettingsFile:
    """Read a settings file, or the `config.yaml` of a run to reuse its settings."""
    values = read_yaml(path, "write one with `asmil init`")
    if isinstance(values.get("cohort"), Mapping):
        values = _of_run(path, values)
    # a section whose keys are all commented out
    values = {key: value for key, value in values.items() if value is not None}
    known = [*_PATHS, "columns", *RunConfig.model_fields]
    for key in values:
        if key not in known:
            raise AsmilError(f"{path}: unknown setting '{key}': {did_you_mean(str(key), known)}")
    for key in (*_PATHS, *_CHOICES):
        if not isinstance(values.get(key, ""), str):
            raise AsmilError(f"{path}: '{key}' = {values[key]!r}: give a string")
    cohort, features, out = (path.parent / values[key] if key in values else None for key in _PATHS)
    changes = {key: value for key, value in values.items() if key not in (*_PATHS, *_CHOICES)}
    init = changes.get("init")
    if isinstance(init, Mapping) and isinstance(init.get("weights"), str):
        changes["init"] = {**init, "weights": str(path.parent / init["weights"])}
    return SettingsFile(
        cohort, features, out, values.get("method"), values.get("preset"), changes, values.get("columns")
    )


def _of_run(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a run's `config.yaml`, and its cohort."""
    settings = {key: value for key, value in values.items() if key in RunConfig.model_fields}
    if isinstance(settings.get("task"), Mapping):
        settings["task"] = {key: value for key, value in settings["task"].items() if key != "classes"}
    trained_on = RunCohort.of(validated(values, StoredSettings, str(path), "restore it"))
    if trained_on.columns:
        settings["columns"] = format_mapping(trained_on.columns)
    paths = {"cohort": trained_on.manifest, "features": trained_on.features_there}
    return settings | {name: str(path.absolute()) for name, path in paths.items() if path is not None}


def commented_settings(name: str, cohort: str, out: str, method: str, preset: str) -> str:
    """The text of a settings file with every setting of a method, its default and its meaning.

    name: the name of the file, for its first line
    """
    config = resolve(method, preset)
    lines = [_HEADER.format(name=name).rstrip(), ""]
    texts = {"cohort": "the manifest: one row per slide", "out": "the run folder", "method": "see `asmil methods`"}
    for key, value in {"cohort": cohort, "out": out, "method": method, "preset": preset}.items():
        lines.append(setting_line(key, value, texts.get(key, "")))
    lines.append(setting_line("features", "features", "default: the folder next to the manifest", "# "))
    lines += [setting_line(key, getattr(config, key), RunConfig.model_fields[key].description or "") for key in _TOP]
    for key in RunConfig.model_fields:
        section = getattr(config, key)
        if isinstance(section, BaseModel):
            about = (type(section).__doc__ or "").strip().split("\n")[0]
            lines += ["", f"# {about}", f"{key}:", *_section(section)]
    return "\n".join(lines) + "\n"


def _section(section: BaseModel, start: str = "  # ") -> Iterator[str]:
    """The settings of a section, commented out; without the # they are YAML."""
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if isinstance(value, BaseModel):
            yield f"{start}{key}:"
            yield from _section(value, start + "  ")
        else:
            yield setting_line(key, value, _meaning(field), start)


def _meaning(field: FieldInfo) -> str:
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return "; ".join(filter(None, [" | ".join(map(str, choices)), field.description or ""]))


def setting_line(key: str, value: Any, meaning: str = "", start: str = "") -> str:
    """A setting as a line of YAML, with its meaning as a comment."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump({key: plain}, default_flow_style=True, width=10_000, allow_unicode=True).strip()[1:-1]
    return f"{start + text:<34}  # {meaning}" if meaning else start + text
