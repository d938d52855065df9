"""Fixtures that several test folders share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Two workers on two cores: more threads would only wait for each other.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def small_cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of a synthetic cohort that trains in a second."""
    from asmil.cohort.synthetic import SyntheticConfig, write_synthetic

    config = SyntheticConfig(slides=24, width=24, tiles_min=20, tiles_max=60, witness_min=0.1, seed=3)
    return write_synthetic(tmp_path_factory.mktemp("small") / "cohort", config)


@pytest.fixture
def asmil_command():
    """Run `asmil` as a user would, in a process of its own."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "asmil", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            **options,
        )

    return run
