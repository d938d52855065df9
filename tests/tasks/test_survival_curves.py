from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from asmil.errors import AsmilError
from asmil.tasks.survival_curves import (
    hazards,
    mean_curve,
    mean_survival_time,
    risk,
    survival_at,
    survival_from_hazards,
    survival_from_incidence,
)


def test_survival_is_the_product_of_not_dying():
    logits = torch.tensor([[-1.0, 0.5, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    survival = survival_from_hazards(logits)
    torch.testing.assert_close(survival, (1 - hazards(logits)).cumprod(dim=1))
    torch.testing.assert_close(survival[1], torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64))
    torch.testing.assert_close(risk(survival)[1], torch.tensor(-0.875, dtype=torch.float64))


def test_higher_hazards_are_a_higher_risk_and_large_logits_stay_finite():
    low, high = (risk(survival_from_hazards(torch.full((4,), value))) for value in (-1.0, 1.0))
    assert high > low
    extreme = survival_from_hazards(torch.tensor([-200.0, 60.0, 200.0]))
    assert torch.isfinite(extreme).all()
    assert 0 < extreme[1] < 1e-20


def test_incidences_leave_nobody_alive():
    logits = torch.randn(5, 4, dtype=torch.float64)
    survival = survival_from_incidence(logits)
    torch.testing.assert_close(survival, 1 - logits.softmax(1).cumsum(1))
    assert torch.equal(survival[:, -1], torch.zeros(5, dtype=torch.float64))
    assert (survival.diff(dim=1) <= 0).all()
    assert float(survival_from_incidence(torch.tensor([60.0, 0.0]))[0]) == pytest.approx(np.exp(-60.0), rel=1e-5)


def integrated(curve, starts):
    """The definition, by numerical integration."""
    zeros = np.flatnonzero(np.asarray(curve) == 0)
    slope = (curve[-1] - 1) / starts[-1]
    end = starts[zeros[0]] if len(zeros) else -1 / slope

    def value(t):
        return np.interp(t, starts, curve) if t < starts[-1] else 1 + slope * t

    return quad(value, 0, end, points=[t for t in starts if 0 < t < end] or None, limit=500)[0]


@given(
    st.lists(st.floats(0.01, 0.99), min_size=2, max_size=6),
    st.lists(st.floats(0.5, 20), min_size=7, max_size=7),
    st.booleans(),
)
@settings(deadline=None, max_examples=50)
def test_mean_time_is_the_area(values, widths, reaches_zero):
    curve = np.sort(values)[::-1].copy()
    if reaches_zero:
        curve[-1] = 0.0
    edges = np.concatenate([[0.0], np.cumsum(widths)])[: len(curve) + 1]
    assert mean_survival_time(curve, edges)[0] == pytest.approx(integrated(curve, edges[:-1]), rel=1e-6)


def test_mean_time_by_hand():
    edges = [0.0, 10.0, 20.0, 99.0]
    found = mean_survival_time([[0.8, 0.4, 0.0], [0.8, 0.4, 0.2], [0.5, 0.0, 0.0], [1.0, 1.0, 1.0]], edges)
    # S_0/2 + S_1 of width 10; then the triangle of height 0.2 from 20 to 20 / 0.8
    np.testing.assert_allclose(found, [8.0, 9.0 + 0.2 * 5 / 2, 2.5, np.inf])


def test_mean_time_needs_two_bins():
    with pytest.raises(AsmilError, match="time bins"):
        mean_survival_time([[0.5]], [0.0, 3.0])


def test_a_step_curve_holds_from_its_times_on():
    found = survival_at([1.0, 2.0], [[0.8, 0.5], [0.4, 0.0]], [0.0, 0.999, 1.0, 1.5, 2.0, 50.0])
    np.testing.assert_array_equal(found, [[1, 1, 0.8, 0.8, 0.5, 0.5], [1, 1, 0.4, 0.4, 0, 0]])


def test_curves_of_models_with_other_bins_are_averaged_on_all_times():
    times, survival = mean_curve([[1.0, 3.0], [2.0, 3.0]], [[0.8, 0.2], [0.6, 0.4]])
    np.testing.assert_array_equal(times, [1, 2, 3])
    np.testing.assert_allclose(survival, [0.9, 0.7, 0.3])
    with pytest.raises(AsmilError, match="0 lists of times"):
        mean_curve([], [])
