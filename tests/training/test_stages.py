"""Methods that train in stages: each stage has its own model, and the loop goes on in the right one."""

import json

import numpy as np
import pytest
import torch

from asmil.models.abmil import ABMIL
from asmil.models.base import Stage
from asmil.runs.config import resolve
from asmil.runs.epochs import read_epochs
from asmil.tasks.classification import Classification
from asmil.training.interruption import Interrupted
from asmil.training.loop import Trainer
from test_loop import labeled


class Staged(ABMIL):
    """ABMIL after a first training, whose head and whose mean bag feature it takes over."""

    def __init__(self, in_features, n_outputs, config):
        super().__init__(in_features, n_outputs, config)
        self.register_buffer("center", torch.zeros(self.embedding.width))
        self.steps = []

    def stages(self):
        first = ABMIL(self.in_features, self.n_outputs, self.config)
        return [Stage("first", first, epochs=2), Stage("second", self, self.begin)]

    def begin(self, previous, bags):
        assert not previous.training
        self.head.load_state_dict(previous.head.state_dict())
        self.center.copy_(torch.stack([previous(bag).embedding.detach() for bag in bags]).mean(dim=0))

    def before_step(self, step, steps):
        self.steps.append((step, steps))


def trainer(folder=None, **training):
    changes = {"training": {"epochs": 3, "lr": 1e-3, **training}, "anchor": {"normalizer": "nsf"}}
    config = resolve("abmil", changes=changes)
    torch.manual_seed(0)
    model = Staged(16, 2, config.model)
    return Trainer(model, Classification(["a", "b"]), config, seed=0, folder=folder)


def test_every_stage_is_trained_and_takes_over_from_the_one_before(tmp_path):
    one = trainer(tmp_path)
    assert one.fit(labeled(), labeled(seed=1)) in (3, 4, 5)
    records = read_epochs(tmp_path / "metrics.jsonl")
    assert [(record["epoch"], record["stage"]) for record in records] == [
        (1, "first"),
        (2, "first"),
        (3, "second"),
        (4, "second"),
        (5, "second"),
    ]
    assert isinstance(one.model, Staged)
    assert float(one.model.center.abs().sum()) > 0
    assert one.model.steps == [(step, 36) for step in range(36)]
    # each stage has a schedule of its own
    assert records[2]["lr"] > records[1]["lr"]
    assert json.loads((tmp_path / "checkpoints" / "last.json").read_text())["stage"] == 1


@pytest.mark.parametrize("stop_after", [1, 2, 3, 4])
def test_a_training_that_stops_in_any_stage_ends_with_the_same_bits(tmp_path, stop_after):
    whole = trainer(tmp_path / "whole")
    whole.fit(labeled(), labeled(seed=1))

    class Stopping(Trainer):
        def _end_epoch(self, *arguments):
            record = super()._end_epoch(*arguments)
            if self.progress.epoch == stop_after:
                self._save_if_due(force=True)
                raise Interrupted
            return record

    first = trainer(tmp_path / "parts")
    first.__class__ = Stopping
    with pytest.raises(Interrupted):
        first.fit(labeled(), labeled(seed=1))
    second = trainer(tmp_path / "parts")
    second.fit(labeled(), labeled(seed=1))
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
    assert np.array_equal(whole.predict(labeled(seed=2).bags), second.predict(labeled(seed=2).bags))


def test_patience_counts_within_a_stage(tmp_path):
    one = trainer(tmp_path, early_stopping=1, epochs=6)
    one.fit(labeled(), labeled(seed=1))
    stages = [record["stage"] for record in read_epochs(tmp_path / "metrics.jsonl")]
    assert stages[:1] == ["first"]
    assert "second" in stages
