"""Recorded steps of many trainings, with Triton's interpreter on a machine without a GPU: what each gives alone."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from asmil import Bag
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.labeled_bags import BagList, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.side_by_side import train as side_by_side_train
from asmil.training.side_by_side.train import fit_side_by_side
from watched_training import killed_in_the_second_epoch

WIDTH, TRAININGS = 6, 3
SMALL = {
    "abmil": {"inner": 8, "attention": 4},
    "asmil": {"inner": 8, "heads": 2, "tokens": 2},
    "acmil": {"inner": 8, "attention": 4},
    "additive_mil": {"hidden": 8},
    "aem": {"inner": 8, "attention": 4, "annealing": "cosine"},
    "clam_sb": {"inner": 8, "attention": 4},
    "deepattnmisl": {"inner": 8, "clusters": 3},
    "dgr_mil": {"inner": 8, "heads": 2, "landmarks": 4, "lesions": 3},
    "dtfd": {"inner": 8, "attention": 4, "groups": 2},
    "hdmil": {"inner": 8, "attention": 4, "degree": 2},
    "ibmil": {"inner": 8, "attention": 4, "prototypes": 2, "joint": 4},
    "mean_pooling": {"inner": 8},
    "mhim": {"inner": 8, "attention": 4, "momentum": 0.9},
    "psmil": {"inner": 8, "embedding_layers": 1},
    "simple_mil": {"attention": 4},
    "transmil": {"inner": 8, "heads": 2, "landmarks": 4},
}
WITHOUT_CHANCE = {
    "acmil": {"mask_drop": 0.0},
    "asmil": {"drop": 0.0, "dropout": 0.0},
    "clam_sb": {"dropout": 0.0},
    "deepattnmisl": {"dropout": 0.0},
    "dtfd": {"groups": 1, "distill": "MaxMinS", "total_instance": 3},
    "mhim": {"dropout": 0.0, "mask_random": 0.0, "mask_low": 0.3, "high_share": 1.0, "momentum_schedule": "cosine"},
    "mean_pooling": {"dropout": 0.0},
    "simple_mil": {"dropout": 0.0},
    "transmil": {"dropout": 0.0},
}


ALWAYS_RANDOM = {"hdmil"}


@pytest.fixture(autouse=True)
def recorded_steps(monkeypatch):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed here: pip install triton")
    if torch.cuda.is_available():
        pytest.skip("these tests are for Triton's interpreter; tests/gpu has those for a GPU")
    from asmil.training.side_by_side.recorded_steps import RecordedSteps

    monkeypatch.setattr(side_by_side_train, "_steps_for", lambda trainer: RecordedSteps)


def make_parts(lengths=(1, 5, 2, 5, 12, 16)):
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
    configs = config if isinstance(config, list) else [config] * len(numbers)
    return [
        Trainer(build_model(own, WIDTH, 2, seed), task, own, seed=seed, folder=folder and folder / str(seed))
        for seed, own in zip(numbers, configs, strict=True)
    ]


def predicted(trainers, parts):
    return [trainer.predict(part.bags) for trainer, part in zip(trainers, parts, strict=True)]


def assert_as_alone(config):
    """All trainings at once predict what each one predicts that is trained alone."""
    parts = make_parts()
    together, alone = trainers_of(config), trainers_of(config)
    fit_side_by_side(together, parts, [None] * TRAININGS)
    for trainer, part in zip(alone, parts, strict=True):
        trainer.fit(part, None)
    for values, expected in zip(predicted(together, parts), predicted(alone, parts), strict=True):
        torch.testing.assert_close(values, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "method",
    [
        "mean_pooling",
        *(
            pytest.param(name, marks=pytest.mark.heavy)
            for name in sorted(SMALL.keys() - ALWAYS_RANDOM - {"mean_pooling"})
        ),
    ],
)
def test_recorded_steps_are_those_of_one_training(method):
    """Without chance: the random numbers are others."""
    assert_as_alone(settings(method, WITHOUT_CHANCE.get(method)))


@pytest.mark.heavy
def test_few_slots_at_a_time(monkeypatch):
    """Bags that cannot be padded: the weights of those who share a length are gathered, the others wait."""
    from asmil.training.side_by_side import recorded_steps

    monkeypatch.setattr(recorded_steps, "FEW", 2)
    test_recorded_steps_are_those_of_one_training("transmil")


@pytest.mark.heavy
@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"optimizer": "adamw", "weight_decay": 0.1, "decay": "matrices", "clip_norm": 0.01}},
        {"training": {"betas": [0.0, 0.9], "warmup_epochs": 1, "lr_drops": [1], "class_weights": "balanced"}},
        {"anchor": {"normalizer": "nsf", "momentum": 0.9}},
        {"anchor": {"normalizer": "nsf", "momentum": 0.9, "update": "epoch"}},
    ],
)
def test_settings_are_honored(sections):
    assert_as_alone(settings("abmil", **sections))


@pytest.mark.heavy
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_trainings_may_differ_in_rates_decay_and_epochs(optimizer):
    own = [
        {"lr": 1e-2, "weight_decay": 0.0, "epochs": 3},
        {"lr": 1e-3, "weight_decay": 0.5, "lr_min": 5e-4},
        {"lr": 1e-3, "weight_decay": 0.1, "schedule": "constant"},
    ]
    assert_as_alone(
        [settings("mean_pooling", {"dropout": 0.0}, training={"optimizer": optimizer, **one}) for one in own]
    )


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["clam_sb", "dtfd", "hdmil", "mhim", "transmil"])
def test_who_else_trains_changes_no_random_number(method):
    config, parts = settings(method), make_parts()
    everyone, alone = trainers_of(config), trainers_of(config, [1])
    fit_side_by_side(everyone, parts, [None] * TRAININGS)
    fit_side_by_side(alone, parts[1:2], [None])
    torch.testing.assert_close(predicted(everyone, parts)[1], predicted(alone, parts[1:2])[0], rtol=0, atol=1e-5)
    assert not torch.allclose(everyone[0].predict(parts[0].bags), everyone[1].predict(parts[0].bags))


@pytest.mark.heavy
def test_a_training_that_is_resumed_ends_with_the_same_bits(tmp_path):
    changes = {"epochs": 3, "checkpoint_seconds": 0}
    config, parts = settings("clam_sb", anchor={"normalizer": "nsf"}, training=changes), make_parts()
    nobody = [None] * TRAININGS
    fit_side_by_side(trainers_of(config, folder=tmp_path / "whole"), parts, nobody)
    with killed_in_the_second_epoch():
        fit_side_by_side(trainers_of(config, folder=tmp_path / "resumed"), parts, nobody)
    fit_side_by_side(trainers_of(config, folder=tmp_path / "resumed"), parts, nobody)
    for number in range(TRAININGS):
        path = f"{number}/checkpoints/last.safetensors"
        whole, resumed = (load_file(tmp_path / folder / path) for folder in ("whole", "resumed"))
        assert whole.keys() == resumed.keys()
        assert [key for key in whole if not torch.equal(whole[key], resumed[key])] == []


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_the_table_takes_the_steps_of_torch(kind):
    from asmil.training.side_by_side.stack import Block
    from asmil.training.side_by_side.table_adam import TableAdam

    draw = torch.Generator().manual_seed(0)
    rows = [{"weight": torch.randn(7, 200, generator=draw, requires_grad=True)} for _ in range(3)]
    options = [(1e-2, 0.1), (1e-2, 0.1), (3e-3, 0.2)]
    optimizers = [
        kind([row["weight"]], lr=lr, weight_decay=decay, betas=(0.8, 0.99))
        for row, (lr, decay) in zip(rows, options, strict=True)
    ]
    for optimizer in optimizers:
        optimizer.param_groups[0]["base_lr"] = optimizer.param_groups[0]["lr"]
    block = Block(0, frozenset({1}), ["weight"], rows)
    table = TableAdam([block], optimizers)
    for step in range(4):
        gradients = torch.randn(2, 7, 200, generator=draw)
        # the second slot's training takes the step only with a bag of class 1
        training, takes, target = (
            torch.tensor([2, 0]),
            torch.tensor([1, 1], dtype=torch.int8),
            torch.tensor([1, step % 2]),
        )
        table.step_slots({"weight": gradients}, training, takes, target, torch.tensor([1.0, 0.5]), None)
        for slot, number in enumerate(training.tolist()):
            if target[slot] == 1:
                table.counts[0, number] += 1
                rows[number]["weight"].grad = gradients[slot]
                optimizers[number].param_groups[0]["lr"] = options[number][0] * (1.0, 0.5)[slot]
                optimizers[number].step()
    for number, row in enumerate(rows):
        values = block.split(block.values)["weight"][number]
        torch.testing.assert_close(values, row["weight"].detach(), rtol=1e-6, atol=1e-7)
    assert table.states(0, 1)["weight"]["step"] == 0
    torch.testing.assert_close(
        table.states(0, 2)["weight"]["exp_avg_sq"], optimizers[2].state[rows[2]["weight"]]["exp_avg_sq"]
    )


def test_draws_are_uniform_and_do_not_depend_on_padding():
    from asmil.training.side_by_side.counted_draws import draw

    seeds = torch.tensor([5 << 32, (5 << 32) | 1])
    uniform = draw(seeds, 0, (40, 3, 70))
    assert uniform.shape == (2, 40, 3, 70)
    assert 0 <= uniform.min() < uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=0.02)
    assert len(uniform.unique()) > 0.99 * uniform.numel()
    torch.testing.assert_close(draw(seeds, 0, (33, 3, 66)), uniform[:, :33, :, :66], rtol=0, atol=0)
    assert not torch.equal(draw(seeds, 1, (40, 3, 70)), uniform)
    dropped = draw(seeds, 0, (40, 3, 70), 0.25, torch.full_like(uniform, 2.0))
    torch.testing.assert_close(dropped, 2 * (uniform >= 0.25) / 0.75)
