"""The steps that a GPU replays as graphs, computed on the CPU: those of the plain executor, and resumed to the bit."""

import numpy as np
import pytest
import torch

from asmil import AsmilError, Bag
from asmil.runs.config import resolve
from asmil.runs.epochs import read_epochs
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.tasks.regression import Regression
from asmil.training.graphed.train import fit_graphed
from asmil.training.honored import GRAPHED
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer
from asmil.training.resident import ResidentBags
from asmil.training.turns import padded_length

WIDTH = 16
LENGTHS = (1, 2, 9, 16, 17, 40, 63, 64, 65, 130)
STILL = {
    "abmil": {},
    "acmil": {"mask_drop": 0.0},
    "aem": {},
    "asmil": {"drop": 0.0, "dropout": 0.0, "inner": 16},
    "clam_mb": {"dropout": 0.0, "inner": 16},
    "clam_sb": {"dropout": 0.0, "inner": 16},
    "dsmil": {},
    "ibmil": {"prototypes": 3},
}
"""Methods with options under which nothing is drawn."""


class Bags(list):
    def stream(self, order):
        return (self[i] for i in order)


def labeled(seed=0, lengths=LENGTHS):
    draw = np.random.default_rng(seed)
    targets = np.arange(len(lengths)) % 2
    bags = Bags(
        Bag((draw.normal(size=(tiles, WIDTH)) + 0.5 * target).astype(np.float32), id=f"s{i}")
        for i, (tiles, target) in enumerate(zip(lengths, targets, strict=True))
    )
    return LabeledBags(bags, targets.astype(np.int64))


def trainer(method, folder=None, epochs=3, model=None, seed=0, **training):
    settings = {"epochs": epochs, "lr": 1e-3, "class_weights": "none", "device": "cpu", **training}
    changes = {"training": settings, "model": model or {}, "anchor": {"normalizer": "nsf", "weight": 0.3}}
    config = resolve(method, changes=changes)
    task = Classification(["a", "b"], [0.7, 1.6])
    return Trainer(build_model(config, WIDTH, 2, seed), task, config, seed=seed, folder=folder)


def pool():
    return ResidentBags(WIDTH, torch.device("cpu"), torch.float32)


def losses(folder):
    return np.array([list(record["train"].values()) for record in read_epochs(folder / "metrics.jsonl")])


def compare(method, tmp_path, plain, graphed):
    """Train by both executors; losses, validation and predictions must agree."""
    train, val = labeled(0), labeled(1)
    first = trainer(method, tmp_path / "plain", model=STILL[method], **plain)
    second = trainer(method, tmp_path / "graphed", model=STILL[method], **graphed)
    first.fit(train, val)
    fit_graphed([second], pool(), train, val)
    np.testing.assert_allclose(losses(tmp_path / "graphed"), losses(tmp_path / "plain"), rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(second.predict(val.bags), first.predict(val.bags), rtol=1e-3, atol=1e-4)
    assert second.progress.best["epoch"] == first.progress.best["epoch"]


@pytest.mark.parametrize("method", sorted(STILL))
def test_a_training_equals_that_of_the_plain_executor(method, tmp_path):
    compare(method, tmp_path, {}, {})


@pytest.mark.parametrize("method", ["abmil", "asmil", "acmil", "dsmil"])
def test_batches_equal_accumulated_bags(method, tmp_path):
    """Some batches hold a bag that is too short to be padded, and the last one is smaller."""
    compare(method, tmp_path, {"accumulate": 3, "clip_norm": 1.0}, {"batch": 3, "clip_norm": 1.0})


@pytest.mark.parametrize("method", ["abmil", "clam_sb"])
def test_plain_batches_equal_accumulated_bags(method, tmp_path):
    train, val = labeled(0), labeled(1)
    found = []
    for name, settings in {
        "bags": {"accumulate": 4},
        "batch": {"batch": 4},
        "both": {"batch": 2, "accumulate": 2},
    }.items():
        one = trainer(method, tmp_path / name, model=STILL[method], **settings)
        one.fit(train, val)
        found.append((losses(tmp_path / name), one.predict(val.bags)))
    for recorded, logits in found[1:]:
        np.testing.assert_allclose(recorded[:, 0], found[0][0][:, 0], rtol=2e-4, atol=2e-5)
        torch.testing.assert_close(logits, found[0][1], rtol=1e-3, atol=1e-4)


class Stop(Exception):
    """As a signal would end a training."""


@pytest.mark.parametrize("settings", [{}, {"batch": 4}])
@pytest.mark.parametrize("method", ["abmil", "acmil", "asmil", "ibmil"])
def test_a_resumed_training_has_the_same_bits(method, settings, tmp_path):
    """All that is random is on: dropout, dropped tokens, masked tiles; IBMIL stops in its second stage."""
    train, val = labeled(0), labeled(1)
    model = {"inner": 16} | ({"dropout": 0.2} if method in ("abmil", "acmil") else {})
    asked = {"epochs": 3, "model": model, "checkpoint_seconds": 0, **settings}
    whole = trainer(method, tmp_path / "whole", **asked)
    fit_graphed([whole], pool(), train, val)
    stopped = trainer(method, tmp_path / "parts", **asked)
    stopped.on_epoch = lambda record: stop_after(5 if method == "ibmil" else 2, record)
    with pytest.raises(Stop):
        fit_graphed([stopped], pool(), train, val)
    resumed = trainer(method, tmp_path / "parts", **asked)
    fit_graphed([resumed], pool(), train, val)
    state = whole.model.state_dict()
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert np.array_equal(losses(tmp_path / "parts"), losses(tmp_path / "whole"))


def stop_after(epochs, record):
    if record["epoch"] == epochs:
        raise Stop


@pytest.mark.parametrize("method", ["abmil", "ibmil"])
def test_together_and_alone_have_the_same_bits(method, tmp_path):
    """One of the seeds has a head start, so that the two are never in the same epoch."""
    train, val = labeled(0), labeled(1)
    asked = {"model": {"dropout": 0.2} if method == "abmil" else {}, "checkpoint_seconds": 0}
    alone = [trainer(method, tmp_path / f"alone{seed}", seed=seed, **asked) for seed in (0, 1)]
    for one in alone:
        fit_graphed([one], pool(), train, val)
    ahead = trainer(method, tmp_path / "together0", **asked)
    ahead.on_epoch = lambda record: stop_after(1, record)
    with pytest.raises(Stop):
        fit_graphed([ahead], pool(), train, val)
    together = [trainer(method, tmp_path / f"together{seed}", seed=seed, **asked) for seed in (0, 1)]
    fit_graphed(together, pool(), train, val)
    for seed, (first, second) in enumerate(zip(alone, together, strict=True)):
        state = first.model.state_dict()
        for name, value in second.model.state_dict().items():
            assert torch.equal(value, state[name]), name
        assert np.array_equal(losses(tmp_path / f"together{seed}"), losses(tmp_path / f"alone{seed}"))
    assert not np.array_equal(losses(tmp_path / "together0"), losses(tmp_path / "together1"))


def test_validation_in_batches_equals_bags_one_by_one(tmp_path):
    from asmil.training.graphed.train import ResidentEvaluator

    one, bags = trainer("clam_sb", tmp_path), pool()
    val = labeled(1)
    bags.add(val.bags)
    logits = ResidentEvaluator(one, bags).logits(val.bags)
    torch.testing.assert_close(logits, one.predict(val.bags), rtol=1e-4, atol=1e-5)


def test_plain_and_graphed_checkpoints_are_not_mixed(tmp_path):
    fit_graphed([trainer("abmil", tmp_path)], pool(), labeled(0), labeled(1))
    with pytest.raises(AsmilError, match="graphed"):
        trainer("abmil", tmp_path, epochs=5).fit(labeled(0), labeled(1))


@pytest.mark.parametrize("tiles", [1, 7, 8, 9, 15, 16, 100, 1000, 11_000, 19_999, 20_000, 1_000_000])
def test_padded_lengths_are_few_and_close(tiles):
    rows = padded_length(tiles, 1)
    assert tiles <= rows <= max(tiles + 7, 1.125 * tiles)
    assert padded_length(rows, 1) == rows
    assert padded_length(tiles, tiles + 1) == tiles


def test_lengths_between_2000_and_20000_are_few():
    assert len({padded_length(tiles, 1) for tiles in range(2_000, 20_001)}) < 32


def reason(method, task=None, model=None, **changes):
    config = resolve(method, changes={"model": model or {}, **changes})
    return GRAPHED.reason(config, build_model(config, 32, 2, 0), task or Classification(["a", "b"]))


@pytest.mark.parametrize("method", sorted(STILL))
def test_where_graphs_apply(method):
    assert reason(method) is None
    assert reason(method, anchor={"normalizer": "nsf"}, training={"optimizer": "adamw", "clip_norm": 1.0}) is None


@pytest.mark.parametrize(
    ("method", "changes", "named"),
    [
        ("transmil", {}, "transmil"),
        ("abmil", {"model": {"mil_dropout": 3, "embedding_layers": 3}}, "abmil"),
        ("aem", {"model": {"annealing": "cosine"}}, "step"),
        ("clam_sb", {"training": {"batch": 2}}, "batch"),
        ("abmil", {"training": {"accumulate": 2}}, "accumulate"),
        ("abmil", {"training": {"optimizer": "lookahead_radam"}}, "lookahead_radam"),
        ("asmil", {"anchor": {"rows": "kept"}}, "kept"),
        ("asmil", {"anchor": {"normalizer": "entmax"}}, "entmax"),
        ("abmil", {"attention": {"normalizer": "entmax"}}, "entmax"),
        ("asmil", {"anchor": {"ramp_epochs": 5}}, "ramp_epochs"),
        ("asmil", {"anchor": {"gradient_share": 0.5}}, "gradient_share"),
        ("abmil", {"stabilizers": {"l2": {"weight": 0.1}}}, "stabilizers"),
        ("abmil", {"data": {"max_tiles": 10}}, "max_tiles"),
        ("abmil", {"record": {"every": 5}}, "record.every"),
    ],
)
def test_what_does_not_apply_is_named(method, changes, named):
    assert named in reason(method, **changes)


def test_other_tasks_and_machines_do_not_apply():
    assert reason("abmil", task=Regression(0.0, 1.0)) is not None
    assert "cpu" in GRAPHED.machine(torch.device("cpu"))


@pytest.mark.parametrize("method", ["transmil", "r2t", "dtfd"])
def test_batches_of_methods_that_need_single_bags_are_refused(method):
    with pytest.raises(AsmilError, match=r"training\.batch"):
        trainer(method, batch=2)


def test_batches_with_other_stabilizers_are_refused():
    config = resolve("abmil", changes={"training": {"batch": 2}, "stabilizers": {"temporal": {"weight": 1.0}}})
    with pytest.raises(AsmilError, match="temporal"):
        Trainer(build_model(config, WIDTH, 2, 0), Classification(["a", "b"]), config, seed=0)
