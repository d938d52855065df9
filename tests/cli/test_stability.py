"""`asmil stability`, from a training that records attention to page and tables."""

import io
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from asmil.evaluation.stability import read_stability
from asmil.evaluation.stability.report import stability_document
from asmil.reporting import print_document
from fake_recordings import restless, settling, write_recorded_run

WRITTEN = {
    "stability.html",
    "stability.json",
    "stability_slides.csv",
    "stability_epochs.csv",
    "stability_agreement.csv",
}


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run that settles and one that does not, two seeds each."""
    folder = tmp_path_factory.mktemp("runs")
    calm = {(0, seed): [settling(seed), settling(seed)] for seed in (0, 1)}
    moving = {(0, seed): [restless(seed), restless(seed + 5)] for seed in (0, 1)}
    options = {"kept_epoch": 20}
    return [
        write_recorded_run(folder / "calm", calm, {"anchor": {"normalizer": "nsf"}}, **options),
        write_recorded_run(folder / "moving", moving, {"training": {"schedule": "constant"}}, **options),
    ]


def test_a_training_that_was_just_run_is_measured(asmil_here, small_cohort, tmp_path):
    run = tmp_path / "run"
    settings = ["-m", "abmil", "--set", "training.epochs=3", "--set", "record.attention=1", "--seeds", 2]
    assert asmil_here("train", small_cohort, "--out", run, "--quiet", *settings).returncode == 0
    done = asmil_here("stability", run)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in run.glob("stability*") if path.is_file()} == WRITTEN
    assert f"page: {run / 'stability.html'}" in done.stdout
    assert "2 trainings, 2 slides" in done.stdout
    epochs = pd.read_csv(run / "stability_epochs.csv")
    assert len(epochs) == 2 * 2 * 4
    assert sorted(epochs["epoch"].unique()) == [0, 1, 2, 3]
    assert epochs["jsd_previous"].notna().sum() == 2 * 2 * 3


def test_several_runs_are_printed_side_by_side_and_written_only_if_asked(asmil_here, two_runs, tmp_path):
    done = asmil_here("stability", *two_runs)
    assert done.returncode == 0, done.stderr
    assert "abmil + anchor (nsf)" in done.stdout
    assert len(re.findall(r"^alarm: ", done.stdout, re.MULTILINE)) == 2
    assert "alarm: moving: " in done.stdout
    assert "warning: calm: " not in done.stdout
    assert "cosine" in done.stdout
    assert "--out" in done.stdout
    assert not [path for run in two_runs for path in run.glob("stability*")]
    done = asmil_here("stability", *two_runs, "--out", tmp_path / "out", "--slide", "s1", "--epochs", "0,1,20")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_file()} >= WRITTEN
    assert set(pd.read_csv(tmp_path / "out" / "stability_slides.csv")["run"]) == {"calm", "moving"}


def test_json_is_one_object_for_one_run_and_a_list_for_several(asmil_here, two_runs):
    several = json.loads(asmil_here("stability", *two_runs, "--json").stdout)
    assert [one["name"] for one in several] == ["calm", "moving"]
    assert several[0]["metrics"]["jsd_late"]["value"] < 1e-3 < several[1]["metrics"]["jsd_late"]["value"]
    assert [alarm["kind"] for alarm in several[1]["alarms"]] == ["moving", "seeds_disagree"]


def test_runs_with_other_slides_and_unfinished_ones_are_reported(asmil_here, two_runs, tmp_path):
    other = write_recorded_run(
        tmp_path / "other",
        {(0, 0): [settling(0)]},
        {"seeds": 3},
        names=["elsewhere"],
        finished=False,
        epochs=[0.5 * i for i in range(25)],
    )
    done = asmil_here("stability", two_runs[0], other, "--slide", "s0")
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "same slides" in shown
    assert "equally often" in shown
    assert "other: 1 of 3 trainings" in shown
    done = asmil_here("stability", two_runs[0], other, "--slide", "s0", "--out", tmp_path / "out")
    page = (tmp_path / "out" / "stability.html").read_text()
    assert "other: slide s0" in page


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--slide", "s11"], "--slide s11: "),
        (["--epochs", "first"], "--epochs first: "),
        (["--epochs", "-1"], "--epochs -1: "),
        (["--epochs", ""], "--epochs : "),
    ],
)
def test_wrong_options_are_named(asmil_here, two_runs, arguments, named):
    done = asmil_here("stability", *two_runs, *arguments)
    assert done.returncode == 1
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_recorded_nothing_says_how_to_record(asmil_here, tmp_path):
    done = asmil_here("stability", write_recorded_run(tmp_path / "run", {}, {"record": {"attention": "none"}}))
    assert done.returncode == 1
    assert "--set record.attention=2" in done.stderr


def test_the_table_fits_a_terminal_of_80_columns(two_runs):
    console = Console(width=80, file=io.StringIO())
    print_document(stability_document([read_stability(run) for run in two_runs]), console)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    for run in two_runs:
        assert len(next(row for row in rows if row[:1] == [run.name])) == 9
