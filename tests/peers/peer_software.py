"""Find other people's software, or skip the test with a sentence on what is missing."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest

PLACE = "ASMIL_PEERS"


def module(name: str, package: str) -> ModuleType:
    """An importable module of a package on PyPI."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{package} cannot be imported ({error}): run make test-peers")


def source(name: str, evidence: str) -> Path:
    """The folder of a clone, for software that is not on PyPI; `evidence` is a file that it has."""
    place = os.environ.get(PLACE)
    if place is None:
        pytest.skip(f"{name} is not on PyPI: clone it to a folder {name}, and give its parent folder as {PLACE}")
    folder = Path(place).resolve() / name
    if not (folder / evidence).is_file():
        pytest.skip(f"{folder} does not have the file {evidence}: clone {name} there")
    return folder
