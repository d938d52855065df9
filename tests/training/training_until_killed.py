"""A training in a process of its own that the system kills right after a checkpoint, at a step and not at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCRIPT = """
import json, os, signal, sys
import torch
manifest, out, method, changes, step, flush = sys.argv[1:]
torch.set_num_threads(1)
torch.set_flush_denormal(flush == "True")
from asmil.runs.config import resolve
from asmil.runs.checkpoint import CheckpointStore
from asmil.training.run import train_run
save = CheckpointStore.save_last
def save_and_die(self, tensors, progress):
    save(self, tensors, progress)
    if progress["step"] >= int(step):
        os.kill(os.getpid(), signal.SIGKILL)
CheckpointStore.save_last = save_and_die
train_run(manifest, out, resolve(method, changes=json.loads(changes)))
"""


def train_until_killed(
    manifest: Path, out: Path, method: str, changes: Mapping[str, Any], step: int, flush: bool = False
) -> None:
    """Train until the checkpoint after so many steps; `flush` is the state of the process, not of the training."""
    arguments = [str(manifest), str(out), method, json.dumps(changes), str(step), str(flush)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    state = json.loads((out / "fold-0" / "seed-0" / "checkpoints" / "last.json").read_text())
    assert state["step"] == step
