"""Intervals of values at the edge of their range, where a bootstrap collapses."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from asmil.evaluation import compare_runs, evaluate_run
from asmil.reporting.document import estimate_cell
from asmil.reporting.estimate import AT_THE_EDGE, TOO_FEW, Interval
from asmil.tasks.intervals import auc_interval, draw_patients, estimate, percentile_interval, proportion_interval
from asmil.tasks.weighted import binary_auc
from fake_compared_runs import THREE, TWO, write_compared_run


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (12, 12), (0, 30), (7, 20)])
def test_proportions_equal_scipy(successes: int, n: int) -> None:
    expected = binomtest(successes, n).proportion_ci(method="exact")
    assert tuple(proportion_interval(successes, n)) == pytest.approx((expected.low, expected.high))


def test_nobody_has_no_proportion() -> None:
    assert not proportion_interval(0, 0).is_defined
    assert not auc_interval(1.0, 5, 0).is_defined


@pytest.mark.parametrize("auc", [0.0, 0.3, 0.5, 0.93, 1.0])
def test_limits_of_an_auc_solve_its_equation(auc: float) -> None:
    m, n = 9, 14
    low, high = auc_interval(auc, m, n)
    assert 0 <= low <= auc <= high <= 1
    assert auc_interval(1 - auc, m, n) == pytest.approx((1 - high, 1 - low), abs=1e-6)
    for t in {low, high} - {0.0, 1.0}:
        spread = 1 + ((m + n) / 2 - 1) * ((1 - t) / (2 - t) + t / (1 + t))
        assert (auc - t) ** 2 == pytest.approx(norm.ppf(0.975) ** 2 * t * (1 - t) * spread / (m * n), abs=1e-9)


@pytest.mark.parametrize(("true", "n"), [(0.9, 6), (0.95, 8), (0.98, 12)])
def test_the_interval_of_a_perfect_auc_holds_its_level(true: float, n: int) -> None:
    rng, target = np.random.default_rng(0), np.repeat([False, True], n)
    draws = draw_patients(2 * n, 200, 0).astype(np.float64)
    shift = norm.ppf(true) * math.sqrt(2)
    plain, found = 0, 0
    for _ in range(200):
        score = rng.normal(size=2 * n) + shift * target
        auc = float(binary_auc(target, score, np.ones((1, 2 * n)))[0])
        samples = binary_auc(target, score, draws)
        low, high = percentile_interval(samples)
        plain += low <= true <= high
        low, high = estimate(auc, samples, at_edge=lambda auc=auc: auc_interval(auc, n, n)).interval
        found += low <= true <= high
    assert plain / 200 < 0.85
    assert found / 200 > 0.9


def test_without_an_interval_it_is_too_few_to_say() -> None:
    found = estimate(0.63, np.full(50, 0.63))
    assert found.how == TOO_FEW
    assert not found.interval.is_defined
    assert found.to_dict()["low"] is None
    assert not any(character.isdigit() for character in estimate_cell(found).interval)
    assert estimate(1.0, np.ones(50), at_edge=lambda: Interval(0.5, 1.0)).how == AT_THE_EDGE
    assert estimate(0.5, np.array([0.4, 0.6])).interval == pytest.approx((0.405, 0.595))


@pytest.mark.parametrize("classes", [TWO, THREE])
def test_a_perfect_run_is_not_certain(tmp_path: Path, classes: tuple[str, ...]) -> None:
    for name in ("a", "b"):
        write_compared_run(tmp_path / name, 40.0, classes, slides=24, slides_a_patient=2, noise_seed=ord(name))
    found = evaluate_run(tmp_path / "a", resamples=50)
    n_class = 12 // len(classes)
    exact = 0.025 ** (1 / n_class)
    assert found.metrics["accuracy"].interval == pytest.approx((0.025 ** (1 / 12), 1))
    assert found.metrics["macro_f1"].interval == pytest.approx((exact, 1))
    assert found.metrics["balanced_accuracy"].interval == pytest.approx((exact, 1))
    assert found.metrics["macro_auc"].interval == pytest.approx(tuple(auc_interval(1.0, n_class, 12 - n_class)))
    for row in found.classes:
        for name in ("precision", "recall", "f1"):
            assert row.metrics[name].interval == pytest.approx((exact, 1))
        assert row.metrics["specificity"].interval.low == pytest.approx(0.025 ** (1 / (12 - n_class)))
        assert row.metrics["ap"].how == TOO_FEW
    compared = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=50)
    for run in compared.runs:
        assert run.metrics["macro_auc"].interval == found.metrics["macro_auc"].interval
    for one in compared.differences:
        assert one.interval.low < -0.05
        assert one.interval.high > 0.05
        assert math.isnan(one.p)
        assert one.ensemble is not None
        assert tuple(one.ensemble.estimate.interval) == pytest.approx(tuple(one.interval))


def test_a_run_that_predicts_one_class_is_not_certain_either(tmp_path: Path) -> None:
    table = write_compared_run(tmp_path / "run", slides=24)
    table.assign(prob_normal=0.9, prob_tumor=0.1).to_parquet(tmp_path / "run" / "predictions.parquet")
    normal, tumor = evaluate_run(tmp_path / "run", resamples=50).classes
    assert normal.metrics["recall"].interval == pytest.approx((0.025 ** (1 / 12), 1))
    assert tumor.metrics["recall"].interval == pytest.approx((0, 1 - 0.025 ** (1 / 12)))
    assert tumor.metrics["f1"].interval.high > tumor.metrics["recall"].interval.high
    assert tumor.metrics["precision"].how == TOO_FEW  # no slide was predicted as tumor
    assert tumor.metrics["auc"].interval.low < 0.4 < 0.6 < tumor.metrics["auc"].interval.high
