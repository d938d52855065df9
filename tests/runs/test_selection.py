"""Which epoch is kept: the higher validation score, of equals the lower loss, then the earlier."""

import json

import numpy as np
import pytest

from asmil import Bag
from asmil.runs import checkpoint
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.runs.selection import Merit, merit_of
from asmil.tasks.classification import Classification
from asmil.training.interruption import Interrupted
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer
from asmil.training.nested import InnerSearch


class Bags:
    def __init__(self):
        draw = np.random.default_rng(0)
        self.bags = [Bag(draw.normal(size=(5, 8)).astype(np.float32), id=f"s{i}") for i in range(4)]

    def __len__(self):
        return len(self.bags)

    def stream(self, order):
        return iter([self.bags[i] for i in order])


LABELED = LabeledBags(Bags(), np.array([0, 1, 0, 1]))


def fit(monkeypatch, course, folder=None, stop_after=None, **training):
    """Train with validation results from a list of (score, loss); returns the epoch kept and those that were done."""
    config = resolve("abmil", changes={"training": {"epochs": len(course), "checkpoint_seconds": 0, **training}})
    done = []

    def on_epoch(record):
        done.append(record["epoch"])
        if record["epoch"] == stop_after:
            raise Interrupted

    trainer = Trainer(
        build_model(config, 8, 2, 0), Classification(["a", "b"]), config, seed=0, folder=folder, on_epoch=on_epoch
    )

    def validate(labeled, on_output=None):
        score, loss = course[trainer.progress.epoch]
        return {"loss": loss, "macro_f1": score, "macro_auc": 0.0}

    monkeypatch.setattr(trainer, "validate", validate)
    try:
        return trainer.fit(LABELED, LABELED), done
    except Interrupted:
        return None, done


@pytest.mark.parametrize(
    ("course", "kept"),
    [
        ([(1.0, 0.9), (1.0, 0.5), (1.0, 0.7)], 2),
        ([(1.0, 0.5), (1.0, 0.5), (0.9, 0.1)], 1),
        ([(0.5, 0.1), (0.6, 9.0), (0.6, float("nan"))], 2),
        ([(0.5, 0.1), (0.4, 0.0), (0.5, 0.05)], 3),
    ],
)
def test_ties_go_to_the_lower_loss_then_to_the_earlier_epoch(monkeypatch, tmp_path, course, kept):
    assert fit(monkeypatch, course)[0] == kept
    assert fit(monkeypatch, course, tmp_path)[0] == kept
    best = json.loads((tmp_path / "checkpoints" / "best.json").read_text())
    assert (best["epoch"], best["loss"]) == (kept, course[kept - 1][1])


def test_an_undefined_loss_is_never_the_lowest(monkeypatch):
    assert fit(monkeypatch, [(0.0, 3.0), (0.0, float("nan")), (0.0, 2.0)], select="loss")[0] == 3
    assert fit(monkeypatch, [(0.0, float("nan")), (0.0, 5.0)], select="loss")[0] == 2


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_an_interrupted_training_keeps_the_same_epoch(monkeypatch, tmp_path, stop_after):
    course = [(1.0, 0.9), (1.0, 0.5), (1.0, 0.7), (1.0, 0.5)]
    assert fit(monkeypatch, course, tmp_path, stop_after)[0] is None
    kept, done = fit(monkeypatch, course, tmp_path)
    assert kept == 2
    assert len(done) <= len(course)


def test_a_run_of_an_earlier_version_goes_on(monkeypatch, tmp_path):
    course = [(1.0, 0.9), (1.0, 0.5), (1.1, 0.7)]
    fit(monkeypatch, course, tmp_path, stop_after=2)
    path = tmp_path / "checkpoints" / "last.safetensors"
    tensors, state = checkpoint.load_checkpoint(path)
    del state["best"]["loss"]
    checkpoint.save_checkpoint(path, tensors, state)
    assert fit(monkeypatch, course, tmp_path)[0] == 3


def test_a_candidate_of_nested_cross_validation_wins_a_tie_by_its_loss(monkeypatch, tmp_path):
    merits = {0: Merit(1.0, 0.6), 1: Merit(1.0, 0.4), 2: Merit(1.0, 0.5), 3: Merit(0.9, 0.1)}
    config = resolve("abmil", changes={"nested": {"folds": 2, "grid": {"training.lr": [1e-4, 1e-3, 1e-2, 1e-1]}}})
    search = InnerSearch(None, None, config, None, 0, tmp_path)
    monkeypatch.setattr(InnerSearch, "_merit", lambda self, number, inner_fold: merits[number])
    assert search.choose() == {"training.lr": 1e-3}


def test_the_merit_of_a_task_is_its_selection_score():
    measures = {"loss": 0.3, "macro_f1": 0.5, "macro_auc": None}
    assert merit_of(measures, Classification(["a", "b"]), "f1_auc") == Merit(0.5, 0.3)
    assert merit_of(measures, Classification(["a", "b"]), "loss") == Merit(-0.3, 0.3)
