"""Settings as typed trees: one set of names for Python, YAML and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from asmil.errors import AsmilError, did_you_mean
from asmil.settings.documents import parse_yaml

LARGEST = 2**53
"""The largest integer that every library which reads settings can represent."""


class Settings(BaseModel):
    """A frozen section of the configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"must lie between {-LARGEST} and {LARGEST}")
        return value


SettingsType = TypeVar("SettingsType", bound=Settings)


def parse_settings(kind: type[SettingsType], values: Mapping[str, Any], section: str = "") -> SettingsType:
    """Validate `values` as a `kind`; the error names the key, its value and the nearest known key."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise AsmilError(_explain(kind, error, section)) from None


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` updated with `changes`, section by section.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def parse_assignments(assignments: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """The tree that assignments such as `--set section.key=value` describe; values are read as YAML.

    option: the option that gave them, for errors

    >>> parse_assignments(["training.lr=3e-4", "model.tokens=4"])
    {'training': {'lr': '3e-4'}, 'model': {'tokens': 4}}
    """
    tree: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not all(name.strip().split(".")):
            raise AsmilError(f"{option} {assignment}: write it as section.key=value, e.g. training.lr=3e-4")
        try:
            value = parse_yaml(text)
        except yaml.YAMLError:
            raise AsmilError(
                f"{option} {assignment}: the value {text!r} cannot be read; quote it or simplify it"
            ) from None
        tree = merge(tree, nested(name.strip(), value))
    return tree


def nested(name: str, value: Any) -> dict[str, Any]:
    """A dotted name as a tree.

    >>> nested("training.lr", 0.1)
    {'training': {'lr': 0.1}}
    """
    head, _, rest = name.partition(".")
    return {head: nested(rest, value) if rest else value}


def assign(tree: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The tree, updated with settings by their dotted names.

    >>> assign({"training": {"lr": 0.1}}, {"training.epochs": 3})
    {'training': {'lr': 0.1, 'epochs': 3}}
    """
    for name, value in settings.items():
        tree = merge(tree, nested(name, value))
    return dict(tree)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A tree as dotted names; the inverse of `nested`.

    >>> flat({"training": {"lr": 0.1}})
    {'training.lr': 0.1}
    """
    names: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            names |= flat(value, f"{prefix}{key}.")
        else:
            names[f"{prefix}{key}"] = value
    return names


def _explain(kind: type[BaseModel], error: ValidationError, section: str) -> str:
    sentences = []
    for problem in error.errors():
        path = [str(part) for part in problem["loc"]]
        name = ".".join([section, *path] if section else path)
        if problem["type"] == "extra_forbidden":
            known = _keys_at(kind, path[:-1])
            inside = [f"{name}.{path[-1]}" for name in kind.model_fields if path[-1] in _keys_at(kind, [name])]
            inside = [] if section or path[:-1] else inside
            near = did_you_mean(inside[0], inside) if inside else did_you_mean(path[-1], known)
            prefix = ".".join([section, *path[:-1]] if section else path[:-1])
            where = f"section '{prefix}'" if prefix else "the top level"
            sentences.append(f"unknown setting '{name}' ({where}): {near}")
        elif problem["type"] == "missing":
            sentences.append(f"setting '{name}' is missing; give it a value")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            message = f"{message[0].lower()}{message[1:]}"
            # an error about several settings names them itself
            sentences.append(f"setting '{name}' = {problem['input']!r}: {message}" if name else message)
    return "; ".join(sentences)


def _keys_at(kind: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        field = kind.model_fields.get(part)
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        kind = annotation
    return list(kind.model_fields)
