"""Where the oracle files and the shared data lie; tests are skipped where the shared data is not there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED_DATA = Path(os.environ.get("ASMIL_DATA", REPOSITORY.parent / "shared" / "data"))
ORACLES = REPOSITORY / "oracles" / "data"


def oracle_files(*patterns: str, only: Callable[[Path], bool] = Path.exists) -> list[object]:
    """The oracle files that match, as test parameters."""
    found = sorted({path for pattern in patterns for path in ORACLES.glob(pattern) if only(path)})
    assert found, f"no oracle file matches {patterns}"
    return [pytest.param(path, id=path.stem) for path in found]


def shared_file(path: Path) -> Path:
    """A file of the shared folder; the test is skipped, saying so, when it is not there."""
    if not path.is_file():
        pytest.skip(f"{path} is not there; set ASMIL_DATA to the shared data folder")
    return path


def read_oracle(name: str) -> dict[str, Any]:
    """One oracle file."""
    content: dict[str, Any] = json.loads((ORACLES / f"{name}.json").read_text(encoding="utf-8"))
    return content
