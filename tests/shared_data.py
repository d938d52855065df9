"""Where the shared oracles and data lie, and skipping when they are not there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED_DATA = Path(os.environ.get("ASMIL_DATA", REPOSITORY.parent / "shared" / "data"))
ORACLES = SHARED_DATA.parent / "oracles"


def oracle_files(*patterns: str, only: Callable[[Path], bool] = Path.exists) -> list[object]:
    """The oracle files that match, as test parameters; one skipped parameter when there are none."""
    found = sorted({path for pattern in patterns for path in ORACLES.glob(pattern) if only(path)})
    if not found:
        reason = f"no oracle files at {ORACLES}; set ASMIL_DATA to the shared data folder"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(path, id=path.stem) for path in found]


def shared_file(path: Path) -> Path:
    """A file of the shared folder; the test is skipped, saying so, when it is not there."""
    if not path.is_file():
        pytest.skip(f"{path} is not there; set ASMIL_DATA to the shared data folder")
    return path


def read_oracle(name: str) -> dict[str, Any]:
    """One oracle file, or the test is skipped."""
    return json.loads(shared_file(ORACLES / f"{name}.json").read_text())
