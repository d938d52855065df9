"""Python code on pages, in the README and in examples uses public names only."""

from __future__ import annotations

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

import asmil
from shared_data import REPOSITORY

PUBLIC_PACKAGES = (
    "asmil",
    "asmil.cohort.features",
    "asmil.engine",
    "asmil.evaluation",
    "asmil.evaluation.localization",
    "asmil.models",
    "asmil.models.official",
    "asmil.slides.annotations",
)
"""Their names are public; docs/python.md lists them."""
PAGES = [
    REPOSITORY / "README.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    *sorted((REPOSITORY / "examples").glob("*.py")),
    *sorted((REPOSITORY / "examples").glob("*.ipynb")),
]


def code_of(page: Path) -> list[str]:
    """The Python code of a page, a notebook or a script."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".py":
        return [text]
    if page.suffix == ".ipynb":
        return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def public_names(package: str) -> set[str]:
    module = importlib.import_module(package)
    listed = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    return set(listed)


def private_names(code: str) -> list[str]:
    """What a piece of code uses of asmil that is not public."""
    private = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.partition(".")[0] == "asmil"]
            private += [name for name in names if name not in PUBLIC_PACKAGES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "asmil":
            package = str(node.module)
            known = public_names(package) if package in PUBLIC_PACKAGES else set()
            imported = {alias.name: f"{package}.{alias.name}" for alias in node.names}
            private += [full for name, full in imported.items() if name not in known and full not in PUBLIC_PACKAGES]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "asmil":
            is_package = any(package.startswith(f"asmil.{node.attr}") for package in PUBLIC_PACKAGES)
            private += [] if node.attr in asmil.__all__ or is_package else [f"asmil.{node.attr}"]
    return private


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_a_page_uses_public_names(page):
    assert [name for code in code_of(page) for name in private_names(code)] == []


@pytest.mark.parametrize(
    "code",
    [
        "import asmil.training.loop",
        "from asmil.runs.config import resolve",
        "from asmil import nonsense",
        "import asmil\nasmil.nonsense()",
        "from asmil.evaluation import nonsense",
    ],
)
def test_private_names_are_seen(code):
    assert private_names(code)


def test_public_packages_are_documented():
    page = (REPOSITORY / "docs" / "python.md").read_text(encoding="utf-8")
    assert [package for package in PUBLIC_PACKAGES if package not in page] == []
