"""Nested cross-validation: every fold chooses for itself, without its test patients."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import asmil.cohort.loader as loader
from asmil import AsmilError
from asmil.cohort.manifest import load_cohort
from asmil.cohort.splits import Splits, make_splits
from asmil.runs.config import resolve
from asmil.runs.description import config_of_fold, read_description
from asmil.runs.prediction import open_models, predict_bag
from asmil.runs.selection import Merit
from asmil.training.nested import InnerSearch, candidates
from asmil.training.run import RunObserver, train_run
from asmil.training.side_by_side import train as side_by_side_train
from small_task_cohorts import write_cohort
from watched_training import killed_after


def config(grid, kind="classification", method="abmil", inner_folds=2, **sections):
    training = {"epochs": 1, **sections.pop("training", {})}
    nested = {"folds": inner_folds, "grid": grid}
    return resolve(method, changes={"training": training, "task": {"kind": kind}, "nested": nested, **sections})


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("nested"), "classification", split=False)


MODELS = {"model.inner": [8, 16], "training.lr": [1e-3, "3e-2"]}


@pytest.fixture(scope="module")
def stacks():
    """How many trainings were side by side, in each stack of the nested run."""
    return []


@pytest.fixture(scope="module")
def nested_run(manifest, tmp_path_factory, stacks):
    fit = side_by_side_train.fit_side_by_side
    with pytest.MonkeyPatch.context() as patch:

        def watched(trainers, *arguments, **options):
            stacks.append(len(trainers))
            fit(trainers, *arguments, **options)

        patch.setattr(side_by_side_train, "fit_side_by_side", watched)
        return train_run(manifest, tmp_path_factory.mktemp("run") / "run", config(MODELS, folds=2))


PLAIN = {"executor": "plain"}


@pytest.fixture(scope="module")
def plain_run(manifest, tmp_path_factory):
    return train_run(manifest, tmp_path_factory.mktemp("plain") / "run", config(MODELS, folds=2, training=PLAIN))


def choice(run, fold):
    return json.loads((run.fold(fold) / "choice.json").read_text())


def test_every_combination_is_a_candidate():
    found = candidates(config({"training.lr": [1e-3, 1e-2], "model.inner": [8, 16]}))
    assert len(found) == 4
    assert found[1] == {"training.lr": 1e-3, "model.inner": 16}
    assert candidates(config({"training.lr": ["3e-4"]})) == [{"training.lr": 3e-4}]
    assert candidates(resolve("abmil")) == [{}]


def test_the_chosen_candidate_has_the_highest_mean_score(nested_run):
    for fold in range(2):
        noted = choice(nested_run, fold)
        assert noted["inner_folds"] == 2
        means = [np.mean(one["scores"]) for one in noted["candidates"]]
        assert [one["mean"] for one in noted["candidates"]] == pytest.approx(means)
        assert noted["settings"] == noted["candidates"][int(np.argmax(means))]["settings"]
        for number, one in enumerate(noted["candidates"]):
            for inner_fold in range(2):
                note = nested_run.fold(fold) / "inner" / f"candidate-{number}" / f"fold-{inner_fold}" / "score.json"
                told = json.loads(note.read_text())
                assert told["score"] == one["scores"][inner_fold]
                assert told["score"] == pytest.approx(told["macro_f1"] + (told["macro_auc"] or 0))


def test_the_score_of_an_inner_training_is_that_of_its_best_epoch(manifest, tmp_path):
    run = train_run(manifest, tmp_path / "run", config({"training.lr": [3e-3, 3e-2]}, folds=2, training={"epochs": 4}))
    notes = sorted(run.path.rglob("inner/*/*/score.json"))
    assert len(notes) == 2 * 2 * 2
    best_epochs = set()
    for note in notes:
        told = json.loads(note.read_text())
        epochs = list(map(json.loads, (note.parent / "metrics.jsonl").read_text().splitlines()))
        scores = [epoch["val"]["macro_f1"] + (epoch["val"]["macro_auc"] or 0) for epoch in epochs]
        assert told["score"] == pytest.approx(max(scores))
        assert scores[[epoch["epoch"] for epoch in epochs].index(told["epoch"])] == pytest.approx(max(scores))
        best_epochs.add(told["epoch"])
    assert len(best_epochs) > 1, "the epochs must differ, or a test of the last epoch would pass as well"


@pytest.mark.parametrize(
    ("scores", "expected"), [((1, 1, 2, 0, 0, 3), "c"), ((0, 2, 1, 1, 0, 2), "a"), ((0, 0, -1, 1, 5, -6), "a")]
)
def test_the_first_of_equals_is_chosen(tmp_path, monkeypatch, manifest, scores, expected):
    left = list(scores)
    monkeypatch.setattr(InnerSearch, "_merit", lambda *arguments: Merit(float(left.pop(0)), 1.0))
    settings = config({"training.lr": [0.1, 0.2, 0.3]}, folds=2)
    cohort = load_cohort(manifest)
    search = InnerSearch(None, cohort, settings, make_splits(cohort, 2), 0, tmp_path)
    assert search.choose() == {"training.lr": {"a": 0.1, "b": 0.2, "c": 0.3}[expected]}


def test_each_fold_predicts_with_its_own_settings(nested_run, manifest):
    for fold in range(2):
        assert (
            config_of_fold(nested_run, read_description(nested_run), fold).model.inner
            == choice(nested_run, fold)["settings"]["model.inner"]
        )
    trained_run = open_models(nested_run.path)
    table = pd.read_parquet(nested_run.predictions)
    cohort = load_cohort(manifest)
    for one in trained_run.trained:
        assert one.model.config.inner == choice(nested_run, one.fold)["settings"]["model.inner"]
        rows = table[(table["fold"] == one.fold) & (table["role"] == "test")]
        slide = cohort[rows["slide"].iloc[0]]
        bag = predict_bag(trained_run, loader.BagLoader([slide], "none", prefetch=0).bag(0), trained=[one])
        assert bag.values["prob_a"] == pytest.approx(rows["prob_a"].iloc[0])


def test_folds_may_choose_models_of_other_shapes(manifest, tmp_path, monkeypatch):
    """Each fold is made to choose another width, and the run still predicts with both."""
    monkeypatch.setattr(InnerSearch, "_merit", lambda self, number, inner_fold: Merit(float(number == self.fold), 1.0))
    run = train_run(manifest, tmp_path / "run", config({"model.inner": [8, 16]}, folds=2))
    assert [one.model.config.inner for one in open_models(run.path).trained] == [8, 16]


def test_bags_are_prepared_as_each_candidate_wants_them(tmp_path, monkeypatch):
    """Clusters are counted per bag: a model that got those of another candidate would refuse or misread them."""
    manifest = write_cohort(tmp_path, "survival", split=False, n_patients=8)
    monkeypatch.setattr(InnerSearch, "jobs", lambda self: [])
    monkeypatch.setattr(InnerSearch, "choose", lambda self: {"model.clusters": [3, 5][self.fold]})
    grid = {"model.clusters": [3, 5]}
    run = train_run(manifest, tmp_path / "nested", config(grid, "survival", "deepattnmisl", folds=2))
    table = pd.read_parquet(run.predictions)
    for fold, clusters in enumerate((3, 5)):
        plain = resolve(
            "deepattnmisl",
            changes={
                "training": {"epochs": 1},
                "task": {"kind": "survival"},
                "model": {"clusters": clusters},
                "folds": 2,
            },
        )
        alone = pd.read_parquet(train_run(manifest, tmp_path / str(clusters), plain).predictions)
        pd.testing.assert_frame_equal(
            table[table["fold"] == fold].reset_index(drop=True), alone[alone["fold"] == fold].reset_index(drop=True)
        )


# Blind to the test set


def test_no_inner_training_reads_a_test_slide(tmp_path, monkeypatch):
    manifest = write_cohort(tmp_path, "classification")
    read: set[str] = set()
    original = loader.read_bag
    told = []

    def spy(source, id, mpp=None):
        read.add(id)
        return original(source, id, mpp)

    class Watch(RunObserver):
        def note(self, text):
            if "chose" in text:
                told.append(set(read))

    monkeypatch.setattr(loader, "read_bag", spy)
    settings = config({"training.lr": [1e-3, 1e-2]}, data={"cache": "none"})
    splits = Splits.load(train_run(manifest, tmp_path / "run", settings, observer=Watch()).splits)
    assert told == [set(splits.slides(0, "train")) | set(splits.slides(0, "val"))]
    assert read > told[0]


def test_inner_trainings_of_all_folds_run_side_by_side_with_the_same_scores(nested_run, plain_run, stacks):
    """Candidates that differ in the learning rate are in one stack: 2 folds x 2 inner folds x 2 rates."""
    assert stacks[:2] == [8, 8]
    for fold in range(2):
        together, alone = (choice(run, fold)["candidates"] for run in (nested_run, plain_run))
        for one, other in zip(together, alone, strict=True):
            assert one["loss"] == pytest.approx(other["loss"], abs=1e-3)


@pytest.mark.parametrize("kind", ["classification", "survival"])
def test_outcomes_of_test_patients_do_not_change_the_choice(tmp_path, kind):
    manifest = write_cohort(tmp_path, kind)
    table = pd.read_csv(manifest)
    tested = table["split"] == "test"
    table.loc[tested, "time" if kind == "survival" else "label"] = 300.0 if kind == "survival" else "b"
    table.to_csv(tmp_path / "other.csv", index=False)
    settings = config({"training.lr": [1e-3, 3e-2]}, kind, data={"val_share": 0})
    runs = [train_run(path, tmp_path / path.stem, settings) for path in (manifest, tmp_path / "other.csv")]
    assert choice(runs[0], 0) == choice(runs[1], 0)
    weights = [load_file(run.training(0, 0) / "checkpoints" / "best.safetensors") for run in runs]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_without_validation_patients_candidates_are_judged_after_their_last_epoch(tmp_path):
    """As the fold itself will be trained; with them the part held out chooses the epoch, as validation will."""
    manifest = write_cohort(tmp_path, "classification", split=False)
    for share in (0.0, 0.25):
        settings = config({"training.lr": [0.1]}, folds=2, training={"epochs": 3}, data={"val_share": share})
        run = train_run(manifest, tmp_path / str(share), settings)
        for inner_fold in range(2):
            folder = run.fold(0) / "inner" / "candidate-0" / f"fold-{inner_fold}"
            records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            kept = json.loads((folder / "score.json").read_text())["epoch"]
            assert not (folder / "checkpoints").exists()
            assert len(records) == 3
            assert all((record["val"] is None) == (share == 0) for record in records)
            assert kept == 3 or share > 0


# Ended in the middle


def test_a_search_that_ended_in_the_middle_goes_on_with_the_same_result(manifest, tmp_path, plain_run):
    settings = config(MODELS, folds=2, training=PLAIN)
    for steps in (5, 70):
        with killed_after(steps):
            train_run(manifest, tmp_path / "run", settings)
    done = list((tmp_path / "run").rglob("score.json"))
    times = [note.stat().st_mtime_ns for note in done]
    assert 0 < len(done) < 16
    run = train_run(manifest, tmp_path / "run", settings)
    assert [note.stat().st_mtime_ns for note in done] == times
    for fold in range(2):
        assert choice(run, fold) == choice(plain_run, fold)
    pd.testing.assert_frame_equal(pd.read_parquet(run.predictions), pd.read_parquet(plain_run.predictions))


# Searches that cannot be


@pytest.mark.parametrize(
    ("grid", "inner_folds", "message"),
    [
        ({"training.lrr": [1, 2]}, 2, "'training.lrr'.*'lr'"),
        ({"trainig.lr": [1, 2]}, 2, "trainig.lr .*'training'"),
        ({"training.lr": []}, 2, "training.lr .*values"),
        ({"training.lr": [1e-3, -1]}, 2, "'training.lr' = -1"),
        ({"model.inner": [8, "many"]}, 2, "'model.inner' = 'many'"),
        ({"training.seed": [1, 2]}, 2, "training.seed "),
        ({"task.kind": ["survival"]}, 2, "task.kind "),
        ({"folds": [2, 3]}, 2, "folds cannot"),
        ({"data.unit": ["slide", "patient"]}, 2, "data.unit cannot"),
        ({"training.lr": [1e-3, 1e-2]}, 9, r"fold 0: class 'a' .*9 folds"),
        ({"model.heads": [3]}, 2, "unknown setting 'model.heads'"),
    ],
)
def test_a_wrong_grid_is_told_before_there_is_a_folder(manifest, tmp_path, grid, inner_folds, message):
    with pytest.raises(AsmilError, match=message):
        train_run(manifest, tmp_path / "run", config(grid, inner_folds=inner_folds, folds=2))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("nested", [{"folds": 2}, {"grid": {"training.lr": [1]}}, {"folds": 1, "grid": {"a": [1]}}])
def test_inner_folds_and_a_grid_belong_together(nested):
    with pytest.raises(AsmilError, match=r"together|inner folds"):
        resolve("abmil", changes={"nested": nested})


def test_another_grid_is_not_resumed(nested_run, manifest):
    with pytest.raises(AsmilError, match="--out"):
        train_run(manifest, nested_run.path, config({"model.inner": [8, 16]}, folds=2))
