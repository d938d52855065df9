"""One training by several processes: equal to that of one process, and all of them end together."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from asmil.errors import AsmilError
from asmil.models.registry import build
from asmil.runs.config import resolve
from asmil.training.run import train_run
from asmil.training.shared_steps import (
    OneProcess,
    refuse_unshareable_method,
    refuse_unshareable_run,
    share_of,
    step_processes,
)
from patience import PATIENCE_S

SCRIPT = Path(__file__).with_name("sharing_process.py")
SETTINGS = {"model.inner": 16, "training.epochs": 3, "training.accumulate": 4, "training.lr": 0.01}
ANCHORED = {**SETTINGS, "anchor.normalizer": "nsf", "anchor.momentum": 0.9, "training.clip_norm": 0.05}


def train_with_torchrun(cohort: Path, out: Path, method: str, settings: dict, **environment: str):
    """Train by two processes; the finished launcher, with the digests of what the processes learned, if they did."""
    bits = out.with_name(f"{out.name}-bits")
    bits.mkdir(exist_ok=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT)]
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [*launcher, "train", str(cohort), "--out", str(out), "--method", method, *assignments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "EXPECTED_BITS": str(bits), **environment},
    )
    return done, [path.read_text() for path in sorted(bits.iterdir())]


def results(out: Path) -> dict:
    training = out / "fold-0" / "seed-0"
    lines = [json.loads(line) for line in (training / "metrics.jsonl").read_text().splitlines()]
    return {
        "weights": load_file(training / "checkpoints" / "best.safetensors"),
        "metrics": [{key: value for key, value in line.items() if key != "seconds"} for line in lines],
        "predictions": pd.read_parquet(out / "predictions.parquet"),
    }


@pytest.mark.heavy
def test_two_processes_train_what_one_process_trains(small_cohort, tmp_path, asmil_here, undrawn_figures):
    changes: dict = {}
    for key, value in ANCHORED.items():
        section, name = key.split(".")
        changes.setdefault(section, {})[name] = value
    train_run(small_cohort, tmp_path / "one", resolve("abmil", changes=changes))
    done, bits = train_with_torchrun(small_cohort, tmp_path / "two", "abmil", ANCHORED)
    assert done.returncode == 0, done.stderr
    assert len(bits) == 2
    assert bits[0] == bits[1]
    one, two = results(tmp_path / "one"), results(tmp_path / "two")
    for name, weights in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weights, rtol=1e-3, atol=1e-5)
    for mine, theirs in zip(one["metrics"], two["metrics"], strict=True):
        assert theirs["train"] == pytest.approx(mine["train"], rel=1e-4)
        assert theirs["val"] == pytest.approx(mine["val"], rel=1e-4)
    assert list(two["predictions"]["slide"]) == list(one["predictions"]["slide"])
    files = [
        sorted(str(path.relative_to(run)) for path in run.rglob("*")) for run in (tmp_path / "one", tmp_path / "two")
    ]
    assert files[0] == files[1]
    assert asmil_here("evaluate", tmp_path / "two").returncode == 0


@pytest.mark.heavy
def test_batches_are_shared(small_cohort, tmp_path):
    settings = {**SETTINGS, "training.accumulate": 1, "training.batch": 5}
    done, bits = train_with_torchrun(small_cohort, tmp_path / "two", "asmil", settings)
    assert done.returncode == 0, done.stderr
    assert bits[0] == bits[1]


@pytest.mark.heavy
def test_stopped_or_killed_it_resumes_with_the_same_bits(small_cohort, tmp_path):
    # asmil draws random masks in every step
    settings = {**SETTINGS, "anchor.normalizer": "nsf", "training.checkpoint_seconds": 0}
    whole, bits = train_with_torchrun(small_cohort, tmp_path / "whole", "asmil", settings)
    assert whole.returncode == 0, whole.stderr
    out, last = tmp_path / "run", tmp_path / "run" / "fold-0" / "seed-0" / "checkpoints" / "last.json"

    stopped, _ = train_with_torchrun(small_cohort, out, "asmil", settings, SIGNAL_AT=f"1 3 {int(signal.SIGTERM)}")
    assert stopped.returncode != 0
    assert stopped.stderr.count("same command") == 1
    assert json.loads(last.read_text())["step"] == 3
    alone = subprocess.run(
        [sys.executable, "-m", "asmil", "train", str(small_cohort), "--out", str(out), "--method", "asmil"]
        + [word for key, value in settings.items() for word in ("--set", f"{key}={value}")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert alone.returncode == 1
    assert "2 processes" in alone.stderr

    killed, _ = train_with_torchrun(small_cohort, out, "asmil", settings, SIGNAL_AT=f"0 4 {int(signal.SIGKILL)}")
    assert killed.returncode != 0
    assert json.loads(last.read_text())["step"] == 6

    resumed, bits_resumed = train_with_torchrun(small_cohort, out, "asmil", settings)
    assert resumed.returncode == 0, resumed.stderr
    assert bits_resumed == bits
    expected, found = results(tmp_path / "whole"), results(out)
    assert all(torch.equal(found["weights"][name], one) for name, one in expected["weights"].items())
    assert found["metrics"] == expected["metrics"]
    assert found["predictions"].equals(expected["predictions"])


@pytest.mark.heavy
def test_an_error_of_one_process_ends_both_with_its_sentence(small_cohort, tmp_path):
    shutil.copytree(small_cohort.parent, tmp_path / "cohort")
    manifest = pd.read_csv(tmp_path / "cohort" / "cohort.csv")
    train = list(manifest.loc[manifest["split"] == "train", "slide"])
    # the last bag of the first step is the second process's
    slide = train[np.random.default_rng([0, 0, 2, 0]).permutation(len(train))[3]]
    with h5py.File(tmp_path / "cohort" / "features" / f"{slide}.h5", "r+") as file:
        file["features"][0, 0] = np.nan
    settings = {**SETTINGS, "record.attention": "none"}
    done, bits = train_with_torchrun(tmp_path / "cohort" / "cohort.csv", tmp_path / "run", "abmil", settings)
    assert done.returncode != 0
    assert bits == []
    assert [line.count(slide) > 0 for line in done.stderr.splitlines() if line.startswith("error: ")] == [True]


def test_every_bag_is_computed_by_one_process():
    for bags in range(1, 12):
        for count in range(1, 6):
            shares = [share_of(range(7, 7 + bags), rank, count) for rank in range(count)]
            assert [place for share in shares for place in share] == list(range(7, 7 + bags))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("world_size", [None, "1"])
def test_without_other_processes_nothing_is_exchanged(monkeypatch, world_size):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if world_size is not None:  # torchrun --nproc-per-node 1
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
        monkeypatch.setenv("WORLD_SIZE", world_size)
    with step_processes() as processes:
        assert type(processes) is OneProcess
        assert processes.leads
        parameter, losses = nn.Parameter(torch.ones(2)), torch.ones(3, 1)
        processes.sum_step([parameter], losses)
        assert parameter.grad is None
        assert losses.sum() == 3
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"training": {"accumulate": 1}}, "training.accumulate"),
        ({"training": {"batch": 1, "accumulate": 3}}, "4 processes"),
        ({"training": {"accumulate": 8}, "folds": 5}, "--engine"),
        ({"training": {"accumulate": 8}, "seeds": 2}, "--engine"),
        ({"training": {"accumulate": 8, "executor": "fused"}}, "training.executor"),
        ({"training": {"accumulate": 8}, "task": {"kind": "survival", "loss": "cox"}}, "task.loss"),
        ({"training": {"accumulate": 8}, "stabilizers": {"temporal": {"weight": 1.0}}}, "stabilizers.temporal"),
    ],
)
def test_what_cannot_be_shared_is_refused(changes, named):
    with pytest.raises(AsmilError, match=named):
        refuse_unshareable_run(resolve("abmil", changes=changes), processes=4)


def test_what_can_be_shared_is_not_refused():
    refuse_unshareable_run(resolve("abmil", changes={"training": {"batch": 2, "accumulate": 2}}), processes=4)
    refuse_unshareable_method(build("abmil", 8, 2), "abmil", processes=4)


@pytest.mark.parametrize("method", ["psmil", "mhim"])
def test_methods_that_learn_from_one_bag_after_the_other_are_refused(method):
    with pytest.raises(AsmilError, match=method):
        refuse_unshareable_method(build(method, 8, 2), method, processes=2)
