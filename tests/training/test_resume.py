"""Killed processes: a run that is started again ends with the same bits."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file

from asmil.runs.attention_file import read_attention
from patience import PATIENCE_S

# Small models: a checkpoint is written at every step.
SMALL = ["--set", "model.inner=16"]
SETTINGS = [*SMALL, "--set", "training.epochs=6", "--set", "training.checkpoint_seconds=0"]


def start(cohort: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    # Every step is slowed down a little, so that there is a time at which to kill; the report is left out.
    script = (
        "import time, asmil.training.gradients as gradients\n"
        "original = gradients.StepGradients.of_one\n"
        "def slow(self, *a):\n    time.sleep(0.02)\n    return original(self, *a)\n"
        "gradients.StepGradients.of_one = slow\n"
        "import asmil.cli.train\nasmil.cli.train._print_results = lambda *a: None\n"
        "from asmil.cli.main import main\nmain()"
    )
    command = [sys.executable, "-c", script, "train", str(cohort), "--out", str(out), *SETTINGS, *more]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def wait_for(condition, process: subprocess.Popen[str], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the run did not get that far"
        if process.poll() is not None:
            return
        time.sleep(0.005)


def state(out: Path) -> dict:
    path = out / "fold-0" / "seed-0" / "checkpoints" / "last.json"
    return json.loads(path.read_text()) if path.exists() else {"stage": 0, "step": 0}


def results(out: Path) -> dict:
    training = out / "fold-0" / "seed-0"
    lines = [json.loads(line) for line in (training / "metrics.jsonl").read_text().splitlines()]
    return {
        "best": {k: v.tolist() for k, v in load_file(training / "checkpoints" / "best.safetensors").items()},
        "metrics": [{key: value for key, value in line.items() if key != "seconds"} for line in lines],
        "predictions": pd.read_parquet(out / "predictions.parquet").to_dict("list"),
        "attention": recorded(training),
    }


def recorded(training: Path) -> dict:
    record = read_attention(training)
    assert not (training / "attention.parts").exists()
    return {
        "epochs": record.epochs.tolist(),
        "steps": record.steps.tolist(),
        "logits": record.logits.tolist(),
        "embedding": record.embedding.tolist(),
        "weights": [record.attention(i).tolist() for i in range(len(record.slides))],
    }


@pytest.fixture(scope="module")
def uninterrupted(small_cohort, tmp_path_factory):
    cache = {}

    def run(method: str, *more: str) -> dict:
        if (method, more) not in cache:
            out = tmp_path_factory.mktemp("whole") / method
            process = start(small_cohort, out, "--method", method, *more)
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, errors
            cache[method, more] = results(out)
        return cache[method, more]

    return run


# Stabilizers with a memory, a trained normalizer, and attention recorded in the middle of epochs.
STABILIZED = (
    *("--stabilizer", "temporal=0.5", "--stabilizer", "features=0.5", "--anchor", "nsf"),
    *("--set", "attention.normalizer=mixture", "--set", "record.every=5", "--set", "record.role=both"),
)
# Where to kill: stage and step. MHIM has two stages, with a teacher and a mask in the second.
KILLS = [
    ("asmil", (), [(0, 3), (0, 41)]),
    ("abmil", STABILIZED, [(0, 7), (0, 30)]),
    ("mhim", (), [(0, 20), (1, 15)]),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("method", "more", "kills"), KILLS)
def test_killed_at_any_step_ends_with_the_same_bits(small_cohort, tmp_path, uninterrupted, method, more, kills):
    out = tmp_path / "run"
    for place in kills:
        process = start(small_cohort, out, "--method", method, *more)
        wait_for(lambda place=place: (state(out)["stage"], state(out)["step"]) >= place, process)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=PATIENCE_S)
        assert process.returncode == -signal.SIGKILL, "it ended before it could be killed"
    process = start(small_cohort, out, "--method", method, *more)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert results(out) == uninterrupted(method, *more)
    assert not list(out.rglob("*.partial"))


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_saves_says_so_and_goes_on(small_cohort, tmp_path, uninterrupted, number):
    out = tmp_path / "run"
    process = start(small_cohort, out, "--method", "abmil", "--set", "training.checkpoint_seconds=1000")
    log = out / "fold-0" / "seed-0" / "metrics.jsonl"
    wait_for(lambda: log.exists() and log.read_text().count("\n") >= 2, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "same command" in errors
    assert state(out)["step"] > 0
    process = start(small_cohort, out, "--method", "abmil")
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert results(out) == uninterrupted("abmil")


def test_a_finished_run_is_not_trained_again_and_other_settings_are_refused(small_cohort, tmp_path, asmil_here):
    command = ["train", small_cohort, "--out", tmp_path / "run", "--set", "training.epochs=2", "-m", "abmil", *SMALL]
    assert asmil_here(*command).returncode == 0
    before = (tmp_path / "run" / "fold-0" / "seed-0" / "metrics.jsonl").stat().st_mtime_ns
    assert asmil_here(*command).returncode == 0
    assert (tmp_path / "run" / "fold-0" / "seed-0" / "metrics.jsonl").stat().st_mtime_ns == before
    other = asmil_here(*command, "--set", "training.lr=0.5")
    assert other.returncode == 1
    assert all(word in other.stderr for word in ("training.lr", "0.0001", "0.5"))
    assert "Traceback" not in other.stderr


@pytest.mark.heavy
def test_a_second_process_is_refused_while_the_first_trains(small_cohort, tmp_path, asmil_here):
    out = tmp_path / "run"
    first = start(small_cohort, out, "--method", "abmil")
    wait_for(lambda: state(out)["step"] > 0, first)
    os.kill(first.pid, signal.SIGSTOP)
    lines = (out / "fold-0" / "seed-0" / "metrics.jsonl").read_text()
    second = asmil_here("train", small_cohort, "--out", out, *SETTINGS, "--method", "abmil")
    other = asmil_here("train", small_cohort, "--out", tmp_path / "other", *SETTINGS, "--method", "abmil")
    assert second.returncode == 1
    assert str(out) in second.stderr
    assert other.returncode == 0, other.stderr
    assert (out / "fold-0" / "seed-0" / "metrics.jsonl").read_text() == lines
    first.kill()
    first.communicate()
    assert asmil_here("train", small_cohort, "--out", out, *SETTINGS, "--method", "abmil").returncode == 0
    assert results(out) == results(tmp_path / "other")
