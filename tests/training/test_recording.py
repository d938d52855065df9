"""Attention written down while training."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from asmil import AsmilError
from asmil.cohort.features import read_bag
from asmil.cohort.manifest import load_cohort
from asmil.cohort.splits import Splits
from asmil.models.inference import infer
from asmil.runs.attention_file import AttentionWriter, RecordedSlides, Recording, read_attention
from asmil.runs.config import resolve
from asmil.runs.description import read_description
from asmil.runs.model import build_model
from asmil.training.recording import choose_slides
from asmil.training.run import train_run


def train(cohort, out, method="abmil", **changes):
    tree = {"training": {"epochs": 3, "lr": 1e-3}, **changes}
    run = train_run(cohort, out, resolve(method, changes=tree))
    return run, run.training(0, 0)


def test_records_what_the_model_says_at_every_epoch(small_cohort, tmp_path):
    run, training = train(small_cohort, tmp_path / "run", training={"epochs": 3, "lr": 1e-3, "select": "last"})
    record = read_attention(training)
    assert record.every == "epoch"
    assert record.epochs.tolist() == [0, 1, 2, 3]
    assert record.classes == ("normal", "tumor")
    assert record.targets.tolist().count(0) == record.targets.tolist().count(1) == 2
    assert set(record.roles) == {"train"}
    assert set(record.slides) <= set(Splits.load(run.splits).slides(0, "train"))

    slides = {slide.slide: slide for slide in load_cohort(small_cohort).slides}
    model = build_model(read_description(run).config, 24, 2, 0)
    model.load_state_dict(load_file(training / "checkpoints" / "best.safetensors"))
    for i, name in enumerate(record.slides):
        bag = read_bag(slides[name].source, name)
        output = infer(model, bag)
        weights = record.attention(i)
        assert weights.shape == (4, len(bag)) == (4, record.n_tiles[i])
        np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-12)
        np.testing.assert_allclose(weights[-1], model.tile_map(output).numpy(), rtol=2e-3)
        np.testing.assert_allclose(record.logits[-1, i], output.logits.numpy(), rtol=1e-5)
        np.testing.assert_allclose(record.embedding[-1, i], output.embedding.numpy(), rtol=2e-3, atol=1e-4)
        assert np.array_equal(record.coords(i), bag.coords.numpy())
        first_of_class = record.targets.tolist().index(record.targets[i]) == i
        assert (record.scores(i) is not None) == first_of_class
        if first_of_class:
            np.testing.assert_allclose(record.scores(i), output.scores.numpy(), rtol=2e-3, atol=1e-3)


def test_every_so_many_steps_of_both_parts(small_cohort, tmp_path):
    _, training = train(small_cohort, tmp_path / "run", record={"every": 5, "role": "both", "attention": 1})
    record = read_attention(training)
    assert record.every == "5 steps"
    assert record.steps.tolist() == list(range(0, int(record.steps[-1]) + 1, 5))
    assert record.roles == ("train", "train", "val", "val")
    steps_an_epoch = int(record.steps[-1] / record.epochs[-1])
    np.testing.assert_allclose(record.epochs, record.steps / steps_an_epoch, rtol=0.1)


def test_validation_slides_are_not_looked_at_twice(small_cohort, tmp_path, monkeypatch):
    from asmil.training import recording

    asked = []

    def counted(model, bag, device):
        asked.append(bag.id)
        return infer(model, bag, device)

    monkeypatch.setattr(recording, "infer", counted)
    settings = {"epochs": 3, "lr": 1e-3, "select": "last"}
    run, training = train(
        small_cohort, tmp_path / "run", training=settings, record={"attention": "all", "role": "both"}
    )
    record = read_attention(training)
    trained, validated = record.roles.count("train"), record.roles.count("val")
    assert validated == len(Splits.load(run.splits).slides(0, "val"))
    assert len(asked) == (trained + validated) + 3 * trained + 2  # at the start, after every epoch, and for the scores
    slides = {slide.slide: slide for slide in load_cohort(small_cohort).slides}
    model = build_model(read_description(run).config, 24, 2, 0)
    model.load_state_dict(load_file(training / "checkpoints" / "best.safetensors"))
    for i, name in enumerate(record.slides):
        heat = model.tile_map(infer(model, read_bag(slides[name].source, name))).numpy()
        np.testing.assert_allclose(record.attention(i)[-1], heat, rtol=2e-3)


@pytest.mark.parametrize(
    "method",
    ["asmil", "dtfd", "mhim", *(pytest.param(m, marks=pytest.mark.heavy) for m in ("hdmil", "acmil", "transmil"))],
)
def test_recording_does_not_change_what_is_trained(small_cohort, tmp_path, method, whole_checkpoints):
    short = {"training": {"epochs": 1, "lr": 1e-3}}
    _, with_record = train(small_cohort, tmp_path / "a", method, **short, record={"attention": 2, "every": 3})
    _, without = train(small_cohort, tmp_path / "b", method, **short, record={"attention": "none"})
    assert read_attention(without) is None
    first, second = (load_file(path / "checkpoints" / "last.safetensors") for path in (with_record, without))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_only_the_last_stage_is_recorded(small_cohort, tmp_path):
    _, training = train(small_cohort, tmp_path / "run", "ibmil")
    assert read_attention(training).epochs.tolist() == [3, 4, 5, 6]


def test_methods_without_attention_record_none(small_cohort, tmp_path):
    _, training = train(small_cohort, tmp_path / "run", "mean_pooling")
    assert read_attention(training) is None


@pytest.mark.parametrize(("wanted", "places"), [("none", []), ("all", [0, 1, 2, 3, 4]), (1, [0, 1]), (2, [0, 1, 2, 3])])
def test_which_slides(wanted, places):
    assert choose_slides(np.array([1, 0, 0, 1, 1]), wanted) == places


def slides(n_tiles=(4, 3)) -> RecordedSlides:
    count = len(n_tiles)
    names = tuple(f"s{i}" for i in range(count))
    targets = np.arange(count)
    return RecordedSlides("epoch", ("a", "b"), names, targets, ("train",) * count, np.array(n_tiles))


def moment(step: int, sizes=(4, 3)) -> Recording:
    draw = np.random.default_rng(step)
    attention = [draw.dirichlet(np.ones(size)).astype(np.float32) for size in sizes]
    return Recording(step / 2, step, attention, draw.normal(size=(2, 2)), draw.normal(size=(2, 5)))


def test_parts_are_read_while_training_and_joined_at_its_end(tmp_path):
    coords = {0: np.arange(8).reshape(4, 2)}
    writer = AttentionWriter(tmp_path, slides(), coords)
    assert read_attention(tmp_path) is None
    for step in (0, 1, 2):
        writer.add(moment(step))
    writer.flush()
    writer.add(moment(3))
    assert read_attention(tmp_path).steps.tolist() == [0, 1, 2]
    # the process is killed here: what was not flushed is recorded again
    writer = AttentionWriter(tmp_path, slides(), coords)
    assert [writer.has(step) for step in range(5)] == [True, True, True, False, False]
    writer.add(moment(3))
    writer.flush()
    before = read_attention(tmp_path)
    assert before.scores(0) is None
    weights = [before.attention(i) for i in range(2)]
    assert np.array_equal(before.attention(0, [3, 1, 1]), weights[0][[3, 1, 1]])
    writer.finish({1: np.ones((2, 3), dtype=np.float32)})
    after = read_attention(tmp_path)
    assert not (tmp_path / "attention.parts").exists()
    assert after.steps.tolist() == before.steps.tolist() == [0, 1, 2, 3]
    for i in range(2):
        exact = np.stack([moment(step).attention[i] for step in range(4)])
        np.testing.assert_allclose(after.attention(i), exact, rtol=2e-3, atol=1e-6)
        np.testing.assert_allclose(after.attention(i), weights[i], rtol=1e-3)
    assert np.array_equal(after.attention(1, [2]), after.attention(1)[[2]])
    assert np.array_equal(after.coords(0), coords[0])
    assert after.coords(1) is None
    assert after.scores(1).tolist() == [[1, 1, 1], [1, 1, 1]]
    writer.finish({})
    assert read_attention(tmp_path).scores(1) is not None
    # a training that goes on after its end: later recordings are added to those of the file
    writer = AttentionWriter(tmp_path, slides(), coords)
    assert writer.has(3)
    writer.add(moment(4))
    writer.flush()
    assert read_attention(tmp_path).steps.tolist() == [0, 1, 2, 3, 4]
    writer.finish({})
    assert read_attention(tmp_path).steps.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(read_attention(tmp_path).attention(1)[4], moment(4).attention[1], rtol=2e-3)
    assert not (tmp_path / "attention.parts").exists()


def test_small_weights_beside_a_large_one_are_kept(tmp_path):
    n = 100_000
    weights = np.full(n, 0.2 / n, dtype=np.float32)
    weights[7] += 0.8
    writer = AttentionWriter(tmp_path, slides((n, 1)), {})
    writer.add(Recording(0, 0, [weights, np.ones(1, dtype=np.float32)], np.zeros((2, 2)), np.zeros((2, 3))))
    writer.finish({})
    found = read_attention(tmp_path).attention(0)[0]
    np.testing.assert_allclose(found[7], 0.8, rtol=1e-2)
    np.testing.assert_allclose(found[:7].sum(), 7 * 0.2 / n, rtol=3e-2)


def test_a_broken_file_is_named(tmp_path, small_cohort):
    _, training = train(small_cohort, tmp_path / "run")
    file = training / "attention.h5"
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(AsmilError, match=r"attention\.h5"):
        read_attention(training)
    shutil.rmtree(training)
    assert read_attention(training) is None
