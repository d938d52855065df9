"""Fixtures that several test folders share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from patience import PATIENCE_S

# Two workers on two cores: more threads would only wait for each other.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton decides when it is imported whether kernels run in its interpreter, and other packages import it, too.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# In the background of a shell Ctrl-C is ignored, and children inherit that; tests that interrupt them need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time: a submission must not fail by chance.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def small_cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of a synthetic cohort that trains in a second."""
    from asmil.synthetic.bags import SyntheticConfig, write_synthetic

    config = SyntheticConfig(slides=24, width=24, tiles_min=20, tiles_max=60, witness_min=0.1, seed=3)
    return write_synthetic(tmp_path_factory.mktemp("small") / "cohort", config)


@pytest.fixture
def undrawn_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports with empty figures, for tests that do not look at them: drawing takes longer than a short training."""

    def save(self: object, file: Any, format: str, **options: object) -> None:
        file.write("<svg></svg>" if format == "svg" else b"")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save)


@pytest.fixture
def whole_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished trainings keep their optimizer, as killed ones do; for tests that look into the last checkpoint."""
    monkeypatch.setattr("asmil.training.run_parts.drop_training_state", lambda training: None)


@pytest.fixture(autouse=True)
def onednn_stays_on() -> Iterator[None]:
    """torch turns oneDNN off, for the whole process, after a product in bf16 on a CPU without bf16."""
    yield
    torch.backends.mkldnn.enabled = True


@pytest.fixture(autouse=True)
def no_method_of_a_test_stays() -> Iterator[None]:
    """Methods that a test made known are forgotten, so that tests of all methods see those of the package."""
    yield
    registry = sys.modules.get("asmil.models.registry")
    if registry is not None:
        for name, method in list(registry._METHODS.items()):
            if not method.model.__module__.startswith("asmil."):
                del registry._METHODS[name]


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def asmil_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], undrawn_figures: None):
    """Run `asmil` in this process, without drawing: that saves importing torch, and figures that no test looks at."""

    def run(*arguments: object) -> Done:
        from asmil.cli.main import main

        monkeypatch.setattr(sys, "argv", ["asmil", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        told = capfd.readouterr()
        return Done(int(ended.value.code or 0), told.out, told.err)

    return run


@pytest.fixture
def asmil_command():
    """Run `asmil` as a user would, in a process of its own."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "asmil", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            **options,
        )

    return run
