"""A training has the same bits in processes that treat denormal numbers differently, have other threads or no oneDNN.

The features show it: they lie between 1 and 1e-20, and some of the squared gradients are denormal.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from asmil.cohort.bag import Bag
from asmil.cohort.features import Provenance, write_features
from asmil.machine.arithmetic import exact_arithmetic
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.estimator import MILClassifier
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer
from asmil.training.run import RunObserver, train_run
from asmil.training.side_by_side.train import fit_side_by_side
from training_until_killed import train_until_killed

CHANGES = {
    "training": {"epochs": 2, "checkpoint_seconds": 0, "device": "cpu", "weight_decay": 0},
    "record": {"attention": "none"},
}


def drawn(number: int, n_tiles: int, width: int = 24) -> np.ndarray:
    return (np.random.default_rng(number).normal(size=(n_tiles, width)) * np.logspace(0, -20, width)).astype(np.float32)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cohort")
    rows = []
    for number, split in enumerate(["train", "train", "train", "val", "val", "test"]):
        features = drawn(number, 30 + number)
        coords = np.stack([np.arange(len(features)), np.zeros(len(features), int)], axis=1) * 256
        write_features(folder / "features" / f"s{number}.h5", features, coords, Provenance(encoder="drawn"), "float32")
        rows.append({"slide": f"s{number}", "patient": f"p{number}", "label": "ab"[number % 2], "split": split})
    pd.DataFrame(rows).to_csv(folder / "cohort.csv", index=False)
    return folder / "cohort.csv"


@pytest.fixture
def process_state(monkeypatch):
    """Sets what a program may have set before it trains; torch's helper threads have started in that state."""
    threads_before = torch.get_num_threads()

    def put(flush: bool, threads: int, onednn: bool = True) -> None:
        torch.backends.mkldnn.enabled = onednn
        torch.set_flush_denormal(flush)
        torch.set_num_threads(threads)
        torch.ones(200_000).mul(2)

    yield put
    put(False, threads_before)
    monkeypatch.setattr("asmil.machine.process._owned", True)
    with exact_arithmetic():  # helper threads that started in the state of a test end
        pass


def checkpoint(run, name="last"):
    return load_file(run.training(0, 0) / "checkpoints" / f"{name}.safetensors")


def differing(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def test_a_killed_run_resumed_by_another_kind_of_process(cohort, tmp_path, process_state):
    settings = resolve("abmil", changes=CHANGES)
    process_state(flush=False, threads=1, onednn=False)
    whole = train_run(cohort, tmp_path / "whole", settings)
    train_until_killed(cohort, tmp_path / "run", "abmil", CHANGES, step=2, flush=True)
    process_state(flush=False, threads=2, onednn=False)
    threads = []

    class Count(RunObserver):
        def epoch(self, fold, seed, record):
            threads.append(torch.get_num_threads())

    run = train_run(cohort, tmp_path / "run", settings, observer=Count())
    assert set(threads) == {1}, "other numbers of threads take long sums in another order"
    assert (torch.get_num_threads(), torch.backends.mkldnn.enabled) == (2, False)
    assert differing(checkpoint(run), checkpoint(whole)) == []
    assert differing(checkpoint(run, "best"), checkpoint(whole, "best")) == []
    pd.testing.assert_frame_equal(pd.read_parquet(run.predictions), pd.read_parquet(whole.predictions))


class InMemory:
    bags = tuple(Bag(drawn(number, 30 + number)) for number in range(6))

    def __len__(self):
        return len(self.bags)

    def stream(self, order):
        return (self.bags[i] for i in order)


def second_moments() -> list[torch.Tensor]:
    config = resolve("abmil", changes=CHANGES)
    trainer = Trainer(build_model(config, 24, 2, 0), Classification(["a", "b"]), config, seed=0)
    trainer.fit(LabeledBags(InMemory(), np.arange(6) % 2), None)
    return [state["exp_avg_sq"] for state in trainer.optimizer.state.values()]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_loop_computes_the_same_whatever_the_caller_did_with_denormals(process_state, threads):
    found = []
    for flush in (False, True):
        process_state(flush=flush, threads=threads)
        found.append(second_moments())
    tiny = torch.finfo(torch.float32).tiny
    torch.set_flush_denormal(False)
    normal = [[moment.where(moment >= tiny, 0) for moment in moments] for moments in found]
    assert all(torch.equal(moment, other) for moment, other in zip(*normal, strict=True))
    if threads == 1:  # the helper threads of a program are its own
        assert all(torch.equal(moment, flushed) for moment, flushed in zip(found[0], normal[0], strict=True))
        assert all(torch.equal(moment, other) for moment, other in zip(*found, strict=True))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_the_loop_computes_the_same_after_a_product_in_bf16(process_state):
    """After it torch computes without oneDNN, in the whole process, if the CPU has no bf16."""
    before = second_moments()
    torch.ones(64, 64, dtype=torch.bfloat16) @ torch.ones(64, 64, dtype=torch.bfloat16)
    assert all(torch.equal(one, other) for one, other in zip(before, second_moments(), strict=True))
    process_state(flush=False, threads=1, onednn=False)
    assert all(torch.equal(one, other) for one, other in zip(before, second_moments(), strict=True))


@pytest.mark.parametrize("flush", [False, True])
def test_the_estimator_and_side_by_side_leave_the_process_as_it_was(process_state, flush):
    process_state(flush=flush, threads=1)
    bags = [bag.features for bag in InMemory.bags]
    labels = np.arange(6) % 2
    MILClassifier("abmil", epochs=1, device="cpu").fit(bags, labels).predict_proba(bags)
    config = resolve("abmil", changes=CHANGES)
    trainer = Trainer(build_model(config, 24, 2, 0), Classification(["a", "b"]), config, seed=0)
    fit_side_by_side([trainer], [LabeledBags(InMemory(), labels)], [None])
    assert bool(torch.tensor(torch.finfo(torch.float32).tiny) * 0.5 == 0) is flush
