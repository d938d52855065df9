from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from asmil.cli.main import app
from asmil.errors import AsmilError
from asmil.settings.config import parse_settings
from asmil.synthetic.bags import SurvivalConfig, SyntheticConfig, plan_slides, write_synthetic
from asmil.synthetic.bags.outcomes import lesion_shares, morphology_labels, patient_times
from asmil.tasks.concordance import concordance

SMALL = SyntheticConfig(slides=12, width=16, tiles_min=50, tiles_max=200, witness_min=0.02)


def drawn_tiles(config: SyntheticConfig, seed: int = 0) -> pd.DataFrame:
    """Tiles as a plan might have, far more quickly than whole slides: 100 a slide, some of them lesions."""
    draw = np.random.default_rng(seed)
    kinds = 3 * (config.classes - 1)
    tables = []
    for plan in plan_slides(config):
        morphology = np.zeros(100, dtype=int)
        if plan.label:
            morphology[: draw.integers(1, 20)] = draw.integers(1, kinds + 1)
        tables.append(pd.DataFrame({"slide": plan.slide, "tumor": morphology > 0, "morphology": morphology}))
    return pd.concat(tables, ignore_index=True)


@pytest.fixture(scope="module")
def many() -> Callable[[SurvivalConfig], pd.DataFrame]:
    config = SMALL.model_copy(update={"slides": 1500})
    plans, tiles = plan_slides(config), drawn_tiles(config)
    return lambda survival: patient_times(config, survival, plans, tiles)


@pytest.fixture(scope="module")
def patients(many: Callable[[SurvivalConfig], pd.DataFrame]) -> pd.DataFrame:
    return many(SurvivalConfig())


def test_log_risks_are_the_stated_function_of_the_tiles() -> None:
    config = SMALL.model_copy(update={"slides": 40, "witness_min": 0.01, "witness_max": 0.2})
    plans, tiles = plan_slides(config), drawn_tiles(config)
    effects = SurvivalConfig(burden_effect=1.5, worst_effect=0.6)
    found = patient_times(config, effects, plans, tiles).set_index("patient")
    assert sorted(found.index) == sorted({plan.patient for plan in plans})
    for patient, row in found.iterrows():
        own = tiles[tiles["slide"].isin([plan.slide for plan in plans if plan.patient == patient])]
        share, worst = own["tumor"].mean(), own["morphology"].max()
        burden = np.log(max(share, 0.01) / 0.01) / np.log(20)
        assert row["log_risk"] == pytest.approx(1.5 * burden + 0.6 * worst / 3)
        assert row["hazard"] == pytest.approx(np.log(2) / 60 * np.exp(row["log_risk"]))


def test_times_are_exponential_with_the_true_hazard(patients: pd.DataFrame) -> None:
    scaled = patients["event_time"] * patients["hazard"]
    assert scaled.mean() == pytest.approx(1, abs=0.08)
    assert np.median(scaled) == pytest.approx(np.log(2), abs=0.06)
    # in spite of the censoring there are as many events as the hazards over the times at risk let expect
    assert patients["event"].sum() == pytest.approx((patients["hazard"] * patients["time"]).sum(), rel=0.1)


def test_censoring_is_independent_of_the_risk(patients: pd.DataFrame) -> None:
    assert patients["event"].mean() == pytest.approx(0.5, abs=0.03)
    assert abs(np.corrcoef(patients["censoring_time"], patients["log_risk"])[0, 1]) < 0.06
    observed = patients["event_time"] <= patients["censoring_time"]
    assert (patients["event"] == observed).all()
    exact = patients[["event_time", "censoring_time"]].min(axis=1)
    assert (abs(patients["time"] - exact) <= 0.01).all()
    assert patients["time"].min() > 0


def test_the_true_risk_ranks_patients_and_a_stronger_effect_ranks_them_better(
    many: Callable[[SurvivalConfig], pd.DataFrame], patients: pd.DataFrame
) -> None:
    usual = concordance(patients["time"], patients["event"], patients["log_risk"])
    assert 0.7 < usual < 0.85
    truth = many(SurvivalConfig(worst_effect=6.0))
    assert concordance(truth["time"], truth["event"], truth["log_risk"]) > usual + 0.03


@pytest.mark.parametrize("censored", [0.0, 0.2, 0.9])
def test_the_share_of_censored_patients_is_the_one_asked_for(
    many: Callable[[SurvivalConfig], pd.DataFrame], censored: float
) -> None:
    found = many(SurvivalConfig(censored=censored))
    assert 1 - found["event"].mean() == pytest.approx(censored, abs=0.03)


def test_a_longer_cohort_has_the_same_true_times() -> None:
    short, long = (SMALL.model_copy(update={"slides": count}) for count in (40, 80))
    tiles = drawn_tiles(long)
    first = patient_times(short, SurvivalConfig(), plan_slides(short), tiles[tiles["slide"] < "slide-0040"])
    second = patient_times(long, SurvivalConfig(), plan_slides(long), tiles)
    both = first.merge(second, on="patient")
    whole = both["lesion_share_x"] == both["lesion_share_y"]
    assert whole.mean() > 0.9
    np.testing.assert_allclose(both.loc[whole, "event_time_x"], both.loc[whole, "event_time_y"])


def test_values_and_labels_tell_what_is_on_a_slide() -> None:
    plans = plan_slides(SMALL.model_copy(update={"slides": 3}))
    kinds = {"slide-0000": [0, 1, 3, 3], "slide-0001": [0, 0, 0, 0], "slide-0002": [2, 0, 0, 0]}
    rows = [(slide, kind > 0, kind) for slide, all_kinds in kinds.items() for kind in all_kinds]
    tiles = pd.DataFrame(rows, columns=["slide", "tumor", "morphology"])
    assert lesion_shares(plans, tiles) == [0.75, 0.0, 0.25]
    assert morphology_labels(plans, tiles) == ["a;c", "none", "b"]


def test_every_task_tells_of_the_same_slides(tmp_path: Path) -> None:
    tasks = ("classification", "survival", "regression", "multilabel")
    cohorts = {task: pd.read_csv(write_synthetic(tmp_path / task, SMALL, task=task)) for task in tasks}
    for task in tasks[1:]:
        for name in ("features/slide-0003.h5", "tile_truth.parquet"):
            assert (tmp_path / task / name).read_bytes() == (tmp_path / "classification" / name).read_bytes()
        shared = ["slide", "patient", "split", "site"]
        pd.testing.assert_frame_equal(cohorts[task][shared], cohorts["classification"][shared])
    assert list(cohorts["survival"]) == ["slide", "patient", "time_months", "event", "split", "site"]
    assert (cohorts["survival"].groupby("patient")[["time_months", "event"]].nunique() == 1).all(axis=None)
    truth = pd.read_parquet(tmp_path / "survival" / "patient_truth.parquet").set_index("patient")
    told = cohorts["survival"].join(truth, on="patient", rsuffix="_true")
    np.testing.assert_array_equal(told[["time_months", "event"]], told[["time", "event_true"]])
    is_tumor = cohorts["classification"]["label"] == "tumor"
    assert ((cohorts["regression"]["label"] > 0) == is_tumor).all()
    assert ((cohorts["multilabel"]["label"] != "none") == is_tumor).all()


def test_the_settings_of_classes_are_noted_as_ever_and_tasks_do_not_mix(tmp_path: Path) -> None:
    write_synthetic(tmp_path, SMALL)
    noted = yaml.safe_load((tmp_path / "synthetic.yaml").read_text())
    assert noted == SMALL.model_dump(mode="json", exclude={"quota", "test_sites"})
    assert SyntheticConfig(**noted) == SMALL
    with pytest.raises(AsmilError, match=r"task: .*survival"):
        write_synthetic(tmp_path, SMALL, task="survival")


def test_a_lost_truth_of_the_patients_is_made_again(tmp_path: Path) -> None:
    write_synthetic(tmp_path, SMALL, task="survival")
    truth = tmp_path / "patient_truth.parquet"
    before = truth.read_bytes()
    truth.unlink()
    write_synthetic(tmp_path, SMALL, task="survival")
    assert truth.read_bytes() == before
    with pytest.raises(AsmilError, match=r"survival\.censored: there 0\.5, asked 0\.2"):
        write_synthetic(tmp_path, SMALL, task="survival", survival=SurvivalConfig(censored=0.2))


def test_the_verb(tmp_path: Path) -> None:
    arguments = ["--slides", "12", "--width", "16", "--tiles-min", "50", "--tiles-max", "200"]
    for task, word in (("survival", "events"), ("regression", "share"), ("multilabel", "none")):
        shown = CliRunner().invoke(app, ["synthetic", str(tmp_path / task), "--task", task, *arguments])
        assert shown.exit_code == 0, shown.output
        assert word in shown.output


def test_mistakes_are_named() -> None:
    with pytest.raises(AsmilError, match="censored"):
        parse_settings(SurvivalConfig, {"censored": 1.0})
