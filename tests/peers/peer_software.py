"""Find other people's software, or skip the test with a sentence on what is missing; and run programs with it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PLACE = "ASMIL_PEERS"
HERE = Path(__file__).parent
STAND_INS, PROGRAMS = HERE / "stand_ins", HERE / "programs"
PAGE = HERE.parents[1] / "docs" / "coming_from.md"
PATIENCE_S = 300


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


def run(*command: object, paths: tuple[Path, ...] = (), cwd: Path | None = None) -> str:
    """Run Python with folders of modules before its own; the output, or a failed test with all that it told."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, command)],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
