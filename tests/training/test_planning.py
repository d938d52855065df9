"""`asmil plan`: settings that follow from the cohort, each with a reason."""

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from asmil.cohort.features import Provenance, write_features
from asmil.cohort.inspection import inspect_slides
from asmil.cohort.manifest import load_cohort
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.executors import DESCRIPTIONS, likely_executor
from asmil.training.planning import cost_line, plan_training


def cohort_of(tmp_path, labels, tiles=4, **columns):
    for n in range(len(labels)):
        values = np.random.default_rng(n).normal(size=(tiles, 6))
        write_features(tmp_path / "features" / f"s{n}.h5", values, np.arange(2 * tiles).reshape(-1, 2), Provenance())
    table = pd.DataFrame({"slide": [f"s{n}" for n in range(len(labels))], "label": labels})
    table.assign(**columns).to_csv(tmp_path / "cohort.csv", index=False)
    return load_cohort(tmp_path / "cohort.csv")


def plan_of(cohort, kind="classification"):
    return plan_training(cohort, [info for _, info in inspect_slides(cohort.slides)], kind)


def chosen(plan):
    assert all(choice.reason for choice in plan.choices)
    return {choice.key: choice.value for choice in plan.choices}


def test_a_small_cohort_is_cross_validated_with_a_warning(tmp_path):
    plan = plan_of(cohort_of(tmp_path, ["a"] * 12 + ["b"] * 12))
    assert chosen(plan) == {
        "method": "abmil", "preset": "paper", "task.kind": "classification", "folds": 5, "seeds": 3,
    }  # fmt: skip
    assert any("12 patients" in warning for warning in plan.warnings)
    assert any("patient" in warning for warning in plan.warnings[1:])
    assert plan.estimate.seconds > 0
    assert plan.estimate.steps > 0


def test_few_patients_of_a_class_allow_few_folds_and_weights(tmp_path):
    patients = [f"p{n}" for n in range(16)]
    found = chosen(plan_of(cohort_of(tmp_path, ["a"] * 3 + ["b"] * 13, patient=patients)))
    assert found["folds"] == 3
    assert found["training.class_weights"] == "balanced"


def test_the_manifest_s_own_split_is_kept(tmp_path):
    split = (["train"] * 4 + ["test"] * 2) * 2
    assert chosen(plan_of(cohort_of(tmp_path, ["a"] * 6 + ["b"] * 6, split=split)))["folds"] == 1


def test_a_site_of_one_class_is_a_warning(tmp_path):
    sites = ["x"] * 6 + ["y"] * 6
    plan = plan_of(cohort_of(tmp_path, ["a"] * 6 + ["b"] * 6, site=sites))
    assert any("leave-one-site-out" in warning and "x, y" in warning for warning in plan.warnings)


def test_slide_vectors_are_probed_and_long_slides_sampled(tmp_path, monkeypatch):
    (tmp_path / "features").mkdir()
    for n in range(12):
        np.save(tmp_path / "features" / f"s{n}.npy", np.full(5, float(n)))
    table = pd.DataFrame({"slide": [f"s{n}" for n in range(12)], "label": ["a", "b"] * 6})
    table.to_csv(tmp_path / "cohort.csv", index=False)
    assert chosen(plan_of(load_cohort(tmp_path / "cohort.csv")))["method"] == "linear"
    monkeypatch.setattr("asmil.training.planning.LONG_BAG", 3)
    assert "data.max_tiles" in chosen(plan_of(cohort_of(tmp_path / "long", ["a", "b"] * 6)))


@pytest.mark.parametrize("kind", ["survival", "regression", "multilabel"])
def test_other_tasks(tmp_path, kind):
    columns = {"time": range(1, 13), "event": [0, 1] * 6} if kind == "survival" else {}
    labels = [f"{n}.5" for n in range(12)] if kind == "regression" else ["a;b", "b"] * 6
    cohort_of(tmp_path, labels, **columns)
    plan = plan_of(load_cohort(tmp_path / "cohort.csv", kind=kind), kind)
    assert chosen(plan)["task.kind"] == kind
    assert plan.config.task.kind == kind


def test_the_file_holds_the_settings(asmil_here, small_cohort, tmp_path):
    out = tmp_path / "there" / "run.yaml"
    out.parent.mkdir()
    done = asmil_here("plan", small_cohort, "--out", out)
    assert done.returncode == 0, done.stderr
    assert str(out) in done.stdout
    values = yaml.safe_load(out.read_text())
    assert (out.parent / values.pop("cohort")).resolve() == small_cohort.resolve()
    assert values.pop("out") == "runs/abmil"
    assert resolve(values.pop("method"), values.pop("preset"), values).seeds == 3
    trained = asmil_here("train", out, "--method", "linear", "--seeds", "1", "--set", "training.epochs=1", "--quiet")
    assert trained.returncode == 0, trained.stderr
    assert (out.parent / "runs" / "abmil" / "config.yaml").is_file()
    assert asmil_here("plan", small_cohort, "--out", out).returncode == 1
    assert asmil_here("plan", small_cohort, "--out", out, "--force").returncode == 0
    assert asmil_here("plan", tmp_path / "none.csv", "--out", tmp_path / "x.yaml").returncode == 1


def test_chosen_columns_are_part_of_the_file(asmil_here, small_cohort, tmp_path):
    table = pd.read_csv(small_cohort, dtype=str).rename(columns={"label": "subtype"})
    table.to_csv(tmp_path / "table.csv", index=False)
    options = ("--features", small_cohort.parent / "features", "--columns", "label=subtype")
    assert asmil_here("plan", tmp_path / "table.csv", "--out", tmp_path / "run.yaml", *options).returncode == 0
    done = asmil_here("train", tmp_path / "run.yaml", "-m", "linear", "--set", "training.epochs=1", "--dry-run")
    assert done.returncode == 0, done.stderr


def test_a_settings_file_that_names_code_is_refused_unless_the_user_names_it(asmil_here, small_cohort, tmp_path):
    (tmp_path / "code.py").write_text("raise SystemExit('it was run')\n")
    text = f"cohort: {small_cohort}\nout: run\nmethod: {tmp_path / 'code.py'}:Model\n"
    (tmp_path / "run.yaml").write_text(text)
    done = asmil_here("train", tmp_path / "run.yaml")
    assert done.returncode == 1
    assert "--method" in done.stderr
    assert "it was run" not in done.stderr


@pytest.mark.parametrize(("tiles", "executor"), [(4, "side_by_side"), (12_000, "plain")])
def test_the_cost_is_that_of_the_executor_that_will_train(tmp_path, tiles, executor):
    plan = plan_of(cohort_of(tmp_path, ["a"] * 4 + ["b"] * 4, tiles=tiles))
    assert plan.estimate.executor == executor
    assert DESCRIPTIONS[executor] in cost_line(plan)


def test_one_training_has_nothing_to_run_beside():
    config = resolve("abmil", "paper", {"folds": 1, "seeds": 1})
    model = build_model(config, 6, 2, seed=0)
    task, cpu = Classification(["a", "b"]), torch.device("cpu")
    assert [likely_executor(config, model, task, cpu, 4, trainings) for trainings in (1, 2)] == [
        "plain",
        "side_by_side",
    ]
