"""A run whose folds and seeds train side by side is the run that they give one after the other."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from asmil import AsmilError
from asmil.runs.config import resolve
from asmil.training.run import RunObserver, train_run
from asmil.training.side_by_side import step
from asmil.training.side_by_side.schedule import StepCost, padded_steps, work_reason

FOLDS, SEEDS = 3, 2


class Notes(RunObserver):
    def __init__(self):
        self.notes, self.started = [], []

    def note(self, text):
        self.notes.append(text)

    def training(self, fold, seed, epochs, epochs_done):
        self.started.append((fold, seed, epochs_done))


def settings(method="abmil", executor="auto", **sections):
    training = {"epochs": 2, "lr": 0.005, "device": "cpu", "executor": executor, **sections.pop("training", {})}
    small = {"model": {"inner": 16}} if method in ("abmil", "asmil", "clam_sb", "mean_pooling") else {}
    return resolve(method, changes={**small, "training": training, "folds": FOLDS, "seeds": SEEDS, **sections})


def trained(cohort, out, config):
    observer = Notes()
    folder = train_run(cohort, out, config, observer=observer)
    return folder, observer


def executor_of(folder, fold=0, seed=0):
    return json.loads((folder.training(fold, seed) / "checkpoints" / "last.json").read_text())["executor"]


def files_of(folder):
    return sorted(str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("method", "sections"),
    [
        ("abmil", {"training": {"early_stopping": 1, "epochs": 4}}),
        ("abmil", {"anchor": {"normalizer": "nsf", "momentum": 0.9}, "record": {"attention": 2}}),
        ("asmil", {"training": {"ema": 0.9}, "model": {"standardize": True, "inner": 16}}),
        ("clam_sb", {"training": {"sampling": "balanced", "class_weights": "balanced", "weight_decay": 0.1}}),
        pytest.param("clam_mb", {"model": {"inner": 16, "k_sample": 40, "k_rule": "half"}}, marks=pytest.mark.heavy),
        pytest.param("dsmil", {}, marks=pytest.mark.heavy),
        ("linear", {}),
        pytest.param("max_pooling", {"model": {"level": "embedding"}}, marks=pytest.mark.heavy),
        ("mean_pooling", {}),
        pytest.param("transmil", {"model": {"inner": 16, "heads": 2}}, marks=pytest.mark.heavy),
    ],
)
def test_a_run_side_by_side_is_a_run_one_by_one(small_cohort, tmp_path, method, sections):
    """With dropout, schedules, choice of epochs, recordings: the same files, and the same numbers up to rounding."""
    together, observer = trained(small_cohort, tmp_path / "together", settings(method, **sections))
    alone, _ = trained(small_cohort, tmp_path / "alone", settings(method, "plain", **sections))
    assert any("side by side" in note for note in observer.notes)
    assert (executor_of(together), executor_of(alone)) == ("side_by_side", "plain")
    assert sorted(observer.started) == [(fold, seed, 0) for fold in range(FOLDS) for seed in range(SEEDS)]
    assert files_of(together) == files_of(alone)
    ours, theirs = (pd.read_parquet(folder.predictions) for folder in (together, alone))
    columns = [name for name in ours if name.startswith("prob_")]
    pd.testing.assert_frame_equal(ours.drop(columns=columns), theirs.drop(columns=columns))
    np.testing.assert_allclose(ours[columns], theirs[columns], rtol=0, atol=2e-4)
    for fold in range(FOLDS):
        records = [
            [json.loads(line) for line in (folder.training(fold, 1) / "metrics.jsonl").read_text().splitlines()]
            for folder in (together, alone)
        ]
        for one_of_ours, one_of_theirs in zip(*records, strict=True):
            assert one_of_ours["lr"] == one_of_theirs["lr"]
            assert one_of_ours["train"] == pytest.approx(one_of_theirs["train"], abs=1e-3)


def test_a_killed_run_ends_with_the_same_bits(small_cohort, tmp_path, monkeypatch, whole_checkpoints):
    config = settings("asmil", training={"epochs": 3, "checkpoint_seconds": 0, "ema": 0.9})
    whole, _ = trained(small_cohort, tmp_path / "whole", config)
    original, calls = step.StackedSteps.run_epoch, []

    def killed(self, due):
        calls.append(due)
        if len(calls) == 3:
            raise KeyboardInterrupt
        original(self, due)

    with monkeypatch.context() as patch:
        patch.setattr(step.StackedSteps, "run_epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            train_run(small_cohort, tmp_path / "resumed", config)
    resumed, observer = trained(small_cohort, tmp_path / "resumed", config)
    assert {epochs_done for _, _, epochs_done in observer.started} == {2}
    for fold in range(FOLDS):
        for seed in range(SEEDS):
            first, second = (
                load_file(folder.training(fold, seed) / "checkpoints" / "last.safetensors")
                for folder in (whole, resumed)
            )
            assert first.keys() == second.keys()
            assert [name for name in first if not torch.equal(first[name], second[name])] == []
    pd.testing.assert_frame_equal(pd.read_parquet(whole.predictions), pd.read_parquet(resumed.predictions))


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"training": {"batch": 2}}, "batch"),
        ({"data": {"cache": "none"}}, "data.cache"),
        ({"model": {"inner": 2048}}, "2048"),
        ({"folds": 1, "seeds": 1}, "one training"),
    ],
)
def test_the_plain_executor_is_explained(small_cohort, tmp_path, sections, named):
    sections = {"training": {"epochs": 1, **sections.pop("training", {})}, **sections}
    folder, observer = trained(small_cohort, tmp_path / "run", settings("abmil", **sections))
    assert executor_of(folder) == "plain"
    (note,) = [note for note in observer.notes if "executor" in note]
    assert named.replace("2048", "weights") in note


def test_side_by_side_is_refused_where_it_cannot_be_used(small_cohort, tmp_path):
    with pytest.raises(AsmilError, match="batch"):
        train_run(small_cohort, tmp_path / "run", settings("abmil", "side_by_side", training={"batch": 2}))


def test_padded_steps_keep_every_order_and_pad_little():
    draw = np.random.default_rng(0)
    orders = [draw.integers(1, 100, 40).tolist() for _ in range(6)]
    for cost, fewest in ((StepCost(100, 1, 1, 1), 5), (StepCost(1e6, 1, 0, 0), 1)):
        steps = list(padded_steps(orders, fewest, cost))
        position = [0] * 6
        for active in steps:
            lengths = [orders[number][position[number]] for number in active]
            assert min(lengths) >= fewest or len(set(lengths)) == 1
            for number in active:
                position[number] += 1
        assert position == [40] * 6
    assert len(steps) < 60, "if starting a step is expensive, nobody waits without need"


def test_long_bags_gain_nothing():
    from asmil.runs.model import build_model

    model = build_model(resolve("abmil"), 192, 2, 0)
    assert work_reason(model, 30, "cpu") is None
    assert work_reason(model, 3000, "cpu") is not None
    assert work_reason(model, 30, "cuda") is None
    assert work_reason(model, 30_000, "cuda") is not None
