"""Comparisons of survival, regression and multi-label runs: their own measures, intervals, no ensemble tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, mean_absolute_error, r2_score, roc_auc_score

from asmil.errors import AsmilError
from asmil.evaluation.comparison import compare_runs
from asmil.tasks.concordance import concordance
from asmil.tasks.prediction_format import prediction_format
from fake_compared_runs import write_compared_run, write_tables
from fake_survival_run import exponential_patients, write_survival_run


def test_survival_runs_are_compared_by_the_c_index_of_their_folds(tmp_path: Path) -> None:
    patients = exponential_patients(90)
    tables = [
        write_survival_run(tmp_path / name, noise=noise, patients=patients)
        for name, noise in (("sharp", 0.2), ("dull", 4.0))
    ]
    found = compare_runs([tmp_path / "sharp", tmp_path / "dull"], resamples=100)
    values = [
        np.mean([concordance(part["time"], part["event"], part["risk"]) for _, part in table.groupby(["fold", "seed"])])
        for table in tables
    ]
    assert [method.metrics["c_index"].value for method in found.runs] == pytest.approx(values)
    (one,) = found.differences
    assert one.value == pytest.approx(values[1] - values[0])
    assert one.interval.high < 0
    assert one.ensemble is None
    assert (found.family, found.ensemble_family) == (1, 0)
    assert one.p < 0.1
    assert not found.folds_joined


def test_the_t_test_over_folds_counts_patients(tmp_path: Path) -> None:
    patients = exponential_patients(60)
    for name, noise in (("a", 0.2), ("b", 2.0)):
        write_survival_run(tmp_path / name, noise=noise, patients=patients, seeds=1)
        splits = [
            {"slide": f"{row.patient}-{k}", "patient": row.patient, "fold": fold}
            | {"role": "test" if place % 3 == fold else "train"}
            for fold in range(3)
            for place, row in enumerate(patients.itertuples())
            for k in range(2)
        ]
        pd.DataFrame(splits).to_csv(tmp_path / name / "splits.csv", index=False)
    test = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=20).differences[0].folds
    assert test is not None
    assert (test.n_train, test.n_test) == (40, 20)
    assert 0 < test.p < 1


def test_regression_runs_are_compared_by_error_and_r2(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(size=50)
    tables = []
    for name, noise in (("near", 0.3), ("far", 1.5)):
        rows = [
            pd.DataFrame(
                {
                    "slide": [f"s{i}" for i in range(50)],
                    "patient": [f"p{i // 2}" for i in range(50)],
                    "fold": 0,
                    "seed": seed,
                    "role": "test",
                    "target": target,
                    "value": target + noise * rng.normal(size=50),
                }
            )
            for seed in (0, 1)
        ]
        tables.append(write_tables(tmp_path / name, pd.concat(rows), {"kind": "regression"}, None))
    found = compare_runs([tmp_path / "near", tmp_path / "far"], resamples=100)
    for table, method in zip(tables, found.runs, strict=True):
        parts = [part for _, part in table.groupby("seed")]
        mae = np.mean([mean_absolute_error(part["target"], part["value"]) for part in parts])
        r2 = np.mean([r2_score(part["target"], part["value"]) for part in parts])
        assert method.metrics["mae"].value == pytest.approx(mae)
        assert method.metrics["r2"].value == pytest.approx(r2)
    mae, r2 = found.differences
    assert mae.interval.low > 0
    assert r2.interval.high < 0
    assert found.best(mae.metric) == found.best(r2.metric) == {"near"}


def test_multilabel_runs(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    present = rng.integers(0, 2, (40, 2))
    keys = {"slide": [f"s{i}" for i in range(40)], "patient": [f"p{i}" for i in range(40)]}
    tables = []
    for name, strength in (("a", 0.5), ("b", 3.0)):
        probabilities = 1 / (1 + np.exp(-strength * (2 * present - 1) - rng.normal(size=(40, 2))))
        columns = {f"target_{label}": present[:, i] for i, label in enumerate("xy")}
        columns |= {f"prob_{label}": probabilities[:, i] for i, label in enumerate("xy")}
        table = pd.DataFrame(keys | {"fold": 0, "seed": 0, "role": "test"} | columns)
        tables.append(write_tables(tmp_path / name, table, {"kind": "multilabel", "classes": ["x", "y"]}, None))
    found = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=50)
    for table, method in zip(tables, found.runs, strict=True):
        probabilities = table[["prob_x", "prob_y"]].to_numpy()
        assert method.metrics["macro_auc"].value == pytest.approx(roc_auc_score(present, probabilities))
        expected = f1_score(present, probabilities >= 0.5, average="macro")
        assert method.metrics["macro_f1"].value == pytest.approx(expected)
    assert all(one.value > 0 for one in found.differences)


def test_runs_of_two_tasks_are_refused(tmp_path: Path) -> None:
    write_compared_run(tmp_path / "a")
    write_survival_run(tmp_path / "b")
    with pytest.raises(AsmilError, match=r"survival.*classification"):
        compare_runs([tmp_path / "a", tmp_path / "b"])


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_weights_are_repetitions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 12))
    counts = rng.integers(0, 4, n)
    counts[:2] = 1
    drawn = np.repeat(np.arange(n), counts)
    outcome = np.stack([rng.integers(1, 9, n), rng.integers(0, 2, n)], axis=1).astype(float)
    classes = np.r_[0, 1, rng.integers(0, 3, n - 2)]
    labels = rng.integers(0, 2, (n, 3))
    probabilities = rng.random((n, 3)).round(1)
    value = rng.normal(size=(n, 1)).round(1)
    cases = {
        "classification": (classes, probabilities),
        "survival": (outcome, value),
        "regression": (outcome[:, 0], value),
        "multilabel": (labels, probabilities),
    }
    for kind, (truth, prediction) in cases.items():
        for metric in prediction_format(kind, ("a", "b", "c")).compared:
            weighted = metric.function(truth, prediction, counts[None].astype(float))
            repeated = metric.function(truth[drawn], prediction[drawn], np.ones((1, len(drawn))))
            np.testing.assert_allclose(weighted, repeated, rtol=1e-9, atol=1e-12, err_msg=metric.name)
