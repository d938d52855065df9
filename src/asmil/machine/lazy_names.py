"""Packages whose names are loaded when they are first used; each name is listed once, in the package's stub file."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def lazy_names(
    package: str, file: str, moved: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose `__init__.pyi` lists its names.

    Every `from module import name as name` of the stub is a public name. Type checkers read the same file.

    moved: names that are deprecated here, and the module to import them from
    """
    homes = _homes(Path(file).with_suffix(".pyi"))
    deprecated = moved or {}

    def load(name: str) -> Any:
        if name in deprecated:
            warnings.warn(
                f"{package}.{name} is deprecated; import it from {deprecated[name]}", DeprecationWarning, stacklevel=2
            )
            return getattr(importlib.import_module(deprecated[name]), name)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(homes)
    return load, lambda: names, names


def former_name(name: str, new: str) -> Any:
    """A deprecated attribute of a class that gives the attribute `new`."""

    def get(self: Any) -> Any:
        warnings.warn(f"{type(self).__name__}.{name} is deprecated; use {new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(get)


def _homes(stub: Path) -> dict[str, str]:
    """The module of every name that a stub re-exports."""
    statements = ast.parse(stub.read_text(encoding="utf-8")).body
    imports = [statement for statement in statements if isinstance(statement, ast.ImportFrom) and statement.module]
    return {alias.asname: str(each.module) for each in imports for alias in each.names if alias.asname}


def import_modules(package: str) -> None:
    """Import every module of a package, so that what they register is known."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
