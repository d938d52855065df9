from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from asmil.errors import AsmilError
from asmil.evaluation.survival import evaluate_survival
from asmil.tasks.concordance import concordance
from asmil.tasks.survival_curves import survival_between_bins
from asmil.tasks.survival_metrics import integrated_brier_score
from fake_survival_run import ENDS, exponential_patients, write_survival_run


def test_the_c_index_is_the_mean_over_folds_and_seeds(tmp_path: Path) -> None:
    table = write_survival_run(tmp_path)
    found = evaluate_survival(tmp_path, resamples=100).metrics["c_index"]
    per_training = {
        key: concordance(part["time"], part["event"], part["risk"]) for key, part in table.groupby(["fold", "seed"])
    }
    assert found.per_training == pytest.approx(per_training)
    assert found.value == pytest.approx(np.mean(list(per_training.values())))
    folds = [np.mean([per_training[fold, seed] for seed in (0, 1)]) for fold in (0, 1, 2)]
    assert list(found.per_fold.values()) == pytest.approx(folds)
    assert found.sd_folds == pytest.approx(np.std(folds, ddof=1))
    assert found.per_seed[1] == pytest.approx(np.mean([per_training[fold, 1] for fold in (0, 1, 2)]))
    assert found.interval.low < found.value < found.interval.high


def test_the_scale_of_a_training_does_not_matter(tmp_path: Path) -> None:
    """Nothing pools raw risks: another increasing scale in one fold leaves every number as it was."""
    table = write_survival_run(tmp_path)
    before = evaluate_survival(tmp_path, resamples=30).to_dict()
    table["risk"] = np.where(table["fold"] == 1, np.exp(table["risk"] / 20) + 500, table["risk"])
    table.to_parquet(tmp_path / "predictions.parquet")
    assert json.dumps(evaluate_survival(tmp_path, resamples=30).to_dict()) == json.dumps(before)


def test_the_true_risk_has_its_known_c_index(tmp_path: Path) -> None:
    """Of two exponential times with log-hazards d apart, the larger hazard comes first with 1 / (1 + exp(-|d|))."""
    write_survival_run(tmp_path, folds=1, seeds=1, noise=0, patients=exponential_patients(3000, seed=6, censoring=0))
    found = evaluate_survival(tmp_path, resamples=20)
    apart = np.abs(np.sqrt(2) * np.random.default_rng(0).normal(size=400_000))
    assert found.metrics["c_index"].value == pytest.approx(np.mean(1 / (1 + np.exp(-apart))), abs=0.012)
    assert found.metrics["integrated_brier"].interval.high < found.metrics["reference_brier"].interval.low
    assert found.risk_groups.p < 1e-6


def test_noise_is_found_to_be_worse(tmp_path: Path) -> None:
    write_survival_run(tmp_path / "good", noise=0.2)
    write_survival_run(tmp_path / "bad", noise=5)
    good, bad = (evaluate_survival(tmp_path / name, resamples=20).metrics for name in ("good", "bad"))
    assert good["c_index"].value > bad["c_index"].value
    assert good["mean_auc"].value > bad["mean_auc"].value
    assert good["integrated_brier"].value < good["reference_brier"].value < bad["integrated_brier"].value


def test_the_integrated_brier_score_is_that_of_the_curves(tmp_path: Path) -> None:
    table = write_survival_run(tmp_path, folds=1, seeds=1)
    found = evaluate_survival(tmp_path, resamples=10)
    times = np.linspace(*found.window, 40)
    curves = np.stack([survival_between_bins(ENDS, values, times) for values in table["survival"]])
    wanted = integrated_brier_score(table["time"], table["event"], curves, times)
    assert found.metrics["integrated_brier"].value == pytest.approx(wanted)
    assert found.curves["brier"].mean[[0, -1]] == pytest.approx(
        [found.curves["brier"].per_training[0, 0][place] for place in (0, -1)]
    )


def test_the_same_seed_gives_the_same_numbers_in_any_order(tmp_path: Path) -> None:
    table = write_survival_run(tmp_path)
    first = evaluate_survival(tmp_path, resamples=40, seed=3)
    table.sample(frac=1, random_state=0).to_parquet(tmp_path / "predictions.parquet")
    again = evaluate_survival(tmp_path, resamples=40, seed=3)
    for name, metric in first.metrics.items():
        assert again.metrics[name].interval == pytest.approx(metric.interval)
    other = evaluate_survival(tmp_path, resamples=40, seed=4)
    assert other.metrics["c_index"].interval != first.metrics["c_index"].interval


def test_a_fold_without_comparable_pairs_is_named(tmp_path: Path) -> None:
    table = write_survival_run(tmp_path)
    table.loc[table["fold"] == 1, "event"] = 0
    table.to_parquet(tmp_path / "predictions.parquet")
    found = evaluate_survival(tmp_path, resamples=20)
    for part in ("fold 1 seed 0", "fold 1 seed 1", " 4 "):
        assert part in found.warnings[0]
    c_index = found.metrics["c_index"]
    assert np.isnan(c_index.per_training[1, 0])
    assert c_index.value == pytest.approx(np.nanmean(list(c_index.per_training.values())))
    assert not np.isnan(c_index.interval.low)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["metrics"]["c_index"]["per_fold"]["1"] is None


def test_without_events_there_is_nothing_to_measure(tmp_path: Path) -> None:
    table = write_survival_run(tmp_path)
    table.assign(event=0).to_parquet(tmp_path / "predictions.parquet")
    with pytest.raises(AsmilError, match="event"):
        evaluate_survival(tmp_path)
    table.assign(event=1, time=5.0).to_parquet(tmp_path / "predictions.parquet")
    with pytest.raises(AsmilError, match="C-index"):
        evaluate_survival(tmp_path)


@pytest.mark.parametrize("as_none", [False, True])
def test_risks_without_curves(tmp_path: Path, as_none: bool) -> None:
    table = write_survival_run(tmp_path, curves=False)
    if as_none:
        table.assign(survival_times=None, survival=None).to_parquet(tmp_path / "predictions.parquet")
    found = evaluate_survival(tmp_path, resamples=20)
    assert "no survival curves" in " ".join(found.warnings)
    assert np.isnan(found.metrics["integrated_brier"].value)
    assert found.metrics["integrated_brier"].skipped == 0
    assert found.metrics["mean_auc"].value > 0.6
    assert "brier" not in found.curves


def test_a_handful_of_patients(tmp_path: Path) -> None:
    write_survival_run(tmp_path, n=9, folds=3, seeds=1)
    found = evaluate_survival(tmp_path, resamples=50)
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.metrics["c_index"].skipped > 0
    skipped = found.metrics["c_index"].skipped
    assert any(f"C-index {skipped}" in warning for warning in found.warnings)


def test_times_and_groups_can_be_chosen(tmp_path: Path) -> None:
    write_survival_run(tmp_path)
    found = evaluate_survival(tmp_path, resamples=20, times=[24, 12], n_groups=3)
    assert list(found.auc_at) == [12, 24]
    assert 0.5 < found.auc_at[12].value < 1
    assert 0 < found.brier_at[24].value < 0.25
    assert [group.name for group in found.risk_groups.groups] == ["low risk", "middle risk", "high risk"]
    beyond = evaluate_survival(tmp_path, resamples=20, times=[12, 5000])
    assert np.isnan(beyond.auc_at[5000].value)
    assert "6 of 6 trainings" in " ".join(beyond.warnings)
    with pytest.raises(AsmilError, match="above 0"):
        evaluate_survival(tmp_path, times=[0])


def test_predictions_of_another_task_are_refused(tmp_path: Path) -> None:
    write_survival_run(tmp_path, config={"task": {"kind": "classification"}})
    with pytest.raises(AsmilError, match="'classification'"):
        evaluate_survival(tmp_path)


def _patient(**changes: object) -> object:
    def damage(table: pd.DataFrame) -> pd.DataFrame:
        for name, value in changes.items():
            table[name] = table[name].astype(object)
            table.at[3, name] = value
        return table.astype({"time": float, "event": int, "risk": float})

    return damage


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda table: table.drop(columns=["risk", "time"]), "columns time, risk"),
        (lambda table: pd.concat([table, table.tail(1)]), "p0119 .*twice"),
        (_patient(time=-1.0), r"p0009 \(fold 0, seed 0\) .*time"),
        (_patient(event=2), "p0009 .*event"),
        (_patient(risk=np.nan), "p0009 .*not finite"),
        (_patient(time=1.0), "p0009 "),
        (_patient(survival=[0.5] * 7), "p0009 .*survival curve"),
        (_patient(survival=[0.5] * 7 + [0.9]), "p0009 .*survival curve"),
        (lambda table: table.assign(role="val"), "`--role val`"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, damage: object, sentence: str) -> None:
    table = damage(write_survival_run(tmp_path))  # type: ignore[operator]
    table.to_parquet(tmp_path / "predictions.parquet")
    with pytest.raises(AsmilError, match=sentence):
        evaluate_survival(tmp_path)


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(AsmilError, match="'test'"):
        evaluate_survival(tmp_path, role="tests")  # type: ignore[arg-type]
    with pytest.raises(AsmilError, match="0 resamples"):
        evaluate_survival(tmp_path, resamples=0)
    with pytest.raises(AsmilError, match="nowhere"):
        evaluate_survival(tmp_path / "nowhere")
    write_survival_run(tmp_path)
    (tmp_path / "predictions.parquet").unlink()
    with pytest.raises(AsmilError, match="unfinished"):
        evaluate_survival(tmp_path)
