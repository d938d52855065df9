"""Survival, regression and multi-label runs: trained, predicted, resumed, and blind to their test set."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from asmil import AsmilError, Bag, methods
from asmil.cohort.manifest import load_cohort
from asmil.cohort.units import units_of
from asmil.runs.config import resolve
from asmil.runs.description import read_description
from asmil.runs.model import build_model
from asmil.runs.prediction import open_models, predict_slide
from asmil.tasks.classification import Classification
from asmil.training.gradients import StepGradients
from asmil.training.run import train_run
from asmil.training.setup import build_stabilizers
from small_task_cohorts import write_cohort
from training_until_killed import train_until_killed
from watched_training import ReadAfter, killed_after

LOSSES = [
    ("survival", "incidence"),
    ("survival", "hazard"),
    ("survival", "cox"),
    ("regression", "huber"),
    ("multilabel", "own"),
]
KINDS = ("survival", "regression", "multilabel")


def config(kind, method="abmil", loss="own", **sections):
    training = {"epochs": 2, "accumulate": 3, "lr": 1e-3, **sections.pop("training", {})}
    task = {"kind": kind, "loss": loss, **sections.pop("task", {})}
    return resolve(method, changes={"training": training, "task": task, **sections})


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory):
    return {kind: write_cohort(tmp_path_factory.mktemp(kind), kind) for kind in (*KINDS, "classification")}


def weights(run, fold=0, name="best"):
    return load_file(run.training(fold, 0) / "checkpoints" / f"{name}.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("kind", "loss"), LOSSES)
def test_a_run_trains_and_its_model_predicts_the_same_again(cohorts, tmp_path, kind, loss):
    settings = config(kind, loss=loss)
    run = train_run(cohorts[kind], tmp_path / "run", settings)
    table = pd.read_parquet(run.predictions)
    cohort = load_cohort(cohorts[kind], kind=kind)
    units = {unit.name: unit for unit in units_of(cohort.slides, settings.unit)}
    assert sorted(table["slide"]) == sorted(name for name, unit in units.items() if unit.slides[0].split != "train")
    records = [json.loads(line) for line in (run.training(0, 0) / "metrics.jsonl").read_text().splitlines()]
    assert len(records) == 2
    assert all(np.isfinite(value) for record in records for value in record["train"].values())
    assert {"loss", *{"survival": ["c_index"], "regression": ["r2"]}.get(kind, [])} <= records[0]["val"].keys()
    trained_run = open_models(run.path)
    for _, row in table.iterrows():
        values = predict_slide(trained_run, units[row["slide"]]).values
        for name, value in values.items():
            np.testing.assert_allclose(np.array(value), np.array(row[name]), rtol=1e-6)
        assert np.isfinite(next(iter(values.values())))
    expected = {
        "survival": ["time", "event", "risk", "survival_times", "survival"],
        "regression": ["target", "value"],
        "multilabel": ["target_a", "target_b", "prob_a", "prob_b"],
    }[kind]
    assert list(table.columns) == ["slide", "patient", "fold", "seed", "role", *expected]


def test_truths_are_those_of_the_manifest(cohorts, tmp_path):
    manifest = pd.read_csv(cohorts["survival"]).drop_duplicates("patient").set_index("patient")
    table = pd.read_parquet(train_run(cohorts["survival"], tmp_path / "s", config("survival")).predictions)
    assert (table["time"].to_numpy() == manifest["time"][table["patient"]].to_numpy()).all()
    assert (table["event"].to_numpy() == manifest["event"][table["patient"]].to_numpy()).all()
    for survival in table["survival"]:
        assert (np.diff([1, *survival]) <= 0).all()
    manifest = pd.read_csv(cohorts["multilabel"]).set_index("slide")["label"]
    table = pd.read_parquet(train_run(cohorts["multilabel"], tmp_path / "m", config("multilabel")).predictions)
    for label in "ab":
        assert (table[f"target_{label}"] == [int(label in manifest[name].split(";")) for name in table["slide"]]).all()


@pytest.mark.parametrize("method", ["abmil", "dsmil", "acmil"])
def test_unknown_labels_of_a_wide_table_are_kept_as_unknown(cohorts, tmp_path, method):
    table = pd.read_csv(cohorts["multilabel"])
    given = {
        label: ["" if n % 5 == place else str(int(label in cell.split(";"))) for n, cell in enumerate(table["label"])]
        for place, label in enumerate("ab")
    }
    manifest = cohorts["multilabel"].with_name("wide.csv")
    table.drop(columns="label").assign(**given).to_csv(manifest, index=False)
    settings = config("multilabel", method)
    run = train_run(manifest, tmp_path / "run", settings, columns={"labels": "a,b"})
    found = pd.read_parquet(run.predictions).set_index("slide")
    for label in "ab":
        known = pd.Series(given[label], index=table["slide"])[found.index].replace("", "nan").astype(float)
        assert known.isna().any()
        np.testing.assert_array_equal(found[f"target_{label}"], known)
        assert found[f"prob_{label}"].notna().all()
    assert all(torch.isfinite(tensor).all() for tensor in weights(run).values())


def test_unknown_labels_are_unknown_to_predict_as_well(cohorts, tmp_path, asmil_here):
    run = train_run(cohorts["multilabel"], tmp_path / "run", config("multilabel"))
    table = pd.read_csv(cohorts["multilabel"]).drop(columns="split")
    table.loc[table.index[:9], "label"] = "a;b=?"
    manifest = cohorts["multilabel"].with_name("partly_known.csv")
    table.to_csv(manifest, index=False)
    done = asmil_here("predict", run.path, manifest, "--out", tmp_path / "p.csv", "--quiet")
    assert done.returncode == 0, done.stderr
    found = pd.read_csv(tmp_path / "p.csv").set_index("slide").loc[table["slide"]]
    assert (found["target_a"][:9] == 1).all()
    assert found["target_b"][:9].isna().all()
    assert found["target_b"][9:].notna().all()


# Blind to the test set


def test_test_patients_are_not_read_before_training_has_ended(cohorts, tmp_path, monkeypatch):
    watched = ReadAfter(monkeypatch)
    train_run(cohorts["survival"], tmp_path / "run", config("survival"), observer=watched)
    manifest = pd.read_csv(cohorts["survival"])
    for split, moment in (("test", 2), ("train", 0)):
        assert {watched.epochs[name] for name in manifest.loc[manifest["split"] == split, "slide"]} == {moment}


def with_other_test_outcomes(manifest, kind):
    table = pd.read_csv(manifest, dtype=str)
    tested = table["split"] == "test"
    if kind == "survival":
        table.loc[tested, "time"] = "500"
        table.loc[tested, "event"] = "1"
    else:
        table.loc[tested, "label"] = {"regression": "-77", "multilabel": "b"}[kind]
    other = manifest.with_name("other.csv")
    table.to_csv(other, index=False)
    return other


@pytest.mark.parametrize("kind", KINDS)
def test_outcomes_of_test_patients_do_not_change_what_is_trained(cohorts, tmp_path, kind):
    other = with_other_test_outcomes(cohorts[kind], kind)
    settings = config(kind, training={"sampling": "balanced"})
    runs = [train_run(path, tmp_path / path.stem, settings) for path in (cohorts[kind], other)]
    assert same(*map(weights, runs))
    notes = [(run.training(0, 0) / "task.json").read_text() for run in runs]
    assert notes[0] == notes[1]
    predictions = [pd.read_parquet(run.predictions) for run in runs]
    predicted = [name for name in predictions[0] if name.startswith(("risk", "value", "prob_"))]
    pd.testing.assert_frame_equal(*(table[predicted] for table in predictions))


def test_the_official_last_edge_looks_at_all_patients(cohorts, tmp_path):
    other = with_other_test_outcomes(cohorts["survival"], "survival")
    edges = {}
    for last_edge in ("train", "all"):
        run = train_run(other, tmp_path / last_edge, config("survival", task={"last_edge": last_edge}))
        edges[last_edge] = json.loads((run.training(0, 0) / "task.json").read_text())["edges"]
    assert edges["train"][:-1] == edges["all"][:-1]
    assert edges["train"][-1] < 100
    assert edges["all"][-1] == pytest.approx(500, abs=1e-4)


# Which epoch is kept


def test_survival_keeps_the_last_epoch_unless_told_otherwise(cohorts, tmp_path):
    settings = resolve("abmil", changes={"task": {"kind": "survival"}, "training": {"epochs": 3}})
    assert (settings.training.select, settings.training.accumulate, settings.data.val_share) == ("last", 32, 0)
    run = train_run(cohorts["survival"], tmp_path / "last", settings)
    assert json.loads((run.training(0, 0) / "checkpoints" / "best.json").read_text())["epoch"] == 3
    chosen = config("survival", training={"select": "f1_auc", "epochs": 4, "lr": 0.03})
    run = train_run(cohorts["survival"], tmp_path / "chosen", chosen)
    records = [json.loads(line) for line in (run.training(0, 0) / "metrics.jsonl").read_text().splitlines()]
    found = [record["val"]["c_index"] for record in records]
    best = json.loads((run.training(0, 0) / "checkpoints" / "best.json").read_text())
    assert best["score"] == max(found)
    assert best["epoch"] == 1 + found.index(max(found))


def test_without_validation_patients_nothing_is_predicted_for_them(tmp_path):
    manifest = write_cohort(tmp_path, "survival", split=False)
    run = train_run(manifest, tmp_path / "run", config("survival", folds=2))
    assert set(pd.read_parquet(run.predictions)["role"]) == {"test"}
    assert sorted(pd.read_parquet(run.predictions)["slide"]) == [f"p{i:02d}" for i in range(16)]


# Killed and given again


def test_a_run_that_ended_in_the_middle_ends_with_the_same_bits(cohorts, tmp_path):
    training = {"epochs": 4, "checkpoint_seconds": 0, "accumulate": 3, "executor": "plain"}
    settings = config("survival", loss="hazard", training=training)
    whole = train_run(cohorts["survival"], tmp_path / "whole", settings)
    with killed_after(7):
        train_run(cohorts["survival"], tmp_path / "run", settings)
    run = train_run(cohorts["survival"], tmp_path / "run", settings)
    assert same(weights(run), weights(whole))
    assert same(weights(run, name="last"), weights(whole, name="last"))
    pd.testing.assert_frame_equal(pd.read_parquet(run.predictions), pd.read_parquet(whole.predictions))


@pytest.mark.heavy
def test_killed_by_the_system_a_cox_run_ends_with_the_same_bits(cohorts, tmp_path):
    changes = {
        "task": {"kind": "survival", "loss": "cox"},
        "training": {"epochs": 8, "accumulate": 4, "checkpoint_seconds": 0},
    }
    settings = resolve("abmil", changes=changes)
    whole = train_run(cohorts["survival"], tmp_path / "whole", settings)
    train_until_killed(cohorts["survival"], tmp_path / "run", "abmil", changes, step=5, flush=True)
    run = train_run(cohorts["survival"], tmp_path / "run", settings)
    assert same(weights(run), weights(whole))
    assert (run.training(0, 0) / "task.json").read_text() == (whole.training(0, 0) / "task.json").read_text()
    pd.testing.assert_frame_equal(pd.read_parquet(run.predictions), pd.read_parquet(whole.predictions))


# A loss that compares the bags of a step


def test_one_pass_for_all_bags_adds_the_gradients_of_one_by_one():
    task = Classification(["a", "b"])
    settings = resolve("asmil")
    model = build_model(settings, 24, 2, 0).eval()
    stabilizers = build_stabilizers(settings, model, 1)
    steps = StepGradients(model, task, stabilizers, kept_rows=False, autocast=False)
    draw = np.random.default_rng(0)
    bags = [Bag(draw.normal(size=(n, 24)).astype(np.float32)) for n in (5, 9, 7)]
    targets = torch.tensor([0, 1, 1])
    _, noted = steps.of_all(bags, targets)
    together = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    alone = [steps.of_one(bag, targets[i : i + 1], 3)[1] for i, bag in enumerate(bags)]
    assert together
    for name, parameter in model.named_parameters():
        if name in together:
            torch.testing.assert_close(parameter.grad, together[name], rtol=1e-4, atol=1e-7)
    losses, anchors = ([parts[name].item() for parts in alone] for name in ("loss", "anchor"))
    assert noted[0]["loss"].item() == pytest.approx(np.mean(losses), rel=1e-5)
    assert [parts["anchor"].item() for parts in noted] == pytest.approx(anchors)


def test_cox_trains_with_an_anchor(cohorts, tmp_path):
    run = train_run(cohorts["survival"], tmp_path / "run", config("survival", "asmil", "cox"))
    records = [json.loads(line) for line in (run.training(0, 0) / "metrics.jsonl").read_text().splitlines()]
    assert all({"loss", "cox", "anchor"} <= record["train"].keys() for record in records)


# Every method


NEEDS_TWO_OUTPUTS = ("clam_mb", "clam_sb", "dtfd", "hdmil")
"""Methods that tell classes apart by their outputs: regression and Cox, with one output, are refused."""


@pytest.fixture(scope="module")
def few_patients(tmp_path_factory):
    return {kind: write_cohort(tmp_path_factory.mktemp(kind), kind, n_patients=8) for kind in KINDS}


@pytest.mark.parametrize("method", sorted(methods()))
@pytest.mark.parametrize("kind", ["survival", "regression"])
def test_every_method_trains(few_patients, tmp_path, method, kind):
    few = {"training": {"epochs": 1}, "record": {"attention": "none"}, "data": {"unit": "patient"}}
    settings = config(kind, method, **few)
    if kind == "regression" and method in NEEDS_TWO_OUTPUTS:
        with pytest.raises(AsmilError, match=r"two|class"):
            train_run(few_patients[kind], tmp_path / "run", settings)
        assert not (tmp_path / "run").exists()
        return
    run = train_run(few_patients[kind], tmp_path / "run", settings)
    table = pd.read_parquet(run.predictions)
    assert np.isfinite(table["risk" if kind == "survival" else "value"]).all()
    assert len(table) == 4


# Settings that do not fit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": {"kind": "survival", "loss": "cox"}, "training": {"accumulate": 1}}, "set training.accumulate to 2"),
        ({"task": {"kind": "survival", "loss": "squared"}}, "squared"),
        ({"task": {"kind": "classification", "loss": "cox"}}, "cox"),
        ({"task": {"kind": "suvival"}}, "task.kind"),
        ({"task": {"kind": "survival", "bins": 1}}, "task.bins"),
    ],
)
def test_settings_of_another_task_are_refused_in_a_sentence(changes, message):
    with pytest.raises(AsmilError, match=message) as told:
        resolve("abmil", changes=changes)
    assert len(str(told.value)) < 250


@pytest.mark.parametrize("kind", KINDS)
def test_class_weights_need_classes(cohorts, tmp_path, kind):
    with pytest.raises(AsmilError, match="classes"):
        train_run(cohorts[kind], tmp_path / "run", config(kind, training={"class_weights": "balanced"}))
    assert not (tmp_path / "run").exists()


def test_a_fold_that_cannot_be_trained_is_refused_before_there_is_a_folder(tmp_path):
    manifest = write_cohort(tmp_path, "regression", split=False)
    table = pd.read_csv(manifest)
    table["fold"] = (table["label"] != 0).astype(int)
    table.loc[table["label"] == 0, "label"] = 1
    table.loc[table["fold"] == 1, "label"] = 5
    table.to_csv(manifest, index=False)
    with pytest.raises(AsmilError, match="values"):
        train_run(manifest, tmp_path / "run", config("regression", data={"val_share": 0}))
    assert not (tmp_path / "run").exists()


# Runs of earlier versions


def test_a_run_of_an_earlier_version_is_read_predicts_and_goes_on(cohorts, tmp_path):
    import yaml

    settings = resolve("abmil", changes={"training": {"epochs": 2}, "seeds": 2})
    manifest = tmp_path / "cohort.csv"
    table = pd.read_csv(cohorts["classification"])
    table["features"] = [str(cohorts["classification"].parent / "features" / f"{slide}.h5") for slide in table["slide"]]
    table.assign(time=1.0, event="alive").to_csv(manifest, index=False)
    run = train_run(manifest, tmp_path / "run", settings)
    before = pd.read_parquet(run.predictions)
    values = yaml.safe_load(run.config.read_text())
    del values["nested"], values["data"]["unit"], values["data"]["leave_out"]
    values["task"] = {key: values["task"][key] for key in ("kind", "classes")}
    values["asmil"] = "0.1.0"
    run.config.write_text(yaml.safe_dump(values, sort_keys=False))
    for _, _, training in run.trainings():
        (training / "task.json").unlink()
    assert read_description(run).config == settings
    assert len(open_models(run.path).trained) == 2
    (run.training(0, 1) / "predictions.parquet").unlink()
    run.predictions.unlink()
    again = train_run(manifest, tmp_path / "run", settings)
    pd.testing.assert_frame_equal(pd.read_parquet(again.predictions), before)


def test_rows_of_a_classification_are_fingerprinted_without_times(cohorts, tmp_path):
    """So that a run on a manifest that also tells times, begun before these were read, goes on."""
    import hashlib

    from asmil.runs.description import describe

    cohort = load_cohort(with_times(cohorts["classification"], tmp_path), cohorts["classification"].parent / "features")
    rows = [(s.slide, s.patient, s.label, s.site, s.split, s.fold) for s in cohort.slides]
    found = describe(resolve("abmil"), cohort, cohort.classes, []).cohort["rows_sha256"]
    assert found == hashlib.sha256(repr(rows).encode()).hexdigest()


def with_times(manifest, folder):
    pd.read_csv(manifest).assign(time=1.0, event=1).to_csv(folder / "times.csv", index=False)
    return folder / "times.csv"
