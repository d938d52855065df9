from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import KaplanMeierFitter
from sklearn.metrics import brier_score_loss, roc_auc_score

from asmil.errors import AsmilError
from asmil.tasks.survival_metrics import (
    brier_score,
    censoring_curves,
    integrated_brier_score,
    survival_curves,
    time_dependent_auc,
    weighted_brier,
    weighted_dynamic_auc,
)
from fake_survival_run import exponential_patients

# small whole times: many patients leave at the same one
patients = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 1)), min_size=2, max_size=25)


def _arrays(drawn: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(drawn, dtype=float)
    return table[:, 0], table[:, 1]


def test_a_brier_score_by_hand() -> None:
    # one of three patients still followed at 2 is censored there, so G = 2/3 afterwards
    found = brier_score([1, 2, 3, 4], [1, 0, 1, 1], [0.2, 0.5, 0.6, 0.9], 2.5)
    assert found == pytest.approx((0.2**2 + 0.4**2 / (2 / 3) + 0.1**2 / (2 / 3)) / 4)


def test_an_auc_by_hand() -> None:
    # by 3.5 the first (weight 1, ranked above the last) and the third (weight 3/2, below it) had the event
    assert time_dependent_auc([1, 2, 3, 4], [1, 0, 1, 1], [3, 9, 1, 2], [3.5]) == pytest.approx([1 / 2.5])


def test_equal_risks_count_half() -> None:
    assert time_dependent_auc([1, 2, 3], [1, 1, 1], [1, 1, 1], [1.5]) == pytest.approx([0.5])


def test_without_censoring_they_are_the_plain_ones() -> None:
    rng = np.random.default_rng(3)
    time, risk = rng.exponential(10, 80), rng.normal(size=80).round(1)
    survival = rng.random(80)
    for t in (3.0, 8.0, 20.0):
        assert brier_score(time, np.ones(80), survival, t) == pytest.approx(brier_score_loss(time > t, survival))
        assert time_dependent_auc(time, np.ones(80), risk, t)[0] == pytest.approx(roc_auc_score(time <= t, risk))


@settings(max_examples=25, deadline=None)
@given(patients)
def test_the_curve_of_survival_is_lifelines(drawn: list[tuple[int, int]]) -> None:
    time, event = _arrays(drawn)
    at = np.arange(0, 8)
    wanted = KaplanMeierFitter().fit(time, event).survival_function_at_times(at).to_numpy()
    np.testing.assert_allclose(survival_curves(time, event).at(at)[0], wanted, atol=1e-12)


@given(patients)
def test_at_equal_times_events_come_before_censoring(drawn: list[tuple[int, int]]) -> None:
    """S(t) G(t) is the share still followed after t, whatever is tied: only then do the weights add up."""
    time, event = _arrays(drawn)
    at = np.arange(0, 8)
    product = survival_curves(time, event).at(at) * censoring_curves(time, event).at(at)
    np.testing.assert_allclose(product[0], (time[:, None] > at).mean(axis=0), atol=1e-12)


@given(patients, st.floats(0, 1), st.integers(0, 5))
def test_one_curve_for_all_has_the_score_that_kaplan_meier_says(
    drawn: list[tuple[int, int]], survival: float, t: int
) -> None:
    time, event = _arrays(drawn)
    if censoring_curves(time, event).at(t)[0, 0] == 0:
        return
    alive = survival_curves(time, event).at(t)[0, 0]
    wanted = survival**2 * (1 - alive) + (1 - survival) ** 2 * alive
    assert brier_score(time, event, np.full(len(time), survival), t) == pytest.approx(wanted, abs=1e-12)


@given(st.lists(st.integers(0, 3), min_size=12, max_size=12).filter(any))
def test_weights_are_repetitions(counts: list[int]) -> None:
    patients = exponential_patients(12, seed=4)
    time, event = patients["time"].to_numpy().round(-1), patients["event"].to_numpy(dtype=float)
    risk = patients["log_risk"].to_numpy().round(0)
    times = np.array([15.0, 25.0, 45.0])
    survival = np.exp(-np.outer(patients["hazard"], times))
    weights, repeated = np.array([counts], dtype=float), np.repeat(np.arange(12), counts)
    censoring = censoring_curves(time, event, weights)
    own_g, g = censoring.before(time), censoring.at(times)
    auc = weighted_dynamic_auc(time, event, risk, times, weights, own_g)[0]
    wanted = time_dependent_auc(time[repeated], event[repeated], risk[repeated], times)
    np.testing.assert_allclose(auc, wanted)
    brier = weighted_brier(time, event, survival, times, weights, own_g, g)[0]
    for column, t in enumerate(times):
        if np.isnan(brier[column]):
            with pytest.raises(AsmilError, match=f"longer than t = {t:g}"):
                brier_score(time[repeated], event[repeated], survival[repeated, column], t)
        else:
            assert brier[column] == pytest.approx(
                brier_score(time[repeated], event[repeated], survival[repeated, column], t)
            )


def test_the_true_curves_have_the_lowest_score() -> None:
    patients = exponential_patients(1500, seed=1)
    time, event, hazard = (patients[name].to_numpy(dtype=float) for name in ("time", "event", "hazard"))
    times = np.linspace(3, 60, 30)
    true = integrated_brier_score(time, event, np.exp(-np.outer(hazard, times)), times)
    flattened = integrated_brier_score(time, event, np.exp(-np.outer(hazard**0.3 * 0.02**0.7, times)), times)
    reference = integrated_brier_score(time, event, np.repeat(survival_curves(time, event).at(times), 1500, 0), times)
    assert true < flattened < reference < 0.25


def test_weighting_removes_what_censoring_does() -> None:
    """The same patients with and without censoring: the weighted scores agree, up to chance."""
    whole = exponential_patients(6000, seed=2, censoring=0)
    left = np.random.default_rng(9).exponential(40, 6000)
    time, event = np.minimum(whole["time"], left), (whole["time"] <= left).to_numpy(dtype=float)
    survival = np.exp(-20 * whole["hazard"].to_numpy())
    everyone = np.ones(6000)
    assert brier_score(time, event, survival, 20) == pytest.approx(
        brier_score(whole["time"], everyone, survival, 20), abs=0.006
    )
    np.testing.assert_allclose(
        time_dependent_auc(time, event, whole["log_risk"], [10, 40]),
        time_dependent_auc(whole["time"], everyone, whole["log_risk"], [10, 40]),
        atol=0.012,
    )


def test_the_censoring_of_other_patients_can_be_given() -> None:
    nobody_leaves = censoring_curves(np.array([1.0, 2.0]), np.ones(2))
    found = brier_score([1, 2, 3], [1, 0, 1], [0.0, 0.5, 1.0], 2.5, censoring=nobody_leaves)
    assert found == 0


def test_an_integral_is_a_mean_over_time() -> None:
    time, event = np.array([10.0, 20.0]), np.ones(2)
    survival = np.array([[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]])
    assert integrated_brier_score(time, event, survival, [1, 2, 9]) == pytest.approx(0.25)


def test_what_is_undefined_is_nan_or_told() -> None:
    assert np.isnan(time_dependent_auc([2, 3], [1, 1], [0, 1], [1, 5])).all()
    with pytest.raises(AsmilError, match="longer than t = 9"):
        brier_score([1, 2], [1, 0], [0.5, 0.5], 9)
    with pytest.raises(AsmilError, match="risk"):
        time_dependent_auc([1, 2], [1, 1], [np.nan, 1], [1.5])
    short = censoring_curves(np.array([1.0, 2.0]), np.zeros(2))
    with pytest.raises(AsmilError, match="censoring"):
        time_dependent_auc([1, 3, 5], [1, 1, 1], [2, 1, 0], [4], censoring=short)
    with pytest.raises(AsmilError, match="risks"):
        time_dependent_auc([1, 2], [1, 1], [0], [1.5])
    with pytest.raises(AsmilError, match="event"):
        time_dependent_auc([1, 2], [1], [0, 1], [1.5])
    with pytest.raises(AsmilError, match=r"event .*patient 1 .* 2"):
        brier_score([1, 2], [1, 2], [0.5, 0.5], 1)
    with pytest.raises(AsmilError, match=r"survival: .* 0, 0 "):
        brier_score([1, 2], [1, 1], [np.nan, 0.5], 1)
    with pytest.raises(AsmilError, match="each of 2 times"):
        brier_score([1, 2], [1, 1], [0.5], 1)
    with pytest.raises(AsmilError, match="must increase"):
        integrated_brier_score([1, 2], [1, 1], np.ones((2, 2)), [2, 1])
