from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

from asmil.errors import AsmilError
from asmil.evaluation import evaluate_run
from asmil.evaluation.comparison import compare_runs, write_comparison
from asmil.evaluation.report import evaluation_document, write_report
from asmil.reporting import print_document
from asmil.tasks.multilabel import measure_labels
from asmil.tasks.regression import measure_values, r_squared
from parsed_page import Page

counts = st.lists(st.integers(0, 3), min_size=14, max_size=14).filter(
    lambda drawn: sum(value > 0 for value in drawn) > 3
)
LABELS = ("gland", "<b>necrosis")


def _write_run(path: Path, kind: str, table: pd.DataFrame) -> pd.DataFrame:
    path.mkdir(parents=True, exist_ok=True)
    task: dict[str, Any] = {"kind": kind}
    if kind == "multilabel":
        task["classes"] = list(LABELS)
    config = {"method": "abmil", "preset": "common", "task": task, "training": {"select": "last"}}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    table.to_parquet(path / "predictions.parquet")
    return table


def _keys(n: int = 60, folds: int = 2, seeds: int = 2) -> pd.DataFrame:
    slides = pd.DataFrame({"slide": [f"s{i}" for i in range(n)], "patient": [f"p{i // 2}" for i in range(n)]})
    slides["fold"], slides["role"] = np.arange(n) // 2 % folds, "test"
    return pd.concat([slides.assign(seed=seed) for seed in range(seeds)], ignore_index=True)


def _regression_run(path: Path, noise: float = 0.5) -> pd.DataFrame:
    rng, table = np.random.default_rng(1), _keys()
    truth = dict(zip(table["slide"].unique(), rng.normal(size=60), strict=True))
    table["target"] = table["slide"].map(truth)
    table["value"] = table["target"] + noise * rng.normal(size=len(table))
    return _write_run(path, "regression", table)


def _multilabel_run(path: Path) -> pd.DataFrame:
    rng, table = np.random.default_rng(2), _keys()
    for label, share in zip(LABELS, (0.5, 0.3), strict=True):
        truth = dict(zip(table["slide"].unique(), (rng.random(60) < share).astype(int), strict=True))
        table[f"target_{label}"] = table["slide"].map(truth)
        table[f"prob_{label}"] = (0.3 + 0.3 * table[f"target_{label}"] + 0.2 * rng.normal(size=120)).clip(0, 1).round(2)
    return _write_run(path, "multilabel", table)


def test_regression_is_judged_a_seed_at_a_time(tmp_path: Path) -> None:
    table = _regression_run(tmp_path)
    found = evaluate_run(tmp_path, resamples=50)
    seeds = [part for _, part in table.groupby("seed")]
    wanted = {
        "mae": mean_absolute_error,
        "rmse": root_mean_squared_error,
        "r2": r2_score,
        "pearson": lambda y, v: pearsonr(y, v).statistic,
        "spearman": lambda y, v: spearmanr(y, v).statistic,
    }
    for name, function in wanted.items():
        values = [function(part["target"], part["value"]) for part in seeds]
        metric = found.metrics[name]
        assert metric.value == pytest.approx(np.mean(values))
        assert list(metric.per_seed.values()) == pytest.approx(values)
        assert metric.interval.low < metric.value < metric.interval.high
    one = table[(table["fold"] == 1) & (table["seed"] == 0)]
    assert found.metrics["r2"].per_training[1, 0] == pytest.approx(r2_score(one["target"], one["value"]))


@given(counts)
def test_weights_are_repetitions_of_values(drawn: list[int]) -> None:
    rng = np.random.default_rng(0)
    target, value = rng.integers(0, 5, 14).astype(float), rng.integers(0, 6, 14).astype(float)
    weights, repeated = np.array([drawn], dtype=float), np.repeat(np.arange(14), drawn)
    found = measure_values(target, value[:, None], weights)
    plain = measure_values(target[repeated], value[repeated, None], np.ones((1, len(repeated))))
    for name, values in found.items():
        np.testing.assert_allclose(values, plain[name], atol=1e-9, err_msg=name)
    if np.ptp(target[repeated]) and np.ptp(value[repeated]):
        assert found["spearman"][0] == pytest.approx(spearmanr(target[repeated], value[repeated]).statistic)


def test_equal_targets_have_errors_but_no_correlation() -> None:
    found = measure_values(np.full(4, 0.1), np.arange(4.0)[:, None], np.ones((1, 4)))
    assert found["mae"][0] == pytest.approx(np.abs(np.arange(4) - 0.1).mean())
    assert np.isnan([found["r2"][0], found["pearson"][0], found["spearman"][0]]).all()


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e7])
def test_r2_does_not_depend_on_the_unit_of_the_target(tmp_path: Path, scale: float) -> None:
    rng = np.random.default_rng(3)
    target = rng.normal(size=30)
    value = target + 0.3 * rng.normal(size=30)
    wanted = r2_score(target, value)
    assert r_squared(scale * target, scale * value) == pytest.approx(wanted)
    weights = rng.integers(0, 3, (4, 30)).astype(float)
    drawn = measure_values(scale * target, scale * value[:, None], weights)["r2"]
    assert drawn == pytest.approx(measure_values(target, value[:, None], weights)["r2"])


def test_equal_targets_have_no_r2_whatever_their_size() -> None:
    for target in (np.full(3, 0.1), np.full(7, 1e-7), np.full(5, 12345.678)):
        assert np.isnan(r_squared(target, np.arange(len(target), dtype=float)))


def test_an_option_that_does_not_apply_is_reported(tmp_path: Path) -> None:
    _regression_run(tmp_path)
    assert not evaluate_run(tmp_path, resamples=10).warnings
    assert "--threshold f1" in evaluate_run(tmp_path, resamples=10, threshold_rule="f1").warnings[0]


def test_labels_are_judged_one_by_one(tmp_path: Path) -> None:
    table = _multilabel_run(tmp_path)
    found = evaluate_run(tmp_path, resamples=50)
    by_label = {row.name: row for row in found.classes}
    seeds = [part for _, part in table.groupby("seed")]
    for label in LABELS:
        truth, score = f"target_{label}", f"prob_{label}"
        values = {
            "auc": [roc_auc_score(part[truth], part[score]) for part in seeds],
            "ap": [average_precision_score(part[truth], part[score]) for part in seeds],
            "f1": [f1_score(part[truth], part[score] >= 0.5) for part in seeds],
        }
        for name, wanted in values.items():
            assert by_label[label].metrics[name].value == pytest.approx(np.mean(wanted))
        assert by_label[label].support == seeds[0][truth].sum()
    for mean, name in (("macro_auc", "auc"), ("macro_f1", "f1"), ("mean_ap", "ap")):
        assert found.metrics[mean].value == pytest.approx(np.mean([row.metrics[name].value for row in found.classes]))


@given(counts)
def test_weights_are_repetitions_of_labels(drawn: list[int]) -> None:
    rng = np.random.default_rng(0)
    present, scores = rng.random((14, 2)) < 0.5, rng.integers(0, 5, (14, 2)) / 4
    weights, repeated = np.array([drawn], dtype=float), np.repeat(np.arange(14), drawn)
    plain = measure_labels(present[repeated], scores[repeated], np.ones((1, len(repeated))))
    for name, values in measure_labels(present, scores, weights).items():
        np.testing.assert_allclose(values, plain[name], err_msg=name)


def test_a_label_that_nobody_has(tmp_path: Path) -> None:
    table = _multilabel_run(tmp_path)
    table.assign(**{f"target_{LABELS[1]}": 0}).to_parquet(tmp_path / "predictions.parquet")
    found = evaluate_run(tmp_path, resamples=20)
    assert np.isnan(found.classes[1].metrics["auc"].value)
    assert found.metrics["macro_auc"].value == pytest.approx(found.classes[0].metrics["auc"].value)
    json.dumps(found.to_dict(), allow_nan=False)


def test_unknown_labels_are_left_out_of_metrics_reports_and_comparisons(tmp_path: Path) -> None:
    table = _multilabel_run(tmp_path / "m")
    _multilabel_run(tmp_path / "n")
    columns = {f"target_{name}": table[f"target_{name}"].astype(float) for name in LABELS}
    for place, column in enumerate(columns.values()):
        column[table["slide"].str[1:].astype(int) % 4 == place] = np.nan
    for name in ("m", "n"):
        table.assign(**columns).to_parquet(tmp_path / name / "predictions.parquet")
    found = evaluate_run(tmp_path / "m", resamples=20)
    for part, name in zip(found.classes, LABELS, strict=True):
        known = table.assign(**columns).dropna(subset=f"target_{name}")
        each = [roc_auc_score(rows[f"target_{name}"], rows[f"prob_{name}"]) for _, rows in known.groupby("seed")]
        assert part.metrics["auc"].value == pytest.approx(np.mean(each))
        assert part.support == int(known.drop_duplicates("slide")[f"target_{name}"].sum())
    write_report([found], tmp_path / "out")
    compared = compare_runs([tmp_path / "m", tmp_path / "n"], resamples=20)
    assert len(compared.differences) == 2
    write_comparison(compared, tmp_path / "compared")


def test_reports(tmp_path: Path) -> None:
    _regression_run(tmp_path / "r")
    _multilabel_run(tmp_path / "m")
    regression = evaluate_run(tmp_path / "r", resamples=20)
    multilabel = evaluate_run(tmp_path / "m", resamples=20)
    page = write_report(regression)
    assert page == tmp_path / "r" / "report.html"
    assert Page(page.read_text()).pictures
    assert json.loads((tmp_path / "r" / "evaluation.json").read_text())["task"] == "regression"
    words = " ".join(Page(write_report([multilabel], tmp_path / "out").read_text()).words)
    assert LABELS[1] in words
    assert "training.select: last" in words
    assert (tmp_path / "out" / "metrics.json").is_file()
    for evaluation in (regression, multilabel):
        console = Console(width=120, file=StringIO())
        print_document(evaluation_document([evaluation]), console)
        assert "60 slides of 30 patients" in console.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(AsmilError, match="--out"):
        write_report([regression, regression])
    with pytest.raises(AsmilError, match="nothing to report"):
        write_report([])


def test_one_report_is_of_one_task(tmp_path: Path) -> None:
    _regression_run(tmp_path / "r")
    _multilabel_run(tmp_path / "m")
    with pytest.raises(AsmilError, match=r"m .*multilabel.*regression"):
        evaluation_document([evaluate_run(tmp_path / name, resamples=10) for name in ("r", "m")])


def test_folds_that_share_slides_are_judged_one_by_one(tmp_path: Path) -> None:
    table = _regression_run(tmp_path)
    table.assign(fold=table["seed"], seed=0).to_parquet(tmp_path / "predictions.parquet")
    found = evaluate_run(tmp_path, resamples=20)
    assert not found.folds_joined
    assert "share slides" in evaluation_document([found]).first_warnings[0]
    assert found.metrics["r2"].value == pytest.approx(np.mean(list(found.metrics["r2"].per_training.values())))


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    table = _regression_run(tmp_path)
    with pytest.raises(AsmilError, match="--unit patient"):
        evaluate_run(tmp_path, unit="patient")
    with pytest.raises(AsmilError, match=r"val.*test"):
        evaluate_run(tmp_path, role="val")
    with pytest.raises(AsmilError, match="'test'"):
        evaluate_run(tmp_path, role="tests")  # type: ignore[arg-type]
    with pytest.raises(AsmilError, match="0 resamples"):
        evaluate_run(tmp_path, resamples=0)
    table.assign(target=np.nan).to_parquet(tmp_path / "predictions.parquet")
    with pytest.raises(AsmilError, match=r"slide s0 .*target"):
        evaluate_run(tmp_path)
    labels = _multilabel_run(tmp_path)
    labels.assign(target_gland=2).to_parquet(tmp_path / "predictions.parquet")
    with pytest.raises(AsmilError, match=r"slide s0 .*target_gland"):
        evaluate_run(tmp_path)
