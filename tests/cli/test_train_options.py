"""What `asmil train` takes besides a manifest: settings files, a dry run, a log, JSON, progress."""

import io
import json
import re

import pytest
import yaml
from rich.console import Console

from asmil import AsmilError
from asmil.api.progress import Pace, training_progress
from asmil.cohort.splits import Splits
from asmil.models.registry import methods
from asmil.runs.config import resolve
from asmil.runs.settings_file import commented_settings, read_settings_file
from asmil.training.run import train_run

SHORT = ("--set", "training.epochs=2", "--set", "record.attention=none")


@pytest.mark.parametrize("method", sorted(methods()))
def test_the_written_settings_are_the_defaults_with_and_without_comments(method, tmp_path):
    text = commented_settings("run.yaml", "cohort.csv", "runs/x", method, "paper")
    for content in (text, re.sub(r"^( *)# (?= *\w+:( |$))", r"\1", text, flags=re.MULTILINE)):
        path = tmp_path / "run.yaml"
        path.write_text(content, encoding="utf-8")
        found = read_settings_file(path)
        assert found.cohort == tmp_path / "cohort.csv"
        assert found.method == method
        assert resolve(method, "paper", found.changes) == resolve(method)


def test_init_train_from_the_file_and_json(small_cohort, tmp_path, asmil_here, undrawn_figures):
    file = tmp_path / "run.yaml"
    assert asmil_here("init", file, "-m", "abmil", "--cohort", small_cohort).returncode == 0
    again = asmil_here("init", file)
    assert again.returncode == 1
    assert str(file) in again.stderr
    plan = asmil_here("train", file, *SHORT, "--seeds", 2, "--dry-run")
    assert plan.returncode == 0
    assert "abmil" in plan.stdout
    assert "epochs: 2" in plan.stdout
    assert not (tmp_path / "runs").exists()
    planned = json.loads(asmil_here("train", file, *SHORT, "--seeds", 2, "--dry-run", "--json").stdout)
    assert planned["trainings"] == 2
    assert sum(planned["folds"][0].values()) == 24

    log = tmp_path / "logs" / "train.log"
    done = asmil_here("train", "--config", file, *SHORT, "--seeds", 2, "--log", log, "--json", "-q")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "abmil"
    lines = log.read_text(encoding="utf-8").splitlines()
    assert any("seed 2 of 2" in line and "epoch 2 of 2" in line for line in lines)

    of_run = tmp_path / "runs" / "abmil" / "config.yaml"
    again = asmil_here("train", of_run, "-o", tmp_path / "again", "--dry-run", "--json")
    assert json.loads(again.stdout)["config"]["training"]["epochs"] == 2


def test_mistakes_in_a_settings_file(tmp_path, small_cohort, asmil_here):
    file = tmp_path / "run.yaml"
    for content, words in (
        ("cohrt: x.csv", ["cohrt", "cohort"]),
        ("cohort: [1]", ["cohort"]),
        ("method: nope", ["give COHORT"]),
        (f"cohort: {small_cohort}", ["--out"]),
        (f"cohort: {small_cohort}\nout: x\nmethod: asml", ["asmil"]),
        (f"cohort: {small_cohort}\nout: x\ntraining: {{lrr: 1}}", ["training.lrr"]),
        ("- a", [str(file)]),
    ):
        file.write_text(content, encoding="utf-8")
        done = asmil_here("train", file)
        assert done.returncode in (1, 2)
        assert all(word in done.stderr for word in words), done.stderr
    with pytest.raises(AsmilError, match="missing"):
        read_settings_file(tmp_path / "missing.yaml")


def test_a_setting_without_its_section_is_completed(small_cohort, tmp_path, asmil_here):
    done = asmil_here("train", small_cohort, "-o", tmp_path / "run", "--set", "epochs=3")
    assert done.returncode == 1
    assert "training.epochs" in done.stderr


def test_progress_names_fold_seed_and_the_time_left(small_cohort, tmp_path):
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=80, color_system=None)
    config = resolve("asmil", changes={"training": {"epochs": 2}, "model": {"inner": 16}, "folds": 2})
    with training_progress(console, tmp_path / "log.txt") as observer:
        train_run(small_cohort, tmp_path / "run", config, observer=observer)
    text = shown.getvalue()
    for counted in ("fold 2 of 2", "seed 1 of 1", "epoch 2 of 2"):
        assert counted in text
    assert "2 of 2 trainings" in text
    assert "tiles used" in text
    assert "anchor" in text
    with training_progress(console, tmp_path / "log.txt") as observer:
        train_run(small_cohort, tmp_path / "run", config, observer=observer)
    assert (tmp_path / "log.txt").read_text().count("already trained") == 2
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["folds"] == 2


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_names_the_site_that_a_fold_tests(small_cohort, tmp_path, terminal):
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=80, color_system=None)
    changes = {"training": {"epochs": 1}, "data": {"leave_out": "site"}, "record": {"attention": "none"}}
    with training_progress(console) as observer:
        train_run(small_cohort, tmp_path / "run", resolve("mean_pooling", changes=changes), observer=observer)
    sites = Splits.load(tmp_path / "run" / "splits.csv").sites
    assert len(sites) > 1
    assert all(site in shown.getvalue() for site in sites.values())


def test_the_pace_counts_what_is_left():
    pace = Pace(trainings=6)
    pace.begin((0, 0), epochs=10, epochs_done=4)
    assert pace.left_in_run() == 56
    assert pace.seconds_left(56) is None
    pace.advance((0, 0), 5)
    assert pace.left_in_run() == 55
    assert pace.seconds_left(55) >= 0
    pace.finish((0, 0))
    assert pace.left_in_run() == 50
