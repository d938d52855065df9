"""Trainings side by side, in the interpreter: the same bits as alone, exact resume, and what the loop writes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asmil import Bag
from asmil.models.inference import infer
from asmil.runs.attention_file import read_attention
from asmil.runs.config import resolve
from asmil.runs.epochs import read_epochs
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer

WIDTH = 16


class Bags(list):
    def stream(self, order):
        return (self[i] for i in order)


def labeled(seed):
    draw = np.random.default_rng(seed)
    bags = Bags(Bag(draw.normal(size=(20 + 30 * i, WIDTH)).astype(np.float32), id=f"s{i}") for i in range(2))
    return LabeledBags(bags, np.array([0, 1]))


def fit(epochs, seeds, folder, *data):
    """Train seeds on some data (default: one fold), all folds at the same time; the trainers of the last fold."""
    from asmil.training.fused.train import fit_fused
    from asmil.training.resident import ResidentBags
    from asmil.training.turns import TrainingPart

    changes = {
        "model": {"tokens": 4, "heads": 4, "inner": 16, "drop": 0.5},
        "training": {"epochs": epochs, "lr": 1e-2, "schedule": "constant", "select": "last"},
        "record": {"attention": 1},
        "anchor": {"normalizer": "nsf", "weight": 0.1},
    }
    config = resolve("asmil", "no_anchor", changes)
    task = Classification(["a", "b"])
    parts = [
        TrainingPart(
            [
                Trainer(build_model(config, WIDTH, 2, seed), task, config, seed=seed, folder=folder / f"{number}{seed}")
                for seed in seeds
            ],
            train,
            labeled(1),
        )
        for number, train in enumerate(data or [labeled(0)])
    ]
    fit_fused(parts, ResidentBags(WIDTH, torch.device("cpu"), torch.float32))
    return parts[-1].trainers


def state(trainer):
    anchor = trainer.stabilizers["anchor"].copy
    parameters = [*trainer.model.parameters(), *anchor.parameters()]
    kept = [trainer.optimizer.state[parameter] for parameter in trainer.model.parameters()]
    averages = [values[key] for values in kept for key in ("exp_avg", "exp_avg_sq", "step")]
    return torch.cat([tensor.detach().flatten() for tensor in (*parameters, *averages)])


@pytest.mark.heavy
def test_together_alone_and_resumed_have_the_same_bits(tmp_path):
    together = fit(2, [0, 1], tmp_path / "together")
    fit(1, [1], tmp_path / "resumed")
    (resumed,) = fit(2, [1], tmp_path / "resumed")
    assert torch.equal(state(together[1]), state(resumed))
    assert not torch.equal(state(together[0]), state(together[1]))
    lines = [read_epochs(tmp_path / where / "01" / "metrics.jsonl") for where in ("together", "resumed")]
    for line in (*lines[0], *lines[1]):
        line.pop("seconds")
    assert lines[0] == lines[1]
    assert list(lines[0][-1]["train"]) == ["loss", "ce", "anchor"]
    assert [line["epoch"] for line in lines[0]] == [1, 2]
    record = read_attention(tmp_path / "together" / "01")
    assert record.steps.tolist() == [0, 2, 4]
    model = together[1].model
    for slide, bag in enumerate(labeled(0).bags):
        attention = model.tile_map(infer(model, bag)).numpy()
        np.testing.assert_allclose(record.attention(slide)[-1], attention, atol=2e-3)


@pytest.mark.heavy
def test_a_fold_beside_another_has_the_same_bits_as_alone(tmp_path):
    (beside,) = fit(1, [1], tmp_path / "both", labeled(2), labeled(0))
    (alone,) = fit(1, [1], tmp_path / "alone", labeled(0))
    assert torch.equal(state(beside), state(alone))


def test_bags_that_need_several_passes_keep_their_own_logits(monkeypatch):
    from asmil.training.fused import members
    from asmil.training.resident import ResidentBags

    monkeypatch.setattr(members, "TILES_AT_ONCE", 1)  # one bag per pass
    config = resolve("asmil", "no_anchor", {"model": {"tokens": 4, "heads": 4, "inner": 16}})
    trainer = Trainer(build_model(config, WIDTH, 2, 0), Classification(["a", "b"]), config, seed=0)
    train, pool = labeled(0), ResidentBags(WIDTH, torch.device("cpu"), torch.float32)
    pool.add(train.bags)
    together = members.Members([trainer], pool, train, pool.numbers(train.bags))
    logits = members.MemberEvaluator(together, 0).logits(train.bags)
    expected = torch.stack([infer(trainer.model, bag).logits for bag in train.bags])
    assert not torch.allclose(expected[0], expected[1], atol=1e-3)
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=0)
