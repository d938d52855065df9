"""Runs of one method whose folders have the same name: every page and table tells them apart."""

import shutil
from pathlib import Path

import pandas as pd

from asmil.experiments.results_index import index_results
from asmil.synthetic.bags import SyntheticConfig, write_synthetic
from asmil.viewer.collection import Places, collect

NAMES = ["first/abmil", "second/abmil"]


def test_runs_of_one_name_are_told_apart(tmp_path, monkeypatch, asmil_here):
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> None:
        done = asmil_here(*words)
        assert done.returncode == 0, done.stderr

    cohort = SyntheticConfig(slides=16, width=16, tiles_min=20, tiles_max=24, witness_min=0.1)
    write_synthetic(tmp_path / "cohort", cohort)
    small = ["training.epochs=1", "model.inner=8", "model.attention=4"]
    options = [word for one in small for word in ("--set", one)]
    run("train", "cohort/cohort.csv", "--method", "abmil", "-o", "first/abmil", "-q", *options)
    shutil.copytree("first/abmil", "second/abmil")

    run("evaluate", *NAMES, "--out", "report", "--resamples", "20")
    assert set(pd.read_csv("report/metrics.csv")["run"]) == set(NAMES)
    assert all(name in Path("report/report.html").read_text() for name in NAMES)
    run("compare", *NAMES, "--out", "comparison", "--resamples", "20")
    assert set(pd.read_csv("comparison/comparison.csv")["run"]) == set(NAMES)
    run("stability", *NAMES, "--out", "stability")
    assert set(pd.read_csv("stability/stability_slides.csv")["run"]) == set(NAMES)
    run("heatmap", *NAMES, "--slide", "slide-0003", "--tiles", "0", "--out", "maps", "--workers", "0", "-q")
    (about,) = pd.read_csv("maps/heatmaps.csv")["about"]
    assert [part.partition(":")[0] for part in about.split("; ")] == NAMES
    assert [one.name for one in index_results(tmp_path).runs] == NAMES
    assert [one.name for one in collect(list(map(Path, NAMES)), Places()).runs] == NAMES
