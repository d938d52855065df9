"""Sweeps: what is trained, what is kept, what is tried again, and that a killed sweep repeats nothing."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
import yaml

import asmil
from asmil.engine import InlineEngine
from asmil.errors import AsmilError
from asmil.experiments import measures
from asmil.experiments.agreement import AGREEMENT_FILE, agreement_table, write_agreement
from asmil.experiments.optuna_search import Proposals
from asmil.experiments.plan import grid_points, random_points
from asmil.experiments.running import SweepFolder, trains_fused
from asmil.experiments.settings import SearchConfig, read_sweep
from asmil.experiments.store import results_table, summary_sentence, summary_table
from asmil.machine.locks import locked_folder
from asmil.runs.layout import LOCK_FILE
from asmil.synthetic.bags import SyntheticConfig, write_synthetic
from patience import PATIENCE_S

TOY = {"slides": 40, "width": 16, "tiles_min": 20, "tiles_max": 30}
QUICK = {"training.epochs": 1, "training.checkpoint_seconds": 600}


def plan(tmp_path, name="sweep.yaml", **changes):
    values = {
        "cohorts": {"toy": {"synthetic": TOY}},
        "variants": {"mean": {"method": "mean_pooling"}, "abmil": {"method": "abmil"}},
        "settings": QUICK,
        **changes,
    }
    path = tmp_path / name
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def run(path, out):
    folder = SweepFolder(read_sweep(path), out, on_gpu=False)
    return [(end.job.trial.variant, end.job.seeds, end.status) for end in folder.run(InlineEngine())]


def test_a_sweep_trains_everything_once_and_grows(tmp_path):
    out = tmp_path / "out"
    measures = ["slides", "learning", "seconds"]
    first = run(plan(tmp_path, measures=measures), out)
    assert sorted(first) == [("abmil", (0,), "done"), ("mean", (0,), "done")]
    assert {status for *_, status in run(plan(tmp_path, measures=measures), out)} == {"done before"}
    grown = run(plan(tmp_path, seeds=2, variants={"abmil": {"method": "abmil"}}, measures=measures), out)
    assert grown == [("abmil", (0,), "done before"), ("abmil", (1,), "done")]
    table = pd.read_csv(out / "results.csv")
    assert sorted(zip(table["variant"], table["seed"], strict=True)) == [("abmil", 0), ("abmil", 1), ("mean", 0)]
    assert table["test_auc"].between(0, 1).all()
    assert table["val_f1_fall"].ge(0).all()
    assert table["val_auc_fall"].ge(0).all()
    assert len(pd.read_parquet(out / "results.parquet")) == 3
    assert len(summary_table(table).rows) == 2


def test_a_survival_sweep_resumes_although_the_unit_of_times_is_that_of_the_column(tmp_path):
    manifest = write_synthetic(tmp_path / "cohort", SyntheticConfig(**TOY), task="survival")
    cohorts = {"toy": {"manifest": str(manifest), "task": "survival"}}
    path = plan(tmp_path, cohorts=cohorts, variants={"mean": {"method": "mean_pooling"}})
    assert [status for *_, status in run(path, tmp_path / "out")] == ["done"]
    assert [status for *_, status in run(path, tmp_path / "out")] == ["done before"]


def test_files_that_a_killed_sweep_left_are_removed_when_they_are_old(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    old, new = out / ".results.csv.4df28246.partial", out / ".results.csv.5df28246.partial"
    for path in (old, new):
        path.write_text("half a tab")
    os.utime(old, (0, 0))
    run(plan(tmp_path, variants={"mean": {"method": "mean_pooling"}}), out)
    assert not old.exists()
    assert new.exists()  # of a process that may be at work


def test_a_second_sweep_in_the_same_folder_is_refused(tmp_path):
    out = tmp_path / "out"
    with locked_folder(out, LOCK_FILE, "busy"), pytest.raises(AsmilError, match=re.escape(str(out))):
        asmil.sweep(plan(tmp_path), out, progress=False)


def test_another_measure_measures_again_without_training(tmp_path):
    out = tmp_path / "out"
    settings = {**QUICK, "record.attention": 1, "record.role": "both"}
    only = {"abmil": {"method": "abmil"}}
    run(plan(tmp_path, variants=only, settings=settings, seeds=2), out)
    weights = sorted(out.glob("runs/*/*/fold-0/*/checkpoints/best.safetensors"))
    times = [path.stat().st_mtime_ns for path in weights]
    every = ["slides", "attention", "tiles", "bag_features", "mixture"]
    assert {end[2] for end in run(plan(tmp_path, variants=only, settings=settings, seeds=2, measures=every), out)} == {
        "done"
    }
    assert [path.stat().st_mtime_ns for path in weights] == times
    assert results_table(out)[["tile_auc", "jsd_late", "effective_share"]].notna().all().all()
    assert agreement_table(out)["top1_overlap"].between(0, 1).all()


def test_agreement_is_kept_where_results_were_copied_without_their_trainings(tmp_path):
    settings = {**QUICK, "record.attention": 1}
    variants = {"abmil": {"method": "abmil"}, "simlp": {"method": "simlp"}}
    out = tmp_path / "out"
    run(plan(tmp_path, variants=variants, settings=settings, seeds=2, group_seeds=True), out)
    write_agreement(out)
    before = pd.read_csv(out / AGREEMENT_FILE)
    for folder in out.glob("runs/*abmil*/*/fold-*"):
        shutil.rmtree(folder)
    write_agreement(out)
    pd.testing.assert_frame_equal(pd.read_csv(out / AGREEMENT_FILE), before)


def test_a_failure_is_recorded_and_tried_again(tmp_path):
    manifest = tmp_path / "cohort.csv"
    manifest.write_text("slide,label\nmissing,a\n")
    path = plan(tmp_path, cohorts={"mine": {"manifest": "cohort.csv"}}, variants={"abmil": {"method": "abmil"}})
    out = tmp_path / "out"
    assert [end[2] for end in run(path, out)] == ["failed"]
    (row,) = results_table(out).to_dict("records")
    assert row["status"] == "failed"
    assert "cohort.csv" in row["error"]
    assert [end[2] for end in run(path, out)] == ["failed"]
    made = tmp_path / "made"
    write_synthetic(made, SyntheticConfig(slides=14, width=16, tiles_min=20, tiles_max=60))
    manifest.write_text((made / "cohort.csv").read_text())
    (made / "features").rename(tmp_path / "features")
    assert [end[2] for end in run(path, out)] == ["done"]
    assert results_table(out)["status"].tolist() == ["done"]


def test_a_time_limit_begins_no_training(tmp_path):
    path, out = plan(tmp_path), tmp_path / "out"
    folder = SweepFolder(read_sweep(path), out, on_gpu=False)
    assert {end.status for end in folder.run(InlineEngine(), seconds=0.0)} == {"stopped"}
    assert {status for *_, status in run(path, out)} == {"done"}


@pytest.mark.heavy
def test_killed_and_restarted_it_repeats_nothing(tmp_path):
    path = plan(tmp_path, seeds=3, variants={"abmil": {"method": "abmil"}}, settings={**QUICK, "training.epochs": 3})
    out = tmp_path / "out"
    command = [sys.executable, "-m", "asmil", "sweep", str(path), "--out", str(out), "--device", "cpu"]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    patience = time.monotonic() + PATIENCE_S
    while not (done := sorted(out.glob("runs/*/*/measures.json"))) and time.monotonic() < patience:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    times = {path: path.stat().st_mtime_ns for path in done}
    assert len(times) >= 1
    assert subprocess.run(command, capture_output=True, check=True)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert sorted(pd.read_csv(out / "results.csv")["seed"]) == [0, 1, 2]


def test_points_of_a_grid_and_of_a_random_search():
    grid = SearchConfig(space={"training.lr": [1e-4, 1e-3], "model.tokens": [4, 8]})
    assert len(grid_points(grid)) == 4
    assert grid_points(SearchConfig()) == [{}]
    space = {"training.lr": {"low": 1e-5, "high": 1e-2, "log": True}, "model.tokens": {"low": 2, "high": 8}}
    few, many = (random_points(SearchConfig(strategy="random", space=space, trials=n)) for n in (3, 9))
    assert many[:3] == few
    assert all(1e-5 <= one["training.lr"] <= 1e-2 and one["model.tokens"] in range(2, 9) for one in many)


def test_optuna_proposes_from_results_and_resumes(tmp_path):
    pytest.importorskip("optuna")
    search = SearchConfig(
        strategy="optuna", space={"training.lr": {"low": 1e-5, "high": 1e-2, "log": True}}, trials=5, at_once=2
    )
    proposals = Proposals(search, tmp_path)
    first = proposals.next_points()
    assert len(first) == 2
    again = Proposals(search, tmp_path)
    assert again.next_points() == first, "an unfinished group is proposed again"
    again.tell({0: [{"val_auc": 0.7}], 1: [{"val_auc": 0.6}, {"val_auc": None}]})
    sizes = []
    resumed = Proposals(search, tmp_path)
    while points := resumed.next_points():
        sizes.append(len(points))
        resumed.tell({i: [{"val_auc": 0.5}] for i in range(len(points))})
    assert sizes == [2, 1]
    other = Proposals(search.model_copy(update={"metric": "val_nonsense", "trials": 6}), tmp_path)
    other.next_points()
    with pytest.raises(AsmilError, match="val_nonsense"):
        other.tell({0: [{"val_auc": 0.1}]})


def test_a_search_goes_on_without_a_failed_point_and_tries_it_again_later(tmp_path):
    pytest.importorskip("optuna")
    search = SearchConfig(strategy="optuna", space={"training.lr": {"low": 1e-5, "high": 1e-2}}, trials=4, at_once=2)
    proposals = Proposals(search, tmp_path)
    first = proposals.next_points()
    proposals.tell({1: [{"val_auc": 0.7}]})
    proposals.fail([0])
    second = proposals.next_points()
    assert len(second) == 2
    assert first[0] not in second
    proposals.tell({0: [{"val_auc": 0.6}], 1: [{"val_auc": 0.6}]})
    assert proposals.next_points() == []
    assert Proposals(search, tmp_path).next_points() == [first[0]]


def test_impossible_settings_are_refused_before_a_cohort_is_written(tmp_path):
    variants = {"abmil": {"method": "abmil", "settings": {"training.optimizer": "nonsense"}}}
    with pytest.raises(AsmilError, match="optimizer"):
        run(plan(tmp_path, variants=variants), tmp_path / "out")
    assert not (tmp_path / "out" / "cohorts").exists()


def test_the_summary_ranks_by_validation_slides_and_counts_failures():
    rows = [
        {"cohort": cohort, "variant": "abmil", "set.training.lr": lr, "status": "done", "val_auc": val, "test_auc": 0.9}
        for cohort in ("a", "b")
        for lr, val in ((0.123456, 0.7), (0.5, 0.6))
    ]
    table = pd.DataFrame([*rows, {"cohort": "a", "variant": "mean", "set.training.lr": 0.5, "status": "failed"}])
    sentence = summary_sentence(table)
    assert "4 trainings" in sentence
    assert "1 failed" in sentence
    assert "lr 0.1235" in sentence
    assert list(summary_table(table).columns)[:3] == ["variant", "lr", "cohort"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"measures": ["nonsense"]}, "nonsense"),
        ({"cohorts": {}}, "cohorts"),
        ({"cohorts": {"toy": {}}}, "manifest"),
        ({"search": {"space": {"training.lr": {"low": 1, "high": 2}}}}, "training.lr"),
        ({"search": {"space": {"training.lr": []}}}, "training.lr"),
        ({"search": {"strategy": "random"}}, "space"),
        ({"sedes": 3}, "seeds"),
    ],
)
def test_a_wrong_plan_is_refused_with_its_file(tmp_path, changes, named):
    path = plan(tmp_path, **changes)
    with pytest.raises(AsmilError, match=named) as error:
        read_sweep(path)
    assert str(path) in str(error.value)


def test_a_setting_that_does_not_exist_is_refused_before_any_training(tmp_path):
    path = plan(tmp_path, search={"space": {"training.lrr": [1]}})
    with pytest.raises(AsmilError, match=r"training\.lr"):
        run(path, tmp_path / "out")
    assert not (tmp_path / "out" / "runs").exists()


def test_seeds_are_grouped_where_fused_kernels_train_them(tmp_path):
    config = read_sweep(
        plan(
            tmp_path,
            variants={"asmil": {"method": "asmil"}, "abmil": {"method": "abmil"}},
            cohorts={"toy": {"synthetic": {**TOY, "width": 32}}},
            seeds=2,
        )
    )
    folder = SweepFolder(config, tmp_path / "out", on_gpu=True)
    assert [(job.trial.variant, job.seeds) for job in folder.fixed_jobs()] == [
        ("asmil", (0, 1)),
        ("abmil", (0,)),
        ("abmil", (1,)),
    ]
    jobs = SweepFolder(config, tmp_path / "out", on_gpu=False).fixed_jobs()
    assert [trains_fused(config.cohorts["toy"], job.trial) for job in jobs[:2]] == [True, False]


def test_results_of_earlier_versions_have_the_new_column(tmp_path):
    folder = tmp_path / "runs" / "trial" / "seed-0-of-1"
    folder.mkdir(parents=True)
    row = {"cohort": "c", "variant": "v", "fold": 0, "seed": 0, "dice": 0.25}
    (folder / "measures.json").write_text(json.dumps({"measures": ["tiles"], "rows": [row]}))
    table = results_table(tmp_path)
    assert table["tile_dice"].tolist() == [0.25]
    assert "dice" not in table


def test_folds_of_a_table_each_measure_the_maps_of_their_own_test_slides(tmp_path, monkeypatch):
    write_synthetic(tmp_path / "made", SyntheticConfig(**TOY))
    manifest = pd.read_csv(tmp_path / "made" / "cohort.csv", dtype=str)
    folds = [manifest.assign(fold=fold, role="train")[["slide", "patient", "fold", "role"]] for fold in range(2)]
    patients = sorted(set(manifest["patient"]))
    for fold, table in enumerate(folds):  # the tests overlap
        table.loc[table["patient"].isin(patients[fold * 3 : fold * 3 + 6]), "role"] = "test"
    pd.concat(folds).to_csv(tmp_path / "splits.csv", index=False)
    read = []
    infer = measures.infer
    monkeypatch.setattr(measures, "infer", lambda model, bag, device: read.append(bag.id) or infer(model, bag, device))
    cohort = {"manifest": "made/cohort.csv", "splits": "splits.csv"}
    path = plan(tmp_path, cohorts={"made": cohort}, variants={"abmil": {"method": "abmil"}}, measures=["tiles"])
    assert [end[2] for end in run(path, tmp_path / "out")] == ["done"]
    tested = pd.concat(folds).query("role == 'test'")["slide"]
    assert sorted(read) == sorted(tested)
    assert set(results_table(tmp_path / "out")["fold"]) == {0, 1}
