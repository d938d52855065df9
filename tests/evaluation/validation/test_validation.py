"""`asmil validate` end to end: small trained models on new patients, their pages, and what is refused."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

import asmil
from asmil import AsmilError
from asmil.cohort.features import Provenance, write_features
from asmil.evaluation import ValidatedPredictions, delong, validate_predictions
from asmil.evaluation.validation import ValidationRequest
from asmil.evaluation.validation.grouping import parse_variables
from asmil.runs.run import Run
from fake_run_folder import write_run
from small_task_cohorts import WIDTH, write_cohort

SHORT = {"training.epochs": 2, "record.attention": "none", "training.device": "cpu"}
QUICK = {"resamples": 40, "device": "cpu", "progress": False}


def new_patients(folder, kind, **columns):
    """The manifest of 48 patients with names and tiles that no training had; the first four have two slides."""
    table, draw = pd.read_csv(write_cohort(folder, kind, split=False, n_patients=48)), np.random.default_rng(1)
    new = table.assign(slide="new-" + table["slide"], patient="new-" + table["patient"], **columns)
    new = new[(new.index < 8) | (new.index % 2 == 0)]
    for number, name in new["slide"].items():
        features = draw.normal(size=(6, WIDTH)) + 0.3 * (number // 2 % 4) * (np.arange(WIDTH) < 4)
        path = folder / "features" / f"{name}.h5"
        write_features(path, features, np.zeros((6, 2), int), Provenance(encoder="drawn"))
    new.to_csv(folder / "new.csv", index=False)
    return folder / "new.csv"


def small_run(folder, kind, n_patients=24):
    manifest = write_cohort(folder, kind, n_patients=n_patients)
    return asmil.train(manifest, folder / "run", method="abmil", task=kind, settings=SHORT, progress=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with a threshold, its bundle, and a manifest of new patients."""
    folder = tmp_path_factory.mktemp("validated")
    run = small_run(folder, "classification", n_patients=72)
    run.evaluate(resamples=20).keep_choices()
    run.save_pretrained(folder / "bundle")
    ages = 30 + np.arange(96) // 2
    sexes = np.where(np.arange(96) // 2 % 3 > 0, "female", "male")
    new_patients(folder / "b", "classification", age=ages, sex=sexes, site=np.where(ages < 70, "north", "south"))
    return folder


@pytest.mark.parametrize("model", ["run", "bundle"])
def test_a_run_and_a_bundle_on_new_patients(trained, model, tmp_path, asmil_here):
    done = asmil_here(
        *("validate", trained / model, trained / "b" / "new.csv", "--out", tmp_path, "--by", "site,sex,age:40,60"),
        *("--margin", "0.3", "--resamples", 40, "--device", "cpu", "-q"),
    )
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "validation.json").read_text())
    assert content["cohort"]["outcomes"] == {"a": 24, "b": 24}
    assert content["overlap"] == {
        "known": True,
        "slides": [],
        "by_name": {},
        "by_features": [],
        "internal_test_slides": [],
    }
    table = pd.read_csv(tmp_path / "predictions.csv").groupby("patient")[["prob_b"]].mean()
    target = [int(name[-2:]) % 4 // 2 for name in table.index]
    auc = content["performance"]["metrics"]["macro_auc"]
    assert auc["value"] == pytest.approx(delong(target, table["prob_b"], table["prob_b"]).auc_a)
    assert auc["difference"]["value"] == pytest.approx(auc["value"] - auc["internal"]["value"])
    threshold = json.loads((trained / "run" / "operating_point.json").read_text())["threshold"]
    assert content["threshold"]["threshold"] == threshold
    called = np.bincount(2 * np.array(target) + (table["prob_b"] >= threshold), minlength=4)
    assert content["threshold"]["confusion"] == called.reshape(2, 2).tolist()
    brier = np.mean((table["prob_b"] - target) ** 2)
    assert content["calibration"]["b"]["brier"]["value"] == pytest.approx(brier)
    assert len(content["decision_curve"]["curves"]["b"]["model"]) == 99
    groups = {(group["variable"], group["name"]): group for group in content["subgroups"]["groups"]}
    assert [groups["age", name]["patients"] for name in ("below 40", "40 to below 60", "60 or above")] == [10, 20, 18]
    assert groups["age", "below 40"]["reason"]
    assert groups["age", "below 40"]["metric"] is None
    assert groups["site", "north"]["metric"]["value"] is not None
    tests = {(each["variable"], each["metric"]) for each in content["subgroups"]["interactions"]}
    assert tests == {
        (name, metric) for name in ("site", "sex", "age") for metric in ("AUC", "sensitivity", "specificity")
    }
    by_class = {row["group"]: row for row in content["conformal_sets"]["groups"]["all"] if row["by"] == "class"}
    assert [by_class[name]["patients"] for name in "ab"] == [24, 24]
    mean = (by_class["a"]["coverage"] + by_class["b"]["coverage"]) / 2
    assert content["conformal_sets"]["coverage"]["value"] == pytest.approx(mean)
    assert content["similarity"]["groups"][0]["patients"] == 48
    page = (tmp_path / "validation.html").read_text()
    assert all(part in page for part in ("Performance", "Calibration", "Decision curve", "Subgroups"))


@pytest.mark.parametrize("model", ["run", "bundle"])
def test_patients_of_the_training_are_refused(trained, model, tmp_path, undrawn_figures):
    table = pd.read_csv(trained / "b" / "new.csv")
    features = trained / "b" / "features"
    known = tmp_path / "known.csv"
    table.assign(patient=["P00", "P00", *table["patient"][2:]]).to_csv(known, index=False)
    with pytest.raises(AsmilError, match="patient P00"):
        asmil.validate(trained / model, known, features=features, **QUICK)
    shutil.copytree(features, tmp_path / "features")
    shutil.copy(trained / "features" / "s00.h5", tmp_path / "features" / "new-s00.h5")
    table.to_csv(tmp_path / "copied.csv", index=False)
    with pytest.raises(AsmilError, match="new-s00"):
        asmil.validate(trained / model, tmp_path / "copied.csv", **QUICK)
    if model == "bundle":
        return
    allowed = asmil.validate(trained / model, tmp_path / "copied.csv", allow_overlap=True, **QUICK)
    assert allowed.to_dict()["overlap"]["by_features"] == ["new-s00"]
    assert any("new-s00" in warning for warning in allowed.document.warnings)


def test_slides_of_a_patient_with_different_outcomes_are_refused(trained, tmp_path):
    table = pd.read_csv(trained / "b" / "new.csv")
    table.loc[0, "label"] = "b" if table["label"][0] == "a" else "a"
    table.to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(AsmilError, match=f"new.csv.*{table['patient'][0]}"):
        asmil.validate(trained / "run", tmp_path / "new.csv", features=trained / "b" / "features", **QUICK)


def test_groups_of_one_class_each_are_reported(trained, tmp_path, undrawn_figures):
    table = pd.read_csv(trained / "b" / "new.csv")
    table.assign(site="of " + table["label"]).to_csv(tmp_path / "new.csv", index=False)
    features = trained / "b" / "features"
    validation = asmil.validate(trained / "run", tmp_path / "new.csv", by="site", features=features, **QUICK)
    groups = validation.to_dict()["subgroups"]["groups"]
    assert [group["reason"] for group in groups] == ["only a", "only b"]
    assert any("site" in warning for warning in validation.warnings)


def test_what_does_not_fit_is_refused_in_a_sentence(trained, tmp_path):
    table, features = pd.read_csv(trained / "b" / "new.csv"), trained / "b" / "features"
    table.assign(label="c").to_csv(tmp_path / "classes.csv", index=False)
    with pytest.raises(AsmilError, match="'c'"):
        asmil.validate(trained / "run", tmp_path / "classes.csv", features=features, **QUICK)
    for by, match in (("agee", "'age'"), ("age", "age:"), ("age:70,50", "age:70,50"), ("sex,sex", "twice")):
        with pytest.raises(AsmilError, match=match):
            asmil.validate(trained / "run", trained / "b" / "new.csv", by=by, **QUICK)
    with pytest.raises(AsmilError, match="margin"):
        asmil.validate(trained / "run", trained / "b" / "new.csv", margin=-1, **QUICK)
    for slide in table["slide"]:
        tiles = np.random.default_rng(0).normal(size=(5, WIDTH))
        write_features(tmp_path / "other" / f"{slide}.h5", tiles, np.zeros((5, 2), int), Provenance(encoder="another"))
    with pytest.raises(AsmilError, match="another"):
        asmil.validate(trained / "run", trained / "b" / "new.csv", features=tmp_path / "other", **QUICK)


def test_a_slide_that_cannot_be_read_is_listed(trained, tmp_path, asmil_here):
    shutil.copytree(trained / "b", tmp_path / "b")
    (tmp_path / "b" / "features" / "new-s03.h5").write_bytes(b"damaged")
    done = asmil_here("validate", trained / "run", tmp_path / "b" / "new.csv", "--resamples", 20, "-o", tmp_path / "v")
    assert done.returncode == 1
    assert "new-s03" in done.stderr
    content = json.loads((tmp_path / "v" / "validation.json").read_text())
    assert content["cohort"]["patients"] == 48
    assert len(content["cohort"]["not_predicted"]) == 1


def test_three_classes_have_one_curve_each(tmp_path, undrawn_figures):
    rows = write_run(tmp_path, ("a", "b", "c"), seeds=1, slides=120)
    groups = pd.DataFrame({"patient": rows["patient"], "site": np.where(rows.index < 60, "north", "south")})
    request = ValidationRequest(parse_variables("site"), margin=0.1, resamples=30)
    validated = ValidatedPredictions(Run(tmp_path), tmp_path / "new.csv", rows, groups, [], request)
    content = validate_predictions(validated).to_dict()
    assert set(content["calibration"]) == set(content["decision_curve"]["curves"]) == {"a", "b", "c"}
    assert np.sum(content["threshold"]["confusion"]) == content["cohort"]["patients"] == 60
    metrics = content["performance"]["metrics"]
    assert all(metric["value"] == metric["internal"]["value"] for metric in metrics.values())
    assert content["performance"]["non_inferiority"]["difference"]["value"] == 0


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["survival", "regression", "multilabel"])
def test_other_tasks(kind, tmp_path, undrawn_figures):
    run = small_run(tmp_path, kind)
    new = new_patients(tmp_path / "b", kind, sex=["f", "f", "m", "m"] * 24)
    validation = asmil.validate(run, new, tmp_path / "out", by=["sex"], margin=0.2, times=[20.0, 30.0], **QUICK)
    content = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert set(content["performance"]["metrics"]) == {metric.name for metric in validation.validated.run.format.metrics}
    assert [group["patients"] for group in content["subgroups"]["groups"]] == [24, 24]
    assert content["performance"]["non_inferiority"]["margin"] == 0.2
    if kind == "survival":
        assert [row["time"] for row in content["calibration"]["times"]] == [20.0, 30.0]
        assert all(abs(sum(g["patients"] for g in row["groups"]) - 48) == 0 for row in content["calibration"]["times"])
        assert len(content["decision_curve"]["curves"]) == 2
    else:
        assert "calibration" not in content
