"""Trainings of all tasks, with one or several bags per step, give side by side what each gives alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asmil import Bag, methods
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification, balanced_weights
from asmil.tasks.multilabel import MultiLabel
from asmil.tasks.regression import Regression
from asmil.tasks.survival import Survival
from asmil.training.labeled_bags import BagList, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.side_by_side.bags import NotSideBySide
from asmil.training.side_by_side.long_steps import similar_lengths
from asmil.training.side_by_side.train import fit_side_by_side

BAGS, WIDTH, TRAININGS = 14, 6, 3
SMALL = {"inner": 8, "hidden": 8, "heads": 2, "attention": 4, "query_width": 4}
NEEDS_COORDINATES = {"camil", "patch_gcn", "sm_abmil"}
ROUTED = {"clam_mb", "psmil"}
"""Methods that update more than their weights, or that train other weights for every class."""


def make_bags():
    draw = np.random.default_rng(0)
    features = [
        torch.from_numpy(draw.normal(size=(int(n), WIDTH)).astype(np.float32)) for n in draw.integers(1, 9, BAGS)
    ]
    return [Bag(values, id=f"bag {i}") for i, values in enumerate(features)]


def targets_of(kind):
    draw = np.random.default_rng(1)
    if kind == "classification":
        return np.arange(BAGS) % 2
    if kind == "regression":
        return draw.normal(5, 3, BAGS)
    if kind == "multilabel":
        return np.where(draw.random((BAGS, 3)) < 0.2, np.nan, draw.integers(0, 2, (BAGS, 3))).astype(np.float32)
    return np.stack([draw.exponential(10, BAGS), np.arange(BAGS) % 2], axis=1)


def task_of(kind, targets, number):
    """A task as it is fitted on the training bags, with other numbers in every fold."""
    if kind == "classification":
        return Classification(["a", "b"], balanced_weights(targets.tolist(), 2))
    if kind == "regression":
        return Regression.of_training(targets)
    if kind == "multilabel":
        return MultiLabel(["x", "y", "z"])
    return Survival([0.0, 3.0 + number, 8.0 + number, 100.0], alpha=0.2)


def make_trainings(config, number_of=TRAININGS):
    bags, targets = make_bags(), targets_of(config.task.kind)
    trainers, train, val = [], [], []
    for number in range(number_of):
        held_out = np.arange(BAGS) % 5 == number
        own = targets[~held_out]
        task = task_of(config.task.kind, own, number)
        trainers.append(
            Trainer(build_model(config, WIDTH, task.n_outputs, number), task, config, seed=number, fold=number)
        )
        strata = np.arange(len(own)) % 2
        train.append(LabeledBags(BagList([bags[i] for i in np.flatnonzero(~held_out)]), own, strata, ("a", "b")))
        val.append(LabeledBags(BagList([bags[i] for i in np.flatnonzero(held_out)]), targets[held_out], None))
    return trainers, train, val


def settings(method, kind, **sections):
    fields = methods()[method].model.config_type.model_fields
    small = {key: value for key, value in SMALL.items() if key in fields and (method, key) != ("linear", "inner")}
    if method in ("psmil", "sm_abmil"):
        small["embedding_layers"] = 1
    training = {
        "epochs": 2,
        "lr": 0.01,
        "device": "cpu",
        "precision": "fp32",
        "select": "last",
        **sections.pop("training"),
    }
    return resolve(method, "paper", {"model": small, "training": training, "task": {"kind": kind}, **sections})


def compare(config):
    trainers, train, val = make_trainings(config)
    records = {number: [] for number in range(TRAININGS)}
    for number, trainer in enumerate(trainers):
        trainer.on_epoch = records[number].append
    fit_side_by_side(trainers, train, val)
    for number, trainer in enumerate(make_trainings(config)[0]):
        alone = []
        trainer.on_epoch = alone.append
        trainer.fit(train[number], val[number])
        expected = trainer.predict(train[number].bags)
        torch.testing.assert_close(trainers[number].predict(train[number].bags), expected, rtol=0, atol=1e-4)
        assert trainers[number].progress.step == trainer.progress.step
        for ours, theirs in zip(records[number], alone, strict=True):
            assert ours["lr"] == theirs["lr"]
            assert ours["train"] == pytest.approx(theirs["train"], abs=1e-4)


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("kind", ["survival", "regression", "multilabel", "classification"])
@pytest.mark.parametrize("method", ["abmil", "asmil", "mean_pooling"])
def test_tasks_side_by_side_are_those_of_one_training(method, kind, accumulate):
    compare(settings(method, kind, training={"accumulate": accumulate}))


@pytest.mark.parametrize("method", sorted(set(methods()) - NEEDS_COORDINATES))
def test_every_method_takes_steps_of_several_bags_or_is_refused(method):
    config = settings(method, "classification", training={"accumulate": 3})
    try:
        trainers, train, _ = make_trainings(config, 2)
        fit_side_by_side(trainers, train, [None, None])
    except NotSideBySide:
        return
    assert method not in ROUTED
    compare(config)


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"accumulate": 5, "optimizer": "adamw", "clip_norm": 0.1, "warmup_epochs": 1}},
        {"training": {"accumulate": 32, "sampling": "balanced"}},
        {"training": {"accumulate": 3}, "anchor": {"normalizer": "nsf", "momentum": 0.9}},
        {"training": {"accumulate": 3}, "stabilizers": {"features": {"weight": 1.0}, "entropy": {"weight": 0.1}}},
    ],
)
def test_settings_are_honored_in_steps_of_several_bags(sections):
    compare(settings("abmil", "survival", **sections))


def test_losses_that_compare_bags_are_refused():
    config = settings("abmil", "survival", training={"accumulate": 4})
    trainers, train, val = make_trainings(config)
    cox = [Trainer(build_model(config, WIDTH, 1, 0), Survival(None, "cox"), config, seed=0) for _ in trainers]
    with pytest.raises(NotSideBySide, match="cox"):
        fit_side_by_side(cox, train, val)


def test_tables_have_every_item_once():
    draw = np.random.default_rng(0)
    wanted = [[(row, i, int(draw.integers(1, 40))) for i in range(draw.integers(1, 20))] for row in range(4)]
    seen = []
    for table, padded in similar_lengths(wanted, lambda item: item[2], 5, 300):
        rows = max(item[2] for row in table for item in row)
        assert padded or all(item[2] == rows for row in table for item in row)
        assert len(table[0]) == 1 or rows * len(table) * len(table[0]) <= 300
        seen += [item for number, row in enumerate(table) for item in row if item[0] == number]
    assert sorted(seen) == sorted(item for row in wanted for item in row)
