"""Columns and time units that were chosen for a training hold for every later command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

import asmil
from asmil.viewer.collection import Places, collect
from small_task_cohorts import write_cohort

NAMES = {"slide": "Image", "patient": "who", "label": "TMB"}
COLUMNS = ",".join(f"{name}={column}" for name, column in NAMES.items())
TRAIN = ("--method", "abmil", "--set", "training.epochs=1", "--set", "model.inner=8", "--device", "cpu", "--quiet")


@pytest.fixture(scope="module")
def home(small_cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cohort whose columns have other names, and whose features are elsewhere."""
    folder = tmp_path_factory.mktemp("chosen") / "home"
    shutil.copytree(small_cohort.parent, folder)
    manifest = folder / "cohort.csv"
    pd.read_csv(manifest).rename(columns=NAMES).to_csv(manifest, index=False)
    (folder / "features").rename(folder / "vectors")
    run = asmil.train(
        manifest,
        folder / "run",
        method="abmil",
        columns=NAMES,
        features=folder / "vectors",
        settings={"training.epochs": 1, "model.inner": 8, "training.device": "cpu"},
        progress=False,
    )
    assert run.classes == ("normal", "tumor")
    return folder


@pytest.mark.heavy
@pytest.mark.usefixtures("undrawn_figures")
def test_every_verb_reads_the_manifest_through_the_columns_of_the_run(home, tmp_path, asmil_here):
    run = home / "run"
    for words in (
        ("evaluate", run),
        ("heatmap", run, "--out", tmp_path / "maps"),
        ("faithfulness", run, "--resamples", 20),
        ("localize", run, "--truth", home / "tile_truth.parquet", "--resamples", 20),
        ("check", run),
        ("export", run, "--out", tmp_path / "bundle"),
        ("predict", run, home / "cohort.csv", "--features", home / "vectors", "--out", tmp_path / "p.csv"),
    ):
        done = asmil_here(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert "column 'label' is missing" not in done.stdout + done.stderr
    splits = pd.read_csv(run / "splits.csv")
    tested = splits.loc[splits["role"] == "test", "slide"].tolist()
    assert {file.name.split(".")[0] for file in (tmp_path / "maps").glob("*.png")} >= set(tested)
    assert len(pd.read_csv(tmp_path / "p.csv")) == len(splits)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Left out" not in page
    assert asmil.load_run(run).attention(tested[0]).tile_map is not None
    # the run is resumed through the same columns, and its settings file trains a run of the same rows
    again = asmil_here("train", run / "config.yaml", "--out", tmp_path / "again", "--quiet")
    assert again.returncode == 0, again.stderr
    settings = [yaml.safe_load((one / "config.yaml").read_text()) for one in (run, tmp_path / "again")]
    assert settings[0]["cohort"]["rows_sha256"] == settings[1]["cohort"]["rows_sha256"]


def test_maps_and_viewer_show_the_outcome_of_the_chosen_column(home, tmp_path):
    slides = {slide.name: slide for slide in collect([home / "run"], Places()).slides}
    table = pd.read_csv(home / "cohort.csv")
    assert [slide.label for slide in slides.values()] == table["TMB"].tolist()
    assert [slide.patient for slide in slides.values()] == table["who"].tolist()
    assert all(slide.features is not None for slide in slides.values())
    # a copy of the table under another name is read in the same way
    table.to_csv(tmp_path / "moved.csv", index=False)
    moved = collect([home / "run"], Places(cohort=tmp_path / "moved.csv", features=home / "vectors")).slides
    assert {slide.name: slide.label for slide in moved} == {name: slide.label for name, slide in slides.items()}


def test_the_manifest_of_a_run_that_lost_a_column_is_not_called_a_slide(home, tmp_path, asmil_here):
    run = tmp_path / "run"
    shutil.copytree(home / "run", run)
    settings = yaml.safe_load((run / "config.yaml").read_text())
    del settings["cohort"]["columns"]["label"]
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    assert asmil_here("evaluate", run).returncode == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Left out: 1 slide" not in page


@pytest.mark.usefixtures("undrawn_figures")
def test_a_manifest_that_was_changed_after_the_training_is_named_beside_the_command(home, asmil_here):
    pages = []
    manifest = home / "cohort.csv"
    before = manifest.read_text()
    for text in (before, before.replace("normal", "x").replace("tumor", "normal").replace("x", "tumor"), before):
        manifest.write_text(text)
        assert asmil_here("evaluate", home / "run").returncode == 0
        page = (home / "run" / "report.html").read_text(encoding="utf-8")
        pages.append(page.split("How this run was made")[-1].split("<details")[0])
    assert pages[0] == pages[2] != pages[1]
    assert pages[1].count("cohort.csv") == pages[0].count("cohort.csv") + 1


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    return write_cohort(tmp_path, "survival", n_patients=12)


def unit_of(run: Path) -> str | None:
    return yaml.safe_load((run / "config.yaml").read_text())["task"].get("time_unit")


@pytest.mark.usefixtures("undrawn_figures")
def test_the_unit_comes_from_the_option_or_the_name_of_the_column(patients, tmp_path, asmil_here):
    def train(*words: object, out: str) -> int:
        return int(
            asmil_here("train", patients, "--task", "survival", *TRAIN, *words, "--out", tmp_path / out).returncode
        )

    assert train(out="unknown") == 0
    assert unit_of(tmp_path / "unknown") is None
    assert train("--time-unit", "weeks", out="given") == 0
    assert unit_of(tmp_path / "given") == "weeks"
    assert train("--time-unit", "fortnights", out="wrong") != 0
    # a run without a unit takes one; a run with one keeps it, and refuses another
    assert train("--time-unit", "years", out="unknown") == 0
    assert unit_of(tmp_path / "unknown") == "years"
    assert train(out="unknown") == 0
    assert train("--time-unit", "days", out="unknown") != 0
    assert unit_of(tmp_path / "unknown") == "years"
    table = pd.read_csv(patients)
    table.rename(columns={"time": "time_days"}).to_csv(patients, index=False)
    assert train(out="named") == 0
    assert unit_of(tmp_path / "named") == "days"
    assert train("--time-unit", "months", out="contradiction") != 0
    predicted = tmp_path / "p.csv"
    assert asmil_here("predict", tmp_path / "named", patients, "--out", predicted).returncode == 0
    assert set(pd.read_csv(predicted)["time_unit"]) == {"days"}
    label = {slide.name: slide.label for slide in collect([tmp_path / "named"], Places()).slides}["s00"]
    assert label == "40.0 days (censored)"
    table.rename(columns={"time": "OS_MONTHS"}).to_csv(patients, index=False)
    assert train("--columns", "time=OS_MONTHS", out="chosen") == 0
    assert unit_of(tmp_path / "chosen") == "months"
    done = asmil_here(
        "plan", patients, "--task", "survival", "--columns", "time=OS_MONTHS", "--out", tmp_path / "a b.yaml"
    )
    assert done.returncode == 0
    assert yaml.safe_load((tmp_path / "a b.yaml").read_text())["task"]["time_unit"] == "months"
    assert f"asmil train '{tmp_path / 'a b.yaml'}'" in done.stdout.replace("\n", "")


def test_two_columns_of_times_are_not_chosen_between(patients, tmp_path):
    table = pd.read_csv(patients)
    table.assign(time_months=table["time"], time_days=30 * table.pop("time")).to_csv(patients, index=False)
    with pytest.raises(asmil.AsmilError, match="'time'"):
        asmil.load_cohort(patients, task="survival")
    chosen = asmil.load_cohort(patients, task="survival", columns={"time": "time_days"})
    assert (chosen.time_unit, chosen["s00"].time) == ("days", 1200.0)


def test_only_survival_has_a_time_unit(small_cohort, tmp_path):
    with pytest.raises(asmil.AsmilError, match="time_unit"):
        asmil.train(small_cohort, tmp_path / "run", time_unit="days", progress=False)
