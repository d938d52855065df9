"""Runs with covariates: every task, no leak, exact resume, prediction, bundle and report."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

import asmil
from asmil import AsmilError
from asmil.evaluation.terms import BOTH
from asmil.export.graph import export_torch
from asmil.runs.config import resolve
from asmil.runs.covariates import COVARIATES, COVARIATES_FILE, IMAGE, TERMS_FILE, read_term
from asmil.runs.layout import RunLayout
from asmil.runs.run import Run
from asmil.runs.verification import verify_run
from asmil.training.run import RunObserver, train_run
from training.small_task_cohorts import write_cohort

KINDS = ("classification", "survival", "regression", "multilabel")


def write_clinical(folder, kind="classification", **more):
    manifest = write_cohort(folder, kind, **more)
    table = pd.read_csv(manifest)
    patient = np.arange(len(table)) // 2
    table["age"] = 50.0 + 5 * (patient % 4) + patient % 3
    table["stage"] = np.array(["I", "II", "III"])[patient % 3]
    table.loc[table["patient"] == "p01", "age"] = np.nan
    table.to_csv(manifest, index=False)
    return manifest


def config(kind="classification", covariates=("age", "stage"), method="abmil", **training):
    training = {"epochs": 2, **training}
    data = {"covariates": list(covariates)}
    return resolve(method, changes={"task": {"kind": kind}, "training": training, "data": data, "seeds": 1})


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_clinical(tmp_path_factory.mktemp("clinical"))


@pytest.fixture(scope="module")
def run(manifest, tmp_path_factory):
    return train_run(manifest, tmp_path_factory.mktemp("runs") / "run", config()).path


def folder_of(run):
    return RunLayout(run).training(0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_task_predicts_by_each_term(kind, tmp_path):
    manifest = write_clinical(tmp_path, kind)
    path = train_run(manifest, tmp_path / "run", config(kind)).path
    run = Run(path)
    terms = run.term_predictions
    assert set(terms["term"]) == {IMAGE, COVARIATES}
    assert len(terms) == 2 * len(run.predictions)
    evaluation = asmil.evaluate(path, resamples=20)
    assert set(evaluation.terms.estimates) == {BOTH, IMAGE, COVARIATES}
    first = run.format.compared[0].name
    assert evaluation.terms.estimates[BOTH][first].value == pytest.approx(evaluation.metrics[first].value, nan_ok=True)


def test_cox(tmp_path):
    manifest = write_clinical(tmp_path, "survival")
    settings = config("survival").model_dump(mode="json")
    settings["task"] |= {"loss": "cox"}
    settings["training"] |= {"accumulate": 4}
    path = train_run(manifest, tmp_path / "run", resolve("abmil", changes=_changes(settings))).path
    terms = Run(path).term_predictions
    alone = terms[terms["term"] == COVARIATES]
    assert alone["survival"].notna().all()


def _changes(settings):
    return {name: settings[name] for name in ("task", "training", "data")}


def test_nothing_is_fitted_on_test_patients(run, tmp_path):
    other = write_clinical(tmp_path)
    table = pd.read_csv(other)
    table.loc[table["split"] != "train", "age"] = 1000.0
    table.loc[table["split"] == "test", "stage"] = "IV"
    table.to_csv(other, index=False)
    changed = train_run(other, tmp_path / "run", config()).path
    assert read_term(folder_of(changed)) == read_term(folder_of(run))


def test_images_alone_are_the_same_with_a_covariate_that_says_nothing(tmp_path):
    manifest = write_clinical(tmp_path)
    table = pd.read_csv(manifest).assign(age=50)
    table.to_csv(manifest, index=False)
    with_term = train_run(manifest, tmp_path / "with", config(covariates=["age"])).path
    without = train_run(manifest, tmp_path / "without", config(covariates=[], executor="plain")).path
    pd.testing.assert_frame_equal(Run(with_term).predictions, Run(without).predictions)


def test_resumed_is_as_uninterrupted(manifest, run, tmp_path):
    class Stop(RunObserver):
        def epoch(self, fold, seed, record):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(manifest, tmp_path / "run", config(checkpoint_seconds=0), observer=Stop())
    resumed = train_run(manifest, tmp_path / "run", config(checkpoint_seconds=0)).path
    pd.testing.assert_frame_equal(Run(resumed).predictions, Run(run).predictions)
    pd.testing.assert_frame_equal(Run(resumed).term_predictions, Run(run).term_predictions)


def test_changed_covariates_are_another_run(run, tmp_path):
    other = write_clinical(tmp_path)
    table = pd.read_csv(other)
    table.loc[0:1, "age"] = 77
    table.to_csv(other, index=False)
    with pytest.raises(AsmilError, match=str(run)):
        train_run(other, run, config())


def test_nested_cross_validation(tmp_path):
    manifest = write_clinical(tmp_path, split=False)
    nested = {"folds": 2, "grid": {"training.lr": [1e-4, 1e-3]}}
    changes = {"training": {"epochs": 1}, "data": {"covariates": ["age"]}, "nested": nested, "folds": 2}
    path = train_run(manifest, tmp_path / "run", resolve("abmil", changes=changes)).path
    assert set(Run(path).term_predictions["fold"]) == {0, 1}


def test_prediction_is_that_of_the_run(manifest, run, tmp_path):
    stored = Run(run).predictions
    stored = stored[stored["role"] == "test"].set_index("slide")["prob_b"]
    table = asmil.predict(run, manifest, out=tmp_path / "p.csv").set_index("slide")
    np.testing.assert_allclose(table.loc[stored.index, "prob_b"], stored, rtol=1e-6)
    cohort = asmil.load_cohort(manifest, covariates=["age", "stage"])
    slide = next(slide for slide in cohort.slides if slide.slide == stored.index[0])
    bag, _ = Run(run).bag(slide)
    given = asmil.predict(run, bag, covariates=slide.covariates)
    assert given.values["prob_b"] == pytest.approx(stored.iloc[0], rel=1e-5)
    with pytest.raises(AsmilError, match="'age'"):
        asmil.predict(run, bag)


def test_prediction_needs_the_columns(manifest, run, tmp_path, asmil_here):
    table = pd.read_csv(manifest)
    for lacking, named in ((table.drop(columns="stage"), "'stage'"), (table.drop(columns="age"), "'age'")):
        path = manifest.parent / "lacking.csv"
        lacking.to_csv(path, index=False)
        done = asmil_here("predict", run, path, "--out", tmp_path / "p.csv")
        assert done.returncode == 1
        assert named in done.stderr
        assert str(path) in done.stderr
    with pytest.raises(AsmilError, match="age"):
        asmil.predict(run, manifest.parent / "features")
    with pytest.raises(AsmilError, match="age"):
        asmil.predict(run, asmil.load_cohort(manifest))


def test_new_levels_are_noted(manifest, run):
    table = pd.read_csv(manifest).assign(stage="IV").head(2)
    table.to_csv(manifest.parent / "new.csv", index=False)
    assert asmil.predict(run, manifest.parent / "new.csv")["notes"].str.contains("'IV'").all()


def test_a_single_bag_is_checked_like_a_row_of_a_table(run):
    opened, bag = asmil.load_run(run), np.zeros((3, 24), dtype=np.float32)
    assert opened.predict(bag, covariates={"age": 60, "stage": "I"}).notes == ""
    assert "'IV'" in opened.predict(bag, covariates={"age": 60, "stage": "IV"}).notes
    with pytest.raises(AsmilError, match="'agge'"):
        opened.predict(bag, covariates={"age": 60, "stage": "I", "agge": 60})


def test_a_test_set_of_one_class_is_evaluated_without_the_comparison(tmp_path):
    manifest = write_clinical(tmp_path)
    table = pd.read_csv(manifest)
    table[(table["split"] != "test") | (table["label"] == "a")].to_csv(manifest, index=False)
    evaluation = asmil.evaluate(train_run(manifest, tmp_path / "run", config()).path)
    assert evaluation.terms is None
    assert any("covariates" in warning for warning in evaluation.warnings)


def test_bundle_and_graph(manifest, run, tmp_path):
    bundle = asmil.load_run(run).save_pretrained(tmp_path / "bundle")
    assert (folder_of(bundle) / COVARIATES_FILE).exists()
    assert not list(bundle.rglob(TERMS_FILE))
    for column in ("prob_a", "prob_b"):
        np.testing.assert_array_equal(asmil.predict(bundle, manifest)[column], asmil.predict(run, manifest)[column])
    with pytest.raises(AsmilError, match="age"):
        export_torch(run, tmp_path / "graph.pt2")


def test_damage_is_noticed(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    file = folder_of(tmp_path / "run") / COVARIATES_FILE
    term = json.loads(file.read_text())
    file.write_text(json.dumps(term | {"weight": [row[:-1] for row in term["weight"]]}))
    assert [path for path, error in verify_run(tmp_path / "run") if error is not None] == [file]
    with pytest.raises(AsmilError, match=COVARIATES_FILE):
        _ = Run(tmp_path / "run").trained


def test_the_command_reports_the_terms(manifest, tmp_path, asmil_here, undrawn_figures):
    out = tmp_path / "run"
    words = ["--set", "training.epochs=1", "--covariates", "age, stage:category", "--method", "mean_pooling"]
    done = asmil_here("train", manifest, "--out", out, "--quiet", *words)
    assert done.returncode == 0
    assert "covariates" in done.stdout
    stored = json.loads((out / "evaluation.json").read_text())["covariates"]
    assert stored["names"] == ["age", "stage"]
    assert set(stored["both_minus_covariates"]) <= set(stored["terms"]["image"])
    assert torch.tensor(read_term(folder_of(out)).weight).shape == (2, 5)
