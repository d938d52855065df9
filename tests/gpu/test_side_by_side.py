"""Trainings side by side on a GPU give what each gives there alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asmil import Bag
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.labeled_bags import BagList, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.side_by_side.train import fit_side_by_side

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
WITHOUT_CHANCE = {
    "abmil": {},
    "asmil": {"drop": 0.0, "dropout": 0.0},
    "clam_sb": {"dropout": 0.0},
    "clam_mb": {"dropout": 0.0},
    "dsmil": {},
    "linear": {},
    "max_pooling": {"dropout": 0.0},
    "mean_pooling": {"dropout": 0.0},
}


def trainers_of(config, count, width):
    task = Classification(["a", "b"])
    return [
        Trainer(build_model(config, width, 2, seed), task, config, seed=seed, device="cuda") for seed in range(count)
    ]


@pytest.mark.parametrize("method", sorted(WITHOUT_CHANCE))
def test_side_by_side_is_one_at_a_time(method):
    """Without chance: on a GPU the random numbers of a padded bag are others."""
    draw = np.random.default_rng(0)
    bags = [Bag(torch.from_numpy(draw.normal(size=(size, 32)).astype(np.float32))) for size in range(3, 35, 2)]
    labels = np.arange(len(bags)) % 2
    training = {"epochs": 2, "lr": 1e-3, "precision": "fp32", "select": "last"}
    config = resolve(method, changes={"model": WITHOUT_CHANCE[method], "training": training})
    parts = [LabeledBags(BagList(bags[i:]), labels[i:]) for i in range(4)]
    together, alone = trainers_of(config, 4, 32), trainers_of(config, 4, 32)
    fit_side_by_side(together, parts, [None] * 4)
    for trainer, other, part in zip(together, alone, parts, strict=True):
        other.fit(part, None)
        torch.testing.assert_close(trainer.predict(part.bags), other.predict(part.bags), rtol=0, atol=1e-3)


def test_random_parts_draw_and_resume():
    """With dropout, in bf16 where the GPU has it: the losses are finite, and the same seeds give the same numbers."""
    draw = np.random.default_rng(0)
    bags = [Bag(torch.from_numpy(draw.normal(size=(size, 32)).astype(np.float32))) for size in range(3, 35, 2)]
    part = LabeledBags(BagList(bags), np.arange(len(bags)) % 2)
    config = resolve("asmil", changes={"training": {"epochs": 2, "select": "last"}})
    predicted = []
    for _ in range(2):
        trainers = trainers_of(config, 3, 32)
        fit_side_by_side(trainers, [part] * 3, [None] * 3)
        predicted.append(torch.stack([trainer.predict(part.bags) for trainer in trainers]))
    assert predicted[0].isfinite().all()
    torch.testing.assert_close(predicted[0], predicted[1], rtol=0, atol=1e-4)
    assert not torch.equal(predicted[0][0], predicted[0][1])
