"""The slides of a patient as one bag, from training to prediction."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pandas as pd
import pytest

from asmil import AsmilError
from asmil.cohort.features import read_bag
from asmil.cohort.manifest import load_cohort
from asmil.cohort.splits import Splits
from asmil.cohort.units import joined_bag, units_of
from asmil.runs.config import resolve
from asmil.runs.prediction import open_models, predict_bag, predict_slide
from asmil.training.run import RunObserver, train_run
from small_task_cohorts import write_cohort


def config(kind="classification", method="abmil", **sections):
    return resolve(method, changes={"training": {"epochs": 1}, "task": {"kind": kind}, **sections})


class Listen(RunObserver):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("patients"), "classification")


@pytest.fixture(scope="module")
def by_patient(manifest, tmp_path_factory):
    observer = Listen()
    run = train_run(
        manifest, tmp_path_factory.mktemp("run") / "run", config(data={"unit": "patient"}), observer=observer
    )
    return run, observer


def test_a_classification_by_patient_has_a_row_a_patient(by_patient):
    run, observer = by_patient
    table = pd.read_parquet(run.predictions)
    assert (table["slide"] == table["patient"]).all()
    assert len(table) == 8
    assert any("32 slides, 16 bags" in note for note in observer.notes)
    assert len(Splits.load(run.splits).table) == 32


def test_slides_are_predicted_one_by_one_unless_told(manifest, tmp_path):
    table = pd.read_parquet(train_run(manifest, tmp_path / "run", config()).predictions)
    assert len(table) == 16
    assert (table["slide"] != table["patient"]).all()


def test_a_prediction_is_that_of_the_joined_bag(by_patient, manifest):
    trained_run = open_models(by_patient[0].path)
    assert trained_run.unit == "patient"
    unit = units_of(load_cohort(manifest).slides, "patient")[-1]
    found = predict_slide(trained_run, unit, attention=True)
    bags = [read_bag(slide.source, slide.slide) for slide in unit.slides]
    expected = predict_bag(trained_run, joined_bag(bags, unit.name))
    np.testing.assert_array_equal(found.probabilities, expected.probabilities)
    assert found.n_tiles == len(found.tile_map) == sum(map(len, bags))
    assert found.slide_index.tolist() == [0] * len(bags[0]) + [1] * len(bags[1])
    table = pd.read_parquet(by_patient[0].predictions).set_index("slide")
    assert found.values["prob_b"] == pytest.approx(table["prob_b"][unit.name])


def test_predict_joins_by_the_tables_patients_and_a_folder_has_none(by_patient, manifest, tmp_path, asmil_here):
    run, _ = by_patient
    done = asmil_here("predict", run.path, manifest, "--out", tmp_path / "p.csv", "--attention", "-q")
    assert done.returncode == 0, done.stderr
    assert "16 patients predicted" in done.stdout
    assert list(pd.read_csv(tmp_path / "p.csv")["slide"]) == [f"p{i:02d}" for i in range(16)]
    with h5py.File(tmp_path / "p_attention" / "p03.h5") as file:
        assert list(file.attrs["slides"]) == ["s06", "s07"]
        assert len(file["slide_index"]) == len(file["coords"]) == len(file["attention"])
        assert set(file["slide_index"][()]) == {0, 1}
    done = asmil_here("predict", run.path, manifest.parent / "features", "--out", tmp_path / "f.csv", "-q")
    assert done.returncode == 0, done.stderr
    assert list(pd.read_csv(tmp_path / "f.csv")["slide"]) == [f"s{i:02d}" for i in range(32)]


def test_a_patient_with_a_broken_slide_is_listed_and_the_others_are_predicted(
    by_patient, manifest, tmp_path, asmil_here
):
    table = pd.read_csv(manifest)
    table["features"] = [str(manifest.parent / "features" / f"{slide}.h5") for slide in table["slide"]]
    broken = tmp_path / "broken.h5"
    broken.write_bytes(b"no features")
    table.loc[5, "features"] = str(broken)
    table.to_csv(tmp_path / "cohort.csv", index=False)
    done = asmil_here("predict", by_patient[0].path, tmp_path / "cohort.csv", "--out", tmp_path / "p.csv", "-q")
    assert done.returncode == 1
    assert "1 of 16 patients" in done.stderr
    assert "p02" in done.stderr
    assert "broken.h5" in done.stderr
    assert len(pd.read_csv(tmp_path / "p.csv")) == 15


def test_a_survival_prediction_of_several_models_is_one_curve_a_patient(tmp_path, asmil_here):
    manifest = write_cohort(tmp_path, "survival", split=False, n_patients=8)
    run = train_run(manifest, tmp_path / "run", config("survival", folds=2))
    done = asmil_here("predict", run.path, manifest, "--out", tmp_path / "p.csv", "-q")
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "p.csv")
    outcome, curve = ["time", "event"], ["risk", "survival_times", "survival", "time_unit"]
    assert list(table.columns) == ["slide", *outcome, *curve, "n_tiles", "n_models", "used_in_training", "notes"]
    assert len(table) == 8
    for times, survival in zip(table["survival_times"], table["survival"], strict=True):
        assert len(json.loads(times)) == len(json.loads(survival))
        assert (np.diff(json.loads(survival)) <= 0).all()
    assert table["risk"].between(-1, 0).all()


@pytest.mark.parametrize("method", ["patch_gcn", "camil", "deepattnmisl"])
def test_methods_that_prepare_bags_train_on_joined_ones(method, tmp_path):
    manifest = write_cohort(tmp_path, "survival", n_patients=8)
    capped = config("survival", method, data={"max_tiles": 9})
    for name, settings in (("whole", config("survival", method)), ("capped", capped)):
        table = pd.read_parquet(train_run(manifest, tmp_path / name, settings).predictions)
        assert np.isfinite(table["risk"]).all()


def test_slides_of_a_patient_that_differ_leave_no_folder(tmp_path):
    manifest = write_cohort(tmp_path, "survival", n_patients=8)
    table = pd.read_csv(manifest)
    table.loc[3, "time"] += 1
    table.to_csv(manifest, index=False)
    with pytest.raises(AsmilError, match="'p01'"):
        train_run(manifest, tmp_path / "run", config("survival"))
    assert not (tmp_path / "run").exists()
    train_run(manifest, tmp_path / "run", config("survival", data={"unit": "slide"}))
