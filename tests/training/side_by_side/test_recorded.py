"""Recorded steps of many trainings, with Triton's interpreter on a machine without a GPU: what each gives alone."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from asmil import Bag
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.labeled_bags import BagList, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.side_by_side import train as side_by_side_train
from asmil.training.side_by_side.train import fit_side_by_side

WIDTH, TRAININGS = 6, 3
SMALL = {
    "abmil": {"inner": 8, "attention": 4},
    "asmil": {"inner": 8, "heads": 2, "tokens": 2},
    "acmil": {"inner": 8, "attention": 4},
    "clam_sb": {"inner": 8, "attention": 4},
    "mean_pooling": {"inner": 8},
    "psmil": {"inner": 8, "embedding_layers": 1},
    "transmil": {"inner": 8, "heads": 2, "landmarks": 4},
}
WITHOUT_CHANCE = {
    "acmil": {"mask_drop": 0.0},
    "asmil": {"drop": 0.0, "dropout": 0.0},
    "clam_sb": {"dropout": 0.0},
    "mean_pooling": {"dropout": 0.0},
    "transmil": {"dropout": 0.0},
}


@pytest.fixture(autouse=True)
def recorded_steps(monkeypatch):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed here: pip install triton")
    if torch.cuda.is_available():
        pytest.skip("these tests are for Triton's interpreter; tests/gpu has those for a GPU")
    from asmil.training.side_by_side.recorded_steps import RecordedSteps

    monkeypatch.setattr(side_by_side_train, "_steps_for", lambda trainer: RecordedSteps)


def make_parts(lengths=(1, 5, 2, 7, 5, 12, 3, 16), bags=None):
    draw = np.random.default_rng(0)
    bags = [Bag(torch.from_numpy(draw.normal(size=(size, WIDTH)).astype(np.float32))) for size in lengths]
    labels = np.arange(len(bags)) % 2
    # trainings of different length, so that some wait
    return [LabeledBags(BagList(bags[number:]), labels[number:]) for number in range(TRAININGS)]


def settings(method, model=None, **sections):
    training = {"epochs": 2, "lr": 1e-3, "select": "last", "device": "cpu", **sections.pop("training", {})}
    return resolve(method, changes={"model": SMALL[method] | (model or {}), "training": training, **sections})


def trainers_of(config, numbers=range(TRAININGS), folder=None):
    task = Classification(["a", "b"])
    return [
        Trainer(build_model(config, WIDTH, 2, seed), task, config, seed=seed, folder=folder and folder / str(seed))
        for seed in numbers
    ]


def predicted(trainers, parts):
    return [trainer.predict(part.bags) for trainer, part in zip(trainers, parts, strict=True)]


@pytest.mark.parametrize("method", sorted(SMALL))
def test_recorded_steps_are_those_of_one_training(method):
    """Without chance: the random numbers are others."""
    config, parts = settings(method, WITHOUT_CHANCE.get(method)), make_parts()
    together, alone = trainers_of(config), trainers_of(config)
    fit_side_by_side(together, parts, [None] * TRAININGS)
    for trainer, part in zip(alone, parts, strict=True):
        trainer.fit(part, None)
    for values, expected in zip(predicted(together, parts), predicted(alone, parts), strict=True):
        torch.testing.assert_close(values, expected, rtol=0, atol=1e-5)
