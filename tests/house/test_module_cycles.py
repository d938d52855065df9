"""No module imports itself by way of others, also not inside of functions or where only type checkers look."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from shared_data import REPOSITORY

SOURCES = REPOSITORY / "src"


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, known: set[str]) -> set[str]:
    """Modules that a file imports, at its top or inside of functions."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in known else node.module for name in inner}
    return imported & known


def import_graph(root: Path) -> dict[str, set[str]]:
    modules = {module_name(path, root): path for path in root.rglob("*.py")}
    return {name: imported_modules(path, set(modules)) - {name} for name, path in modules.items()}


def test_no_module_cycles():
    TopologicalSorter(import_graph(SOURCES)).prepare()


@pytest.mark.parametrize(
    "second",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from first import Thing\n",
        "def function():\n    from first import Thing\n    return Thing\n",
        "class Lazy:\n    def method(self):\n        import first\n        return first\n",
    ],
    ids=["type checking", "function", "method"],
)
def test_a_hidden_cycle_is_found(tmp_path, second):
    (tmp_path / "first.py").write_text("import second")
    (tmp_path / "second.py").write_text(second)
    with pytest.raises(CycleError):
        TopologicalSorter(import_graph(tmp_path)).prepare()
