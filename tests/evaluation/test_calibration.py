"""Calibration: reliability, ECE and the fitted temperature."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.errors import AsmilError
from asmil.tasks.calibration import (
    brier_score,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    reliability,
    scale_probabilities,
)


def drawn(temperature: float, n: int = 4000, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Targets drawn from softmax(z), and the probabilities softmax(z * temperature): over-confident above 1."""
    draw = np.random.default_rng(7)
    logits = draw.normal(scale=1.5, size=(n, classes))
    true = scale_probabilities(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), 1.0)
    target = np.array([draw.choice(classes, p=row) for row in true])
    return target, scale_probabilities(true, 1 / temperature)


def test_bins_by_hand() -> None:
    probabilities = np.array([[0.95, 0.05], [0.92, 0.08], [0.4, 0.6], [0.5, 0.5], [1.0, 0.0]])
    found = reliability(np.array([0, 1, 1, 0, 0]), probabilities, bins=10)
    assert found.count.tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 3]
    assert found.accuracy[9] == pytest.approx(2 / 3)
    assert found.confidence[9] == pytest.approx((0.95 + 0.92 + 1) / 3)
    by_hand = (1 * abs(1 - 0.5) + 1 * abs(1 - 0.6) + 3 * abs(2 / 3 - (0.95 + 0.92 + 1) / 3)) / 5
    assert found.ece == pytest.approx(by_hand)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_that_spoiled_the_probabilities_is_found(temperature: float) -> None:
    target, probabilities = drawn(temperature)
    found = fit_temperature(target, probabilities)
    assert found == pytest.approx(temperature, rel=0.1)
    scaled = scale_probabilities(probabilities, found)
    assert negative_log_likelihood(target, scaled) <= negative_log_likelihood(target, probabilities)
    assert expected_calibration_error(target, scaled) < 0.03


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 10), st.integers(2, 5), st.integers(0, 1000))
def test_a_temperature_changes_no_order(temperature: float, classes: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    probabilities = draw.dirichlet(np.ones(classes), size=6)
    scaled = scale_probabilities(probabilities, temperature)
    assert np.allclose(scaled.sum(axis=1), 1)
    assert (np.argsort(scaled, axis=1) == np.argsort(probabilities, axis=1)).all()


def test_certain_and_right_slides_keep_the_temperature_in_its_range() -> None:
    target = np.array([0, 1, 0, 1])
    probabilities = np.eye(2)[target]
    assert 0.05 <= fit_temperature(target, probabilities) <= 20
    assert np.isfinite(scale_probabilities(probabilities, 0.05)).all()
    assert brier_score(target, probabilities) == 0
    assert brier_score(target, 1 - probabilities) == 2


def test_without_slides_there_is_no_temperature() -> None:
    with pytest.raises(AsmilError, match="needs validation slides"):
        fit_temperature(np.zeros(0, int), np.zeros((0, 2)))
