"""Which executor trains: by settings, by machine, and as a training was begun."""

import json

import pytest
import torch

from asmil import AsmilError
from asmil.runs.config import resolve
from asmil.runs.layout import is_finished
from asmil.runs.model import build_model
from asmil.runs.notes import read_epochs_done
from asmil.tasks.classification import Classification
from asmil.tasks.regression import Regression
from asmil.training import executors
from asmil.training.fused.layout import BLOCK, Layout, Sizes
from asmil.training.honored import FUSED
from asmil.training.run import RunObserver, train_run
from asmil.training.side_by_side.step import StackedSteps
from watched_training import killed_in_the_second_epoch

WIDTH = 32


def reason(method="asmil", task=None, **changes):
    config = resolve(method, changes=changes)
    return FUSED.reason(config, build_model(config, WIDTH, 2, 0), task or Classification(["a", "b"]))


@pytest.mark.parametrize("preset", ["paper", "no_anchor"])
def test_the_presets_of_asmil_apply(preset):
    config = resolve("asmil", preset)
    for width in (384, 768, 1024, 1536):
        assert FUSED.reason(config, build_model(config, width, 2, 0), Classification(["a", "b"])) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"anchor": {"normalizer": "none"}},
        {"anchor": {"update": "never", "start": "random"}},
        {"training": {"class_weights": "balanced", "betas": [0.8, 0.9], "sampling": "balanced"}},
        {"model": {"tokens": 16, "drop": 0.2}},
        {"record": {"every": 5, "attention": "none"}},
    ],
)
def test_what_applies(changes):
    assert reason(**changes) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": {"projections": "shared"}}, "shared"),
        ({"model": {"drop_count": 2}}, "drop_count"),
        ({"model": {"embedding_layers": 2}}, "embedding"),
        ({"model": {"tokens": 6}}, "48"),
        ({"model": {"inner": 24}}, "24"),
        ({"attention": {"normalizer": "nsf"}}, "attention.normalizer"),
        ({"anchor": {"normalizer": "softmax"}}, "softmax"),
        ({"anchor": {"temperature": 0.5}}, "0.5"),
        ({"anchor": {"rows": "kept"}}, "anchor.rows"),
        ({"anchor": {"update": "epoch"}}, "anchor.update"),
        ({"stabilizers": {"l2": {"weight": 0.1}}}, "stabilizers"),
        ({"training": {"optimizer": "adamw"}}, "adamw"),
        ({"training": {"accumulate": 2}}, "accumulate"),
        ({"training": {"clip_norm": 1.0}}, "clip_norm"),
        ({"training": {"precision": "fp32"}}, "fp32"),
        ({"data": {"max_tiles": 100}}, "max_tiles"),
        ({"record": {"every": 5}}, "record.every"),
    ],
)
def test_what_does_not_apply_is_named(changes, named):
    assert named in reason(**changes)


def test_other_methods_and_tasks_do_not_apply():
    assert "abmil" in reason("abmil")
    assert reason(task=Regression(0.0, 1.0)) is not None
    assert "cpu" in FUSED.machine(torch.device("cpu"))


def test_fused_is_refused_where_it_cannot_be_used(small_cohort, tmp_path):
    config = resolve("asmil", changes={"training": {"epochs": 1, "executor": "fused", "device": "cpu"}})
    with pytest.raises(AsmilError, match="cpu"):
        train_run(small_cohort, tmp_path / "run", config)


def test_a_training_ends_with_the_executor_it_began_with(small_cohort, tmp_path, monkeypatch):
    config = resolve("asmil", changes={"training": {"epochs": 1, "device": "cpu"}})
    folder = train_run(small_cohort, tmp_path / "run", config)
    state = json.loads((folder.training(0, 0) / "checkpoints" / "last.json").read_text())
    assert state["executor"] == "plain"
    (folder.training(0, 0) / "predictions.parquet").unlink()
    monkeypatch.setattr(executors, "_begun_with", lambda job: "fused")
    with pytest.raises(AsmilError, match="fused"):
        train_run(small_cohort, tmp_path / "run", config)


def test_trainings_side_by_side_go_on_where_their_steps_cannot_be_recorded_any_more(
    small_cohort, tmp_path, monkeypatch
):
    changes = {"training": {"epochs": 2, "device": "cpu", "checkpoint_seconds": 0}, "seeds": 2}
    config = resolve("mean_pooling", changes=changes)
    with killed_in_the_second_epoch():
        train_run(small_cohort, tmp_path / "run", config)
    reason = executors.JobRunner._reason
    # a GPU offers graphs of single trainings as well; here, steps of several are never recorded
    offers = lambda self, executor, job: None if executor == "graphed" else reason(self, executor, job)  # noqa: E731
    monkeypatch.setattr(executors.JobRunner, "_reason", offers)
    folder = train_run(small_cohort, tmp_path / "run", config)
    assert all(is_finished(training) for _, _, training in folder.trainings())


@pytest.mark.parametrize("epoch", [0, 1])
def test_fewer_trainings_are_side_by_side_where_the_memory_of_the_gpu_is_full(
    epoch, small_cohort, tmp_path, monkeypatch
):
    class Seen(RunObserver):
        def __init__(self):
            self.begun, self.notes = [], []

        def training(self, fold, seed, epochs, epochs_done):
            self.begun.append(seed)

        def note(self, text):
            self.notes.append(text)

    run_epoch = StackedSteps.run_epoch

    def filling(steps, due):
        if len(steps.trainers) > 2 and due[0].progress.epoch >= epoch:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        run_epoch(steps, due)

    monkeypatch.setattr(StackedSteps, "run_epoch", filling)
    changes = {"training": {"epochs": 2, "device": "cpu", "checkpoint_seconds": 0}, "seeds": 5}
    seen = Seen()
    folder = train_run(small_cohort, tmp_path / "run", resolve("mean_pooling", changes=changes), observer=seen)
    assert [read_epochs_done(training) for _, _, training in folder.trainings()] == [2] * 5
    assert sorted(seen.begun) == list(range(5))
    assert sum("full" in note for note in seen.notes) == 2  # with five, and with three


def test_seeds_are_all_begun_and_reported(small_cohort, tmp_path):
    class Seen(RunObserver):
        def __init__(self):
            self.begun, self.done = [], []

        def training(self, fold, seed, epochs, epochs_done):
            self.begun.append((fold, seed, epochs))

        def already_trained(self, fold, seed):
            self.done.append((fold, seed))

    config = resolve("asmil", changes={"training": {"epochs": 1}, "seeds": 2})
    first, second = Seen(), Seen()
    train_run(small_cohort, tmp_path / "run", config, observer=first)
    train_run(small_cohort, tmp_path / "run", config, observer=second)
    assert first.begun == [(0, 0, 1), (0, 1, 1)]
    assert not first.done
    assert not second.begun
    assert second.done == [(0, 0), (0, 1)]


def test_the_layout_holds_every_parameter_once():
    config = resolve("asmil", changes={"model": {"tokens": 4, "heads": 4}})
    model = build_model(config, WIDTH, 3, 0)
    layout = Layout(Sizes.of(model))
    assert {name: tuple(parameter.shape) for name, parameter in model.named_parameters()} == layout.shapes
    flat = torch.zeros(2, layout.size)
    for name, parameter in model.named_parameters():
        assert layout.start[name] % BLOCK == 0
        layout.view(flat, name)[1] += parameter.detach()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(layout.view(flat, name)[1], parameter.detach())
    assert not flat[0].any()
    assert set(layout.anchor_names) == {
        "tokens", "embedding.layers.0.weight",
        *(f"token_block.{part}_{leaf}" for part in "qk" for leaf in ("weight", "bias")),
    }  # fmt: skip
