"""Calibration intercept, slope and curve, against scikit-learn and by their definitions; heterogeneity of groups."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import chi2
from sklearn.linear_model import LogisticRegression

from asmil.evaluation import calibration_curves, calibration_intercepts, calibration_slopes, heterogeneity


@pytest.fixture(scope="module")
def patients():
    draw = np.random.default_rng(3)
    p = expit(2 * draw.standard_normal(400))
    outcome = (draw.random(400) < expit(0.4 + 0.6 * logit(p))).astype(float)
    return outcome, p, draw.integers(0, 4, (5, 400)).astype(float)


def test_intercept_and_slope_under_weights(patients):
    outcome, p, weights = patients
    for row, slope, intercept in zip(
        weights, calibration_slopes(*patients), calibration_intercepts(*patients), strict=True
    ):
        fitted = LogisticRegression(C=np.inf, tol=1e-10).fit(logit(p)[:, None], outcome, sample_weight=row)
        assert slope == pytest.approx(fitted.coef_[0, 0], abs=1e-4)
        root = brentq(lambda a, row=row: (row * (outcome - expit(a + logit(p)))).sum(), -5, 5)
        assert intercept == pytest.approx(root, abs=1e-7)


def test_the_curve_follows_the_truth_and_is_fitted_by_likelihood(patients):
    outcome, p, _ = patients
    at = np.linspace(0.1, 0.9, 9)
    ones = np.ones((1, len(p)))
    curve = calibration_curves(outcome, p, ones, at)[0]
    np.testing.assert_allclose(curve, expit(0.4 + 0.6 * logit(at)), atol=0.12)
    # a logistic regression with an intercept predicts as many events as there are
    assert calibration_curves(outcome, p, ones, p)[0].sum() == pytest.approx(outcome.sum(), abs=1e-4)


def test_what_is_undefined_is_nan():
    p, ones = np.array([0.1, 0.2, 0.3, 0.7, 0.8, 1.0]), np.ones((1, 6))
    assert np.isnan(calibration_slopes((p > 0.5).astype(float), p, ones)).all()  # perfectly separated
    assert np.isnan(calibration_intercepts(np.zeros(6), p, ones)).all()
    assert np.isnan(calibration_slopes(np.array([0.0, 1, 0, 1, 0, 1]), np.full(6, 0.5), ones)).all()
    extreme = np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    slope = calibration_slopes(np.array([0.0, 1, 0, 1, 0, 1, 0, 1]), extreme, np.ones((1, 8)))
    assert slope[0] == pytest.approx(np.log(3) / logit(1 - 1e-7), abs=1e-4)


def test_heterogeneity_has_the_size_of_chi_square():
    draw = np.random.default_rng(0)
    sizes = np.array([50.0, 8.0, 22.0])
    errors = 0.14 / np.sqrt(sizes)
    found = [heterogeneity(0.8 + draw.standard_normal(3) * errors, errors, sizes) for _ in range(400)]
    assert 0.02 < np.mean([test.p < 0.05 for test in found]) < 0.09
    assert found[0].p == pytest.approx(chi2.sf(found[0].q, 2))
