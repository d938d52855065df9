"""`asmil train --task ...`, sites left out and nested cross-validation, as a user gives them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from asmil.cohort.splits import Splits
from asmil.evaluation.stability import read_stability
from small_slides import write_slide
from small_task_cohorts import write_cohort

EXTRACTION_TESTS = Path(__file__).parents[1] / "extraction"

QUICK = ("-m", "abmil", "--set", "training.epochs=2", "-q")

pytestmark = pytest.mark.usefixtures("undrawn_figures")


@pytest.mark.parametrize(
    ("kind", "told", "column"),
    [
        ("survival", "C-index", "risk"),
        pytest.param("regression", "Spearman", "value", marks=pytest.mark.heavy),
        pytest.param("multilabel", "macro-AUC", "prob_a", marks=pytest.mark.heavy),
    ],
)
def test_a_task_from_the_check_to_new_predictions(asmil_here, tmp_path, kind, told, column):
    manifest = write_cohort(tmp_path, kind)
    done = asmil_here("check", manifest, "--task", kind)
    assert done.returncode == 0, done.stdout
    done = asmil_here("train", manifest, "--task", kind, "--out", tmp_path / "run", *QUICK)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
    done = asmil_here("predict", tmp_path / "run", manifest, "--out", tmp_path / "new.csv", "-q")
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "new.csv")
    assert len(table) == (16 if kind == "survival" else 32)
    assert np.isfinite(table[column]).all()
    # a cross-entropy exists only where a slide is of a class
    assert read_stability(tmp_path / "run").times["ce"].isna().all()


@pytest.mark.parametrize("loss", ["hazard", "cox"])
def test_other_losses_of_survival(asmil_here, tmp_path, loss):
    manifest = write_cohort(tmp_path, "survival", n_patients=8)
    command = ("train", manifest, "--task", "survival", "--out", tmp_path / "run", "--set", f"task.loss={loss}")
    done = asmil_here(*command, *QUICK)
    assert done.returncode == 0, done.stderr
    note = json.loads((tmp_path / "run" / "fold-0" / "seed-0" / "task.json").read_text())
    assert note["loss"] == loss
    assert (note["baseline"] is not None) == (loss == "cox")


def test_every_site_is_left_out_once(asmil_here, tmp_path):
    manifest = write_cohort(tmp_path, "classification", sites=2)
    command = ("train", manifest, "--out", tmp_path / "run", "--leave-one-site-out", "-m", "abmil")
    done = asmil_here(*command, "--set", "training.epochs=1")
    assert done.returncode == 0, done.stderr
    assert "'split'" in done.stderr
    table = Splits.load(tmp_path / "run" / "splits.csv").table
    site = pd.read_csv(manifest).set_index("slide")["site"]
    tested = table[table["role"] == "test"]
    assert sorted(tested["slide"]) == sorted(site.index)
    for fold, rows in tested.groupby("fold"):
        assert set(site[rows["slide"]]) == {f"site-{fold}"}


def test_nested_cross_validation(asmil_here, tmp_path):
    manifest = write_cohort(tmp_path, "classification", split=False)
    grid = ("--inner-folds", 2, "--grid", "training.lr=[1e-4, 3e-3]", "--grid", "model.inner=[8]")
    command = ("train", manifest, "--out", tmp_path / "run", "--folds", 2, *grid, "-m", "abmil")
    done = asmil_here(*command, "--set", "training.epochs=1")
    assert done.returncode == 0, done.stderr
    assert "training.lr = " in done.stderr
    chosen = json.loads((tmp_path / "run" / "fold-0" / "choice.json").read_text())
    assert set(chosen["settings"]) == {"training.lr", "model.inner"}
    assert len(chosen["candidates"]) == 2
    done = asmil_here("predict", tmp_path / "run", manifest.parent / "features", "--out", tmp_path / "p.csv", "-q")
    assert "2 models" in done.stdout


MISTAKES = [
    (("--grid", "training.lr=[1,2]"), "nested.grid"),
    (("--inner-folds", 2), "nested.grid"),
    (("--inner-folds", 2, "--grid", "training.lr=1"), "--grid training.lr=1: "),
    (("--inner-folds", 2, "--grid", "training.lr"), "section.key=value"),
    (("--inner-folds", 2, "--grid", "training.lrr=[1]"), "'lr'"),
    (("--inner-folds", 2, "--grid", "training.lr=[]"), "no values"),
    (("--leave-one-site-out",), "no site"),
    (("--task", "survival"), "column 'time'"),
    (("--task", "regression"), "label 'a'"),
]


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("classes"), "classification", split=False)


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_are_one_sentence_and_leave_no_folder(asmil_here, classes, tmp_path, options, message):
    done = asmil_here("train", classes, "--out", tmp_path / "run", *options, *QUICK)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_cox_alone_in_a_step_is_one_short_sentence(asmil_here, tmp_path):
    manifest = write_cohort(tmp_path, "survival", n_patients=4)
    cox = ("--task", "survival", "--set", "task.loss=cox", "--set", "training.accumulate=1")
    done = asmil_here("train", manifest, "--out", tmp_path / "run", *cox)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: task.loss = cox")
    assert "training.accumulate" in line


def test_slides_themselves_are_joined_by_the_tables_patients(asmil_here, tmp_path, monkeypatch):
    monkeypatch.chdir(EXTRACTION_TESTS)
    rows = []
    for number in range(8):
        write_slide(tmp_path / "slides" / f"s{number}.tif", side_px=360, seed=number)
        rows.append(f"s{number},p{number // 2},{5 + number // 2},1,{'train' if number < 4 else 'test'}")
    table = tmp_path / "cohort.csv"
    table.write_text("\n".join(["slide,patient,time,event,split", *rows]) + "\n")
    trusted = ("--encoder", "tiny_encoder:Weighted")
    extract = ("extract", tmp_path / "slides", "--out", tmp_path / "features", *trusted)
    assert asmil_here(*extract, "--workers", 0, "--no-qc", "--quiet").returncode == 0
    done = asmil_here("train", table, "--task", "survival", "--out", tmp_path / "run", *QUICK)
    assert done.returncode == 0, done.stderr
    new = tmp_path / "new" / "table.csv"
    new.parent.mkdir()
    new.write_text("slide,patient,image\n" + "".join(f"s{i},q{i // 2},../slides/s{i}.tif\n" for i in range(4)))
    done = asmil_here("predict", tmp_path / "run", new, "--out", tmp_path / "p.csv", "--workers", 0, "-q", *trusted)
    assert done.returncode == 0, done.stderr
    assert "2 patients predicted" in done.stdout
    found = pd.read_csv(tmp_path / "p.csv").set_index("slide")["risk"]
    done = asmil_here("predict", tmp_path / "run", table, "--out", tmp_path / "f.csv", "-q")
    assert done.returncode == 0, done.stderr
    expected = pd.read_csv(tmp_path / "f.csv").set_index("slide")["risk"]
    assert found["q1"] == pytest.approx(expected["p1"], abs=1e-3)


@pytest.mark.parametrize(("select", "claims"), [("last", False), ("f1_auc", True)])
def test_validation_slides_are_said_to_choose_the_epoch_only_where_they_do(asmil_here, tmp_path, select, claims):
    manifest = write_cohort(tmp_path / "cohort", "classification")
    table = pd.read_csv(manifest)
    table["split"] = table["split"].replace("test", "train")
    table.to_csv(manifest, index=False)
    options = ("--method", "abmil", "--set", "training.epochs=1", "--set", f"training.select={select}", "--quiet")
    done = asmil_here("train", manifest, "--out", tmp_path / "run", *options)
    assert done.returncode == 0, done.stderr
    assert ("epoch" in done.stdout) == claims
