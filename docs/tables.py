"""Writes the tables of settings and options in the documentation from the code.

    python docs/tables.py            rewrite the tables that are out of date
    python docs/tables.py --check    list them, and exit with 1 if there are any

The arguments and options of a verb stand between `<!-- options: VERB -->` and `<!-- end -->`.

A table stands between `<!-- settings: NAME -->` and `<!-- end -->`. NAME is a module of `asmil.models` (the `model`
section of its methods) or a section of `asmil.runs.config.RunConfig`.

`<!-- guide: situations -->` and `<!-- guide: methods -->` are the tables of `asmil methods`. The costs in them are read
from the records in docs/results and written to src/asmil/models/data/costs.json, which the package contains.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

DOCS = Path(__file__).parent
NUMBERS = ("whole number", "number")
BOUNDS = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt"}
TABLE = re.compile(r"(<!-- (settings|options|guide): ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
COSTS = DOCS.parent / "src" / "asmil" / "models" / "data" / "costs.json"
RECORDS = ("", "_neoverse")
"""Records of method_speed; a method that is in several is taken from the last, in units of the abmil of its record."""


def main(arguments: list[str]) -> int:
    """Rewrite or check all pages; the exit code."""
    only_check = "--check" in arguments
    is_stale = refresh(COSTS, costs(), only_check)
    for path in sorted(DOCS.rglob("*.md")):
        is_stale |= refresh(path, current(path.read_text()), only_check)
    return int(is_stale and only_check)


def refresh(path: Path, content: str, only_check: bool) -> bool:
    """Whether a file is out of date; it is rewritten unless it is only checked."""
    if path.exists() and path.read_text() == content:
        return False
    print(f"{path}: {'out of date; run python docs/tables.py' if only_check else 'rewritten'}")
    if not only_check:
        path.write_text(content)
    return True


def costs() -> str:
    """The costs of all methods from the records, in units of abmil's; megabytes for 100,000 tiles."""
    found: dict[str, dict[str, float]] = {}
    for suffix in RECORDS:
        speed = record(f"method_speed_cpu{suffix}")
        by_method = {row["method"]: row for row in speed["results"]}
        abmil = by_method["abmil"]
        for name, row in by_method.items():
            for word, key in (("prediction", "inference_s"), ("training", "training_s")):
                found.setdefault(name, {})[word] = float(f"{row[key] / abmil[key]:.3g}")
        for row in record(f"method_speed_cpu_100k{suffix}")["results"]:
            found.setdefault(row["method"], {})["megabytes"] = float(f"{max(row['inference_mb'], 0):.3g}")
    first = record(f"method_speed_cpu{RECORDS[0]}")
    abmil = next(row for row in first["results"] if row["method"] == "abmil")
    unit = {"tiles": first["tiles"], "threads": first["threads"]}
    unit |= {"prediction_s": round(abmil["inference_s"], 4), "training_s": round(abmil["training_s"], 4)}
    methods = {name: found[name] for name in sorted(found) if "(" not in name}
    return json.dumps({"abmil": unit, "methods": methods}, indent=1) + "\n"


def record(name: str) -> dict[str, Any]:
    """A record of docs/results."""
    return dict(json.loads((DOCS / "results" / f"{name}.json").read_text()))


def guide_table(name: str) -> str:
    """The table of situations, or that of all methods."""
    from asmil.models import guide, methods

    if name == "situations":
        rows = [
            (have, ", ".join(f"`{word}`" for word in names.split(", ")), why) for have, names, why in guide.guide_rows()
        ]
        return plain_markdown(("if you have", "try", "because"), rows)
    head = ("method", "what it does", "predict", "train", "MB at 100,000 tiles", "measured on real data")
    return markdown(head, (tuple(guide.method_row(method)) for method in methods().values()))


def current(page: str) -> str:
    """The page with all its tables as the code has them now."""
    write = {"settings": table_of, "options": options_table, "guide": guide_table}
    return TABLE.sub(lambda match: f"{match[1]}{write[match[2]](match[3])}{match[4]}", page)


def table_of(name: str) -> str:
    """The table of a module of `asmil.models`, or of a section of the settings of a run."""
    section = section_of(name)
    if section is None:
        return markdown(("key", "default", "meaning"), model_rows(name))
    fields = [(key, field) for key, field in section.model_fields.items() if not is_section(field.annotation)]
    rows4 = [(key, default_of(field), values_of(field), meaning_of(key, field)) for key, field in fields]
    return markdown(("key", "default", "values", "meaning"), rows4)


def section_of(name: str) -> type[BaseModel] | None:
    """The settings under a dotted name such as `training` or `stabilizers.temporal`; None for a module of methods."""
    from asmil.runs.config import RunConfig

    kind: Any = RunConfig
    for part in [] if name == "run" else name.split("."):
        if part not in kind.model_fields:
            return None
        kind = kind.model_fields[part].annotation
    return kind if is_section(kind) else None


def model_rows(module: str) -> list[tuple[str, ...]]:
    """The `model` section of all methods in a module; where methods differ, the row names its method."""
    from asmil.models import methods

    rows: dict[tuple[str, ...], list[str]] = {}
    found = [method for method in methods().values() if method.model.__module__ == f"asmil.models.{module}"]
    if not found:
        raise SystemExit(
            f"the documentation asks for the settings of {module}, which is neither a method nor a section"
        )
    for method in found:
        for key, field in method.model.config_type.model_fields.items():
            rows.setdefault((key, default_of(field), meaning_of(key, field)), []).append(method.name)
    common = len(found)
    return [
        (key, default, meaning if len(names) == common else f"{meaning} ({', '.join(names)})")
        for (key, default, meaning), names in rows.items()
    ]


def options_table(verb: str) -> str:
    """The table of the arguments and options of a verb, from its help."""
    from typer.main import get_command

    from asmil.cli.main import app

    command = get_command(app).commands[verb]  # type: ignore[attr-defined]
    types = get_type_hints(inspect.unwrap(command.callback))
    rows = [
        (parameter_name(parameter), parameter_default(parameter), parameter_meaning(parameter, types[parameter.name]))
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
    ]
    return markdown(("argument", "default", "meaning"), rows)


def parameter_name(parameter: Any) -> str:
    """An argument as the usage line has it, or all spellings of an option, long ones first."""
    if parameter.param_type_name == "argument":
        several = "..." if parameter.nargs != 1 else ""
        return str(parameter.metavar or f"{parameter.name.upper()}{several}")
    spellings = sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: not name.startswith("--"))
    value = f" {parameter.metavar}" if parameter.metavar else ""
    return "`, `".join([f"{spellings[0]}{value}", *spellings[1:]])


def parameter_default(parameter: Any) -> str:
    """The default as the help shows it; empty if there is none."""
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.default
    if isinstance(value, bool):
        return "on" if value else "off"
    unset = value is None or parameter.show_default is False or callable(value) or isinstance(value, list | tuple)
    return "" if unset else f"{value:g}" if isinstance(value, float) else str(value)


def parameter_meaning(parameter: Any, annotation: Any) -> str:
    """The help of a parameter, and its choices where the help does not name them all."""
    if not parameter.help:
        raise SystemExit(f"{parameter.name} has no help; add one to its option")
    named = [choice for choice in choices(annotation) if not re.search(rf"\b{re.escape(choice)}\b", parameter.help)]
    return f"{parameter.help} One of: {', '.join(choices(annotation))}." if named else str(parameter.help)


def choices(annotation: Any) -> list[str]:
    """The values of a literal type, also inside of a union or a list."""
    if get_origin(annotation) is Literal:
        return list(map(str, get_args(annotation)))
    return [value for part in get_args(annotation) for value in choices(part)]


def is_section(kind: Any) -> bool:
    """Whether a type is a group of settings."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def meaning_of(key: str, field: FieldInfo) -> str:
    """What a setting means; every one must say."""
    if not field.description:
        raise SystemExit(f"the setting {key} has no description; add one to its Field")
    return field.description


def default_of(field: FieldInfo) -> str:
    """The default as it is written in YAML."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


def values_of(field: FieldInfo) -> str:
    """Allowed values: the choices, and the kind or the bounds of numbers."""
    limits = bounds(field.metadata)
    named = [name for name in kinds(field.annotation) if not (limits and name in NUMBERS)]
    return ", ".join([*named, limits] if limits else named)


def kinds(annotation: Any) -> Iterator[str]:
    """A type in words, choices one by one."""
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif annotation is NoneType:
        yield "null"
    elif get_origin(annotation) in (list, tuple, dict) or not get_args(annotation):
        names = {bool: "true, false", int: "whole number", float: "number", str: "text", dict: "mapping"}
        yield names.get(get_origin(annotation) or annotation, "list")
    else:
        for part in get_args(annotation):
            yield from kinds(part)


def bounds(metadata: Iterable[Any]) -> str:
    """The bounds of a number; empty if there are none."""
    limits = {type(bound): getattr(bound, BOUNDS[type(bound)]) for bound in metadata if type(bound) in BOUNDS}
    low = limits.get(Ge, limits.get(Gt))
    high = limits.get(Le, limits.get(Lt))
    if low is None and high is None:
        return ""
    if high is None:
        return f"{low} or more" if Ge in limits else f"above {low}"
    if low is None or Gt in limits:
        return ", ".join(
            [*([f"above {low}"] if low is not None else []), f"{'below' if Lt in limits else 'at most'} {high}"]
        )
    return f"{low} to {'below ' if Lt in limits else ''}{high}"


def markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table; the first column is code."""
    return plain_markdown(head, ((f"`{key}`", *rest) for key, *rest in rows))


def plain_markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table."""
    escaped = (tuple(cell.replace("|", "\\|") for cell in row) for row in rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ("---",) * len(head), *escaped))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
