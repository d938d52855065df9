"""The operating threshold, chosen on validation slides and used on test slides."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.errors import AsmilError
from asmil.evaluation import evaluate_run, write_report
from asmil.evaluation.classification import FEWEST_TO_SCALE
from asmil.runs.operating_point import read_operating_point
from asmil.tasks.calibration import scale_probabilities
from asmil.tasks.thresholds import choose_threshold
from fake_run_folder import write_run

POSITIVE = np.array([False, False, True, False, True, True])
SCORE = np.array([0.1, 0.2, 0.3, 0.35, 0.8, 0.9])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("youden", (0.35 + 0.8) / 2),  # 2/3 + 1; below 0.3 it would be 1 + 2/3 too, but 0.575 is nearer to 0.5
        ("f1", (0.2 + 0.3) / 2),  # all three found with one false alarm: 6/7, against 4/5
        ("sensitivity:1", (0.2 + 0.3) / 2),
        ("specificity:1", (0.35 + 0.8) / 2),
        ("sensitivity:0.5", (0.35 + 0.8) / 2),
    ],
)
def test_rules_by_hand(rule: str, expected: float) -> None:
    assert choose_threshold(POSITIVE, SCORE, rule) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=2, max_size=25), st.sampled_from(["youden", "f1"])
)
def test_no_other_threshold_is_better(slides: list[tuple[bool, int]], rule: str) -> None:
    positive, score = np.array([one[0] for one in slides]), np.array([one[1] / 8 for one in slides])
    if positive.all() or not positive.any():
        return

    def worth(threshold: float) -> float:
        called = score >= threshold
        if rule == "f1":
            return 2 * (called & positive).sum() / (called.sum() + positive.sum())
        return called[positive].mean() + (~called[~positive]).mean()

    best = worth(choose_threshold(positive, score, rule))
    assert all(worth(threshold) <= best + 1e-9 for threshold in np.linspace(-0.1, 1.1, 200))


@pytest.mark.parametrize("rule", ["best", "sensitivity", "sensitivity:2", "sensitivity:x", "youden:1"])
def test_unknown_rules_are_told(rule: str) -> None:
    with pytest.raises(AsmilError, match="threshold rule"):
        choose_threshold(POSITIVE, SCORE, rule)


def test_one_class_has_no_threshold() -> None:
    with pytest.raises(AsmilError, match="both classes"):
        choose_threshold(np.ones(3, bool), SCORE[:3])


def with_validation(path: Path, shift: float, slides: int = 40) -> pd.DataFrame:
    """A run whose validation set has the test set's probabilities, with the logit shifted."""
    path.mkdir(exist_ok=True)
    table = write_run(path, folds=2, seeds=2, slides=slides)
    val = table.assign(role="val", slide="v" + table["slide"], patient="v" + table["patient"])
    odds = val["prob_tumor"] / val["prob_normal"] * np.exp(shift)
    val["prob_tumor"], val["prob_normal"] = odds / (1 + odds), 1 / (1 + odds)
    pd.concat([table, val]).to_parquet(path / "predictions.parquet")
    return table


def test_the_test_part_is_called_at_the_thresholds_of_validation(tmp_path: Path) -> None:
    table = with_validation(tmp_path, 0.0)
    found = evaluate_run(tmp_path, resamples=50)
    assert found.operating is not None
    point = found.operating.point
    assert set(point.thresholds) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    per_seed = []
    for seed, part in table.groupby("seed"):
        limits = part["fold"].map(lambda fold, seed=seed: point.thresholds[fold, seed])
        per_seed.append((part["prob_tumor"] >= limits)[part["target"] == "tumor"].mean())
    value, interval = found.operating.metrics["sensitivity"].value, found.operating.metrics["sensitivity"].interval
    assert value == pytest.approx(np.mean(per_seed))
    assert interval.low <= value <= interval.high


def test_the_test_part_does_not_move_the_threshold(tmp_path: Path) -> None:
    with_validation(tmp_path, 1.0)
    before = evaluate_run(tmp_path, resamples=10).operating
    table = pd.read_parquet(tmp_path / "predictions.parquet")
    test = table["role"] == "test"
    table.loc[test, ["prob_normal", "prob_tumor"]] = table.loc[test, ["prob_tumor", "prob_normal"]].to_numpy()
    table.to_parquet(tmp_path / "predictions.parquet")
    after = evaluate_run(tmp_path, resamples=10).operating
    assert before is not None
    assert after is not None
    assert before.point == after.point


def test_the_point_is_kept_in_the_run(tmp_path: Path) -> None:
    with_validation(tmp_path, 0.5)
    found = evaluate_run(tmp_path, resamples=10, threshold_rule="sensitivity:0.9")
    page = write_report(found)
    kept = read_operating_point(tmp_path)
    assert found.operating is not None
    assert kept == found.operating.point
    written = json.loads((tmp_path / "evaluation.json").read_text())
    assert written["operating_point"]["rule"] == "sensitivity:0.9"
    assert written["confusion"]["predicted_class_by"] == "threshold"
    assert "operating threshold" in page.read_text()
    (tmp_path / "operating_point.json").write_text("{}")
    with pytest.raises(AsmilError, match=r"operating_point\.json"):
        read_operating_point(tmp_path)


def test_a_run_without_validation_says_so(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = evaluate_run(tmp_path, resamples=10)
    assert found.operating is None
    assert found.calibration.scaled is None
    assert any("no validation slides" in warning for warning in found.warnings)


def test_by_patient_the_slides_of_a_patient_are_averaged(tmp_path: Path) -> None:
    table = write_run(tmp_path, seeds=1)
    found = evaluate_run(tmp_path, resamples=20, unit="patient")
    assert found.n_slides == found.n_patients == table["patient"].nunique()
    means = table.groupby("patient")["prob_tumor"].mean()
    place = dict(zip(found.rows["slide"], found.rows["prob_tumor"], strict=True))
    assert place == pytest.approx(means.to_dict())
    page = write_report(found)
    assert page.name == "report-patient.html"
    assert f"{found.n_patients} patients" in page.read_text()


def test_a_patient_with_two_targets_is_refused(tmp_path: Path) -> None:
    table = write_run(tmp_path, seeds=1)
    table.loc[table["slide"] == "s1", "target"] = "normal"
    table.loc[table["slide"] == "s0", "target"] = "tumor"
    table.to_parquet(tmp_path / "predictions.parquet")
    with pytest.raises(AsmilError, match="patient p0 "):
        evaluate_run(tmp_path, resamples=10, unit="patient")


def test_a_given_rule_decides_every_predicted_class(tmp_path: Path) -> None:
    table = with_validation(tmp_path, 1.0)
    plain = evaluate_run(tmp_path, resamples=20)
    found = evaluate_run(tmp_path, resamples=20, threshold_rule="sensitivity:0.95")
    assert found.operating is not None
    limits = pd.Series(found.operating.point.thresholds).rename_axis(["fold", "seed"]).rename("limit").reset_index()
    rows = table.merge(limits, on=["fold", "seed"])
    called, tumor = rows["prob_tumor"] >= rows["limit"], rows["target"] == "tumor"
    assert found.metrics["accuracy"].value == pytest.approx((called == tumor).groupby(rows["seed"]).mean().mean())
    assert found.metrics["accuracy"] == found.operating.metrics["accuracy"]
    assert found.metrics["macro_auc"] == plain.metrics["macro_auc"]
    once = rows.groupby("slide").agg({"prob_tumor": "mean", "limit": "mean", "target": "first"})
    called, tumor = once["prob_tumor"] >= once["limit"], once["target"] == "tumor"
    counts = [[(~called & ~tumor).sum(), (called & ~tumor).sum()], [(~called & tumor).sum(), (called & tumor).sum()]]
    assert found.confusion.tolist() == counts
    assert f"{counts[1][0]} of {tumor.sum()} tumor" in found.in_words
    assert f"{counts[0][1]} of {(~tumor).sum()} normal" in found.in_words
    assert plain.confusion.tolist() != counts


def test_temperatures_need_enough_validation_patients(tmp_path: Path) -> None:
    with_validation(tmp_path / "few", 0.0, slides=40)
    few = evaluate_run(tmp_path / "few", resamples=10).calibration
    assert few.scaled is None
    assert not few.temperatures
    assert str(FEWEST_TO_SCALE) in few.reason
    with_validation(tmp_path / "many", 0.0, slides=2 * 2 * FEWEST_TO_SCALE)
    many = evaluate_run(tmp_path / "many", resamples=10).calibration
    assert many.scaled is not None
    assert len(many.temperatures) == 4
    assert not many.reason


def test_worse_calibration_after_scaling_is_told(tmp_path: Path) -> None:
    with_validation(tmp_path, 0.0, slides=2 * 2 * FEWEST_TO_SCALE)
    table = pd.read_parquet(tmp_path / "predictions.parquet")
    # a validation set whose probabilities are much too extreme, unlike those of the test set
    val = table["role"] == "val"
    table.loc[val, ["prob_normal", "prob_tumor"]] = scale_probabilities(
        table.loc[val, ["prob_normal", "prob_tumor"]].to_numpy(), 0.2
    )
    table.to_parquet(tmp_path / "predictions.parquet")
    found = evaluate_run(tmp_path, resamples=10)
    assert found.calibration.scaled is not None
    before, after = found.calibration.as_predicted.ece, found.calibration.scaled.ece
    assert after > before + 0.05
    assert any(f"{before:.3f}" in text and f"{after:.3f}" in text for text in found.warnings)
    assert f"{after:.3f}" in write_report(found, tmp_path / "out").read_text()


def test_certain_validation_slides_determine_no_temperature(tmp_path: Path) -> None:
    with_validation(tmp_path, 0.0, slides=2 * 2 * FEWEST_TO_SCALE)
    table = pd.read_parquet(tmp_path / "predictions.parquet")
    right = np.where(table["target"] == "tumor", 0.9, 0.1)
    table["prob_tumor"] = np.where(table["role"] == "val", right, table["prob_tumor"])
    table.assign(prob_normal=1 - table["prob_tumor"]).to_parquet(tmp_path / "predictions.parquet")
    found = evaluate_run(tmp_path, resamples=10).calibration
    assert found.scaled is None
    assert found.reason
