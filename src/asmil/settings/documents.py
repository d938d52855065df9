"""JSON and YAML files, read and validated in one step; an error is one sentence that names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from asmil.errors import HIDDEN, AsmilError

Content = TypeVar("Content")

MOST_YAML, MOST_VALUES, DEEPEST = 500_000, 200_000, 50
"""Limits far beyond any settings: characters of a text, values after expanding aliases, levels of nesting."""


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
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise AsmilError(f"{path} cannot be read ({one_line(error)}); {remedy}") from None
    if not isinstance(values, dict):
        raise AsmilError(f"{path} does not hold settings; {remedy}")
    return values


def parse_yaml(text: str) -> Any:
    """YAML text as plain values; every error is a `yaml.YAMLError`.

    Text whose aliases expand to millions of values, or with characters that would change a terminal, is refused.
    """
    if len(text) > MOST_YAML:
        raise yaml.YAMLError(f"more than {MOST_YAML} characters")
    loader = _SettingsLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _expanded_size(node, {}, 0)
        return loader.construct_document(node)
    # impossible dates, infinite numbers and lists, tags of another type
    except (ValueError, OverflowError, RecursionError, AttributeError, TypeError) as error:
        raise yaml.YAMLError(str(error)) from None
    finally:
        loader.dispose()


class _SettingsLoader(yaml.SafeLoader):
    """Plain values only, and few open brackets: PyYAML's time grows with the square of their number."""

    def fetch_flow_collection_start(self, token_class: type[yaml.Token]) -> None:
        if self.flow_level >= DEEPEST:
            raise yaml.YAMLError(f"more than {DEEPEST} brackets in each other")
        super().fetch_flow_collection_start(token_class)


def _expanded_size(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """The number of values of a node when each alias is expanded."""
    if id(node) in known:
        if not known[id(node)]:
            raise yaml.YAMLError("an alias refers to a node that contains it")
        return known[id(node)]
    if depth > DEEPEST:
        raise yaml.YAMLError(f"more than {DEEPEST} levels")
    known[id(node)] = 0
    if isinstance(node, yaml.ScalarNode):
        if hidden := HIDDEN.search(node.value.replace("\n", "").replace("\t", "")):
            raise yaml.YAMLError(f"control character {hidden[0]!a}")
        children = []
    else:
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(child,) for child in node.value]
        children = [child for pair in pairs for child in pair]
    size = 1 + sum(_expanded_size(child, known, depth + 1) for child in children)
    if size > MOST_VALUES:
        raise yaml.YAMLError(f"more than {MOST_VALUES} values")
    known[id(node)] = size
    return size


def _damaged(error: ValidationError, where: str, remedy: str) -> AsmilError:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    return AsmilError(f"{where}: {f'{name}: ' if name else ''}{one_line(first['msg'])}; {remedy}")


def one_line(message: object) -> str:
    """The message of an error on one line, short enough for the middle of a sentence."""
    return " ".join(str(message).split())[:200]
