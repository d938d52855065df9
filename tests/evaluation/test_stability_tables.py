from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from asmil.evaluation.stability import read_stability, summary_of, write_tables
from asmil.evaluation.stability.analysis import MEASURES
from asmil.tables.names import unique_names
from fake_recordings import restless, settling, write_recorded_run


def _reject_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_tables_hold_every_run_and_json_only_numbers(tmp_path: Path) -> None:
    first = write_recorded_run(tmp_path / "a", {(0, seed): [settling(seed), restless(seed)] for seed in (0, 1)})
    second = write_recorded_run(tmp_path / "b", {(0, 0): [np.ones((1, 1))]})
    runs = [read_stability(first), read_stability(second)]
    write_tables(runs, tmp_path / "out")
    slides = pd.read_csv(tmp_path / "out" / "stability_slides.csv")
    epochs = pd.read_csv(tmp_path / "out" / "stability_epochs.csv")
    agreement = pd.read_csv(tmp_path / "out" / "stability_agreement.csv")
    assert slides["run"].tolist() == ["a"] * 4 + ["b"]
    assert len(epochs) == 4 * 25 + 1
    assert agreement["run"].tolist() == ["a", "a"]
    assert slides.loc[slides["run"] == "a", "jsd_late"].tolist() == pytest.approx(runs[0].slides["jsd_late"].tolist())
    text = (tmp_path / "out" / "stability.json").read_text()
    told = json.loads(text, parse_constant=_reject_constant)
    assert told == [summary_of(run) for run in runs]
    assert told[1]["metrics"]["jsd_late"] == {"value": None, "sd_seeds": None, "per_seed": {"0": None}}


def test_the_tables_of_a_run_with_one_seed_have_their_columns(tmp_path: Path) -> None:
    run = read_stability(write_recorded_run(tmp_path / "a", {(0, 0): [settling(0)]}))
    write_tables([run], tmp_path)
    header = (tmp_path / "stability_agreement.csv").read_text().strip()
    assert header == "run,fold,slide,seed_a,seed_b,rank_correlation,top1_overlap,jsd"


def test_a_summary_averages_the_slides_of_a_seed_and_then_the_seeds(tmp_path: Path) -> None:
    trainings = {(fold, seed): [settling(seed + fold), restless(seed)] for fold in (0, 1) for seed in (0, 1, 2)}
    run = read_stability(write_recorded_run(tmp_path / "a", trainings, {"seeds": 5}, kept_epoch=20))
    summary = summary_of(run)
    assert (summary["trainings"], summary["trainings_asked_for"], summary["trainings_finished"]) == (6, 10, 6)
    assert summary["seeds"] == 3
    assert summary["slides"] == ["s0", "s1"]
    assert summary["recordings"] == {"least": 25, "most": 25}
    for name in MEASURES:
        per_seed = [run.slides.loc[run.slides["seed"] == seed, name].mean() for seed in (0, 1, 2)]
        found = summary["metrics"][name]
        assert list(found["per_seed"].values()) == pytest.approx(per_seed)
        assert found["value"] == pytest.approx(np.mean(per_seed))
        assert found["sd_seeds"] == pytest.approx(np.std(per_seed, ddof=1))
    assert summary["agreement"]["pairs"] == 12
    assert summary["agreement"]["jsd"] == pytest.approx(run.agreement["jsd"].mean())
    assert [alarm["kind"] for alarm in summary["alarms"]] == [alarm.kind for alarm in run.alarms]


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = [tmp_path / parent / "run" for parent in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
    runs = [read_stability(write_recorded_run(path, {(0, 0): [settling(0)]})) for path in paths]
    assert unique_names([run.path for run in runs]) == ["a/run", "b/run"]
    assert unique_names([runs[0].path]) == ["run"]
