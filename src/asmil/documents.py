"""JSON and YAML files, read and validated in one step: what is wrong with one is a sentence that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError
from yaml.nodes import Node

from asmil.errors import AsmilError

Content = TypeVar("Content")


def read_json(path: Path, kind: type[Content], remedy: str) -> Content:
    """The content of a JSON file as a `kind`: anything that pydantic validates.

    remedy: what to do if the file is damaged, for the message
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise AsmilError(f"{path}: {error.strerror or error}; {remedy}") from None
    return parse_json(text, kind, str(path), remedy)


def parse_json(text: str | bytes, kind: type[Content], where: str, remedy: str) -> Content:
    """JSON text as a `kind`; `where` names it in the message."""
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise _damaged(error, where, remedy) from None


def validated(values: Any, kind: type[Content], where: str, remedy: str) -> Content:
    """Plain values as a `kind`; `where` names their file in the message."""
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise _damaged(error, where, remedy) from None


def read_yaml(path: Path, remedy: str) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _PlainLoader)
    # numbers and dates that only look like such are ValueErrors, text that is not UTF-8 as well
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise AsmilError(f"{path} cannot be read ({one_line(error)}); {remedy}") from None
    if not isinstance(values, dict):
        raise AsmilError(f"{path} does not hold settings; {remedy}")
    return values


class _PlainLoader(yaml.SafeLoader):
    """Without aliases: our files have none, and a few lines of them can stand for billions of values."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it holds an alias")
        node: Node | None = super().compose_node(parent, index)
        return node


def _damaged(error: ValidationError, where: str, remedy: str) -> AsmilError:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    return AsmilError(f"{where}: {f'{name}: ' if name else ''}{one_line(first['msg'])}; {remedy}")


def one_line(told: object) -> str:
    """What a library says of an error, short enough for the middle of a sentence."""
    return " ".join(str(told).split())[:200]
