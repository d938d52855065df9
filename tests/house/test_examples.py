"""The examples in docstrings show what the code does."""

import doctest
import importlib

import pytest

from shared_data import REPOSITORY

SOURCES = REPOSITORY / "src"
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
    for path in (SOURCES / "asmil").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_of_a_module(module):
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted > 0
    assert found.failed == 0
