"""No module imports itself by way of others, also where only type checkers look (`if TYPE_CHECKING:`)."""

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from shared_data import REPOSITORY

SOURCES = REPOSITORY / "src"


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_level_imports(statements: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            blocks = [statement.body, getattr(statement, "orelse", []), getattr(statement, "finalbody", [])]
            blocks += [handler.body for handler in getattr(statement, "handlers", [])]
            yield from module_level_imports(inner for block in blocks for inner in block)


def imported_modules(path: Path, known: set[str]) -> set[str]:
    found = set()
    for node in module_level_imports(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in inner}
    return found & known


def import_graph(root: Path) -> dict[str, set[str]]:
    modules = {module_name(path, root): path for path in root.rglob("*.py")}
    return {name: imported_modules(path, set(modules)) - {name} for name, path in modules.items()}


def test_no_module_cycles():
    TopologicalSorter(import_graph(SOURCES)).prepare()


def test_a_cycle_under_type_checking_is_found(tmp_path):
    (tmp_path / "first.py").write_text("import second")
    (tmp_path / "second.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from first import Thing\n"
    )
    with pytest.raises(CycleError):
        TopologicalSorter(import_graph(tmp_path)).prepare()
