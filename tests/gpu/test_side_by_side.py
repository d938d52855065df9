"""Trainings side by side on a GPU give what each gives there alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from asmil import Bag
from asmil.models.inference import infer, infer_all
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.labeled_bags import BagList, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.side_by_side.train import fit_side_by_side
from watched_training import killed_in_the_second_epoch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
WITHOUT_CHANCE = {
    "abmil": {},
    "acmil": {"mask_drop": 0.0},
    "additive_mil": {},
    "aem": {"annealing": "cosine"},
    "asmil": {"drop": 0.0, "dropout": 0.0},
    "clam_sb": {"dropout": 0.0},
    "clam_mb": {"dropout": 0.0},
    "demil": {},
    "dgr_mil": {"inner": 16, "landmarks": 8},
    "dsmil": {},
    "ibmil": {"prototypes": 1},  # with more, rounding may change a cluster
    "linear": {},
    "max_pooling": {"dropout": 0.0},
    "mean_pooling": {"dropout": 0.0},
    "simple_mil": {"attention": 16, "dropout": 0.0},
}


def trainers_of(config, seeds, width, folder=None):
    task = Classification(["a", "b"])
    return [
        Trainer(
            build_model(config, width, 2, seed), task, config, seed=seed, device="cuda",
            folder=None if folder is None else folder / str(seed),
        )
        for seed in seeds
    ]  # fmt: skip


def make_bags():
    draw = np.random.default_rng(0)
    return [Bag(torch.from_numpy(draw.normal(size=(size, 32)).astype(np.float32))) for size in range(3, 35, 2)]


@pytest.mark.parametrize("method", sorted(WITHOUT_CHANCE))
def test_side_by_side_is_one_at_a_time(method):
    """Without chance: on a GPU the random numbers of a padded bag are others."""
    bags = make_bags()
    labels = np.arange(len(bags)) % 2
    training = {"epochs": 2, "lr": 1e-3, "precision": "fp32", "select": "last"}
    config = resolve(method, changes={"model": WITHOUT_CHANCE[method], "training": training})
    parts = [LabeledBags(BagList(bags[i:]), labels[i:]) for i in range(4)]
    together, alone = trainers_of(config, range(4), 32), trainers_of(config, range(4), 32)
    fit_side_by_side(together, parts, [None] * 4, recorded=True)
    for trainer, other, part in zip(together, alone, parts, strict=True):
        other.fit(part, None)
        torch.testing.assert_close(trainer.predict(part.bags), other.predict(part.bags), rtol=0, atol=1e-3)


def test_random_parts_draw_and_resume():
    """With dropout: the losses are finite, and the same seeds give the same numbers."""
    bags = make_bags()
    part = LabeledBags(BagList(bags), np.arange(len(bags)) % 2)
    config = resolve("asmil", changes={"training": {"epochs": 2, "select": "last"}})
    predicted = []
    for _ in range(2):
        trainers = trainers_of(config, range(3), 32)
        fit_side_by_side(trainers, [part] * 3, [None] * 3)
        predicted.append(torch.stack([trainer.predict(part.bags) for trainer in trainers]))
    assert predicted[0].isfinite().all()
    torch.testing.assert_close(predicted[0], predicted[1], rtol=0, atol=1e-4)
    assert not torch.equal(predicted[0][0], predicted[0][1])


@pytest.mark.parametrize("method", ["clam_sb", "transmil"])
def test_who_else_trains_changes_no_random_number(method):
    bags = make_bags()
    part = LabeledBags(BagList(bags), np.arange(len(bags)) % 2)
    config = resolve(method, changes={"training": {"epochs": 2, "select": "last"}})
    everyone, alone = trainers_of(config, range(3), 32), trainers_of(config, [1], 32)
    fit_side_by_side(everyone, [part] * 3, [None] * 3, recorded=True)
    fit_side_by_side(alone, [part], [None], recorded=True)
    torch.testing.assert_close(everyone[1].predict(part.bags), alone[0].predict(part.bags), rtol=0, atol=5e-3)


def test_a_training_that_is_resumed_ends_with_the_same_bits(tmp_path):
    bags = make_bags()
    part = LabeledBags(BagList(bags), np.arange(len(bags)) % 2)
    training = {"epochs": 3, "select": "last", "checkpoint_seconds": 0}
    config = resolve("clam_sb", changes={"anchor": {"normalizer": "nsf"}, "training": training})
    arguments = [part] * 3, [None] * 3
    fit_side_by_side(trainers_of(config, range(3), 32, tmp_path / "whole"), *arguments)
    with killed_in_the_second_epoch():
        fit_side_by_side(trainers_of(config, range(3), 32, tmp_path / "resumed"), *arguments)
    fit_side_by_side(trainers_of(config, range(3), 32, tmp_path / "resumed"), *arguments)
    for seed in range(3):
        path = f"{seed}/checkpoints/last.safetensors"
        whole, resumed = (load_file(tmp_path / folder / path) for folder in ("whole", "resumed"))
        assert [key for key in whole if not torch.equal(whole[key], resumed[key])] == []


@pytest.mark.parametrize("method", ["abmil", "acmil", "clam_mb", "transmil"])
def test_bags_that_are_predicted_together_are_predicted_as_alone(method):
    model = build_model(resolve(method), 32, 2, 0).to("cuda")
    bags = make_bags()
    for bag, output in infer_all(model, bags, torch.device("cuda")):
        expected = infer(model, bag)
        torch.testing.assert_close(output.logits, expected.logits, rtol=0, atol=1e-5)
        torch.testing.assert_close(model.tile_map(output), model.tile_map(expected), rtol=0, atol=1e-5)
