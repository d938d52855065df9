"""Theorem 1 of the paper in float64: what holds, what is attained, and what is refuted."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asmil.attention import NSF, kl, kl_to_softmax, log_nsf, log_softmax, nsf, softmax
from asmil.attention.theorem import (
    highest_temperature,
    highest_temperature_as_printed,
    lowest_temperature,
    nsf_low_bound,
    nsf_ratio_bound,
)

ROUNDING = 1e-12
taus, gammas, counts = st.floats(0.05, 20), st.floats(0, 10), st.integers(1, 60)
places = st.floats(0, 1)


def scores(*values):
    return torch.tensor([score for part in values for score in part], dtype=torch.float64)


def ratio(weights):
    return float(weights.max() / weights.min())


def low_weight(tau, highs, temperature, others=()):
    """Of one low at -tau under softmax, beside highs at tau: the largest that the premise allows."""
    return float(softmax(scores([-tau], [tau] * highs, others), temperature)[0])


@settings(max_examples=300)
@given(taus, gammas, st.lists(places, min_size=1, max_size=40), st.lists(places, min_size=1, max_size=40))
def test_nsf_keeps_its_bounds(tau, gamma, high_places, low_places):
    highs = [tau + gamma * place for place in high_places]
    lows = [-tau - 30 * place for place in low_places]
    weights = nsf(scores(highs, lows))
    among_highs, among_lows = weights[: len(highs)], weights[len(highs) :]
    assert ratio(among_highs) <= nsf_ratio_bound(tau, gamma) * (1 + ROUNDING)
    assert nsf_ratio_bound(tau, gamma) <= nsf_ratio_bound(tau) == 1 + math.exp(-tau)
    assert float(among_lows.max()) <= nsf_low_bound(tau, len(highs)) * (1 + ROUNDING)


@given(taus, gammas, st.integers(2, 60))
def test_the_ratio_bound_of_nsf_is_attained_at_the_ends(tau, gamma, highs):
    weights = nsf(scores([tau + gamma], [tau] * (highs - 1)))
    assert ratio(weights) == pytest.approx(nsf_ratio_bound(tau, gamma), rel=ROUNDING)


@given(taus, st.integers(1, 10_000))
def test_the_low_bound_of_nsf_is_approached_with_many_highs(tau, highs):
    """One low at -tau has e^-tau / (h + e^-tau), so the bound is short by the factor 1 + bound."""
    found = float(nsf(scores([tau] * highs, [-tau]))[-1])
    bound = nsf_low_bound(tau, highs)
    assert found == pytest.approx(bound / (1 + bound), rel=1e-9)


def test_the_low_bound_is_for_one_low_and_says_little_of_their_sum():
    attention = scores([4.0] * 50, [-4.0] * 5000)
    assert float(nsf(attention)[:50].sum()) == pytest.approx(0.353, abs=5e-4)
    assert float(softmax(attention)[:50].sum()) == pytest.approx(0.968, abs=5e-4)


@given(taus, st.floats(0.01, 10), st.floats(1.001, 20), st.integers(2, 20))
def test_softmax_keeps_the_ratio_from_the_lowest_temperature_on(tau, gamma, kappa, highs):
    lowest = lowest_temperature(gamma, kappa, highs)

    def at(temperature):
        return ratio(softmax(scores([tau + gamma], [tau] * (highs - 1)), temperature))

    assert at(lowest) == pytest.approx(kappa, rel=1e-9)
    assert at(1.01 * lowest) < kappa < at(lowest / 1.01)


@given(taus, gammas, st.floats(1.001, 20), st.floats(1e-3, 1e3))
def test_a_single_high_needs_no_lowest_temperature(tau, gamma, kappa, temperature):
    assert lowest_temperature(gamma, kappa, highs=1) == 0
    assert ratio(softmax(scores([tau + gamma]), temperature)) == 1


@given(taus, counts, st.floats(1e-6, 0.9))
def test_the_highest_temperature_of_the_proof_is_exact(tau, highs, epsilon):
    room = 1 / epsilon - 1
    assume(abs(room / highs - 1) > 1e-3)
    limit = highest_temperature(tau, highs, epsilon)
    if room <= highs:
        assert limit == math.inf
        assert low_weight(tau, highs, 1e9) <= epsilon
    else:
        assert low_weight(tau, highs, limit) == pytest.approx(epsilon, rel=1e-9)
        assert low_weight(tau, highs, 0.99 * limit) < epsilon < low_weight(tau, highs, 1.01 * limit)


@given(taus, counts, st.lists(places, max_size=20), st.lists(places, min_size=1, max_size=20), st.floats(1e-4, 0.9))
def test_below_the_limit_of_the_proof_no_allowed_scores_exceed_epsilon(tau, highs, above, below, epsilon):
    limit = min(highest_temperature(tau, highs, epsilon), 1e6)
    more_highs = [tau * (1 + place) for place in above]
    lows = [-tau * (1 + place) for place in below]
    weights = softmax(scores([tau] * highs, more_highs, lows), limit)
    assert float(weights[-len(lows) :].max()) <= epsilon * (1 + 1e-9)


def test_no_limit_where_the_highs_alone_press_the_lows_below_epsilon():
    assert highest_temperature(2.0, highs=9, epsilon=0.1) == math.inf
    assert highest_temperature(2.0, highs=8, epsilon=0.1) < math.inf
    assert highest_temperature(2.0, highs=1, epsilon=1.0) == math.inf


@given(taus, counts, st.floats(1e-6, 0.5))
def test_the_printed_limit_is_stricter_than_necessary(tau, highs, epsilon):
    printed = highest_temperature_as_printed(tau, highs, epsilon)
    assert printed < highest_temperature(tau, highs, epsilon)
    assert low_weight(tau, highs, printed) < epsilon


def test_the_printed_limit_is_refuted():
    """Above the printed limit the lows stay below epsilon, so that it is not a necessary condition."""
    tau, highs, epsilon, temperature = 1.0, 10, 0.01, 0.5
    assert temperature > highest_temperature_as_printed(tau, highs, epsilon) == pytest.approx(0.2895, abs=5e-5)
    assert low_weight(tau, highs, temperature) == pytest.approx(0.0018, abs=5e-5)


@given(st.floats(1, 30), st.floats(0.1, 3), st.integers(2, 100))
def test_no_temperature_reaches_both_bounds_of_nsf(tau, gamma, highs):
    lowest = lowest_temperature(gamma, nsf_ratio_bound(tau, gamma), highs)
    highest = highest_temperature(tau, highs, nsf_low_bound(tau, highs))
    assert highest == pytest.approx(2 * tau / math.log(math.exp(tau) - 1 / highs), rel=1e-9)
    assert lowest > highest


def test_the_two_temperatures_part_for_a_large_gap():
    lowest = [lowest_temperature(1.0, nsf_ratio_bound(tau, 1.0)) for tau in (2.0, 8.0, 16.0)]
    assert lowest[0] < lowest[1] / 100 < lowest[2] / 10_000
    assert highest_temperature(30.0, 5, nsf_low_bound(30.0, 5)) == pytest.approx(2, rel=1e-9)


def test_the_gap_must_be_wide_for_that():
    gamma, tau, highs = 3.0, 0.05, 2
    limit = highest_temperature(tau, highs, nsf_low_bound(tau, highs))
    assert lowest_temperature(gamma, nsf_ratio_bound(tau, gamma)) < limit


def test_scores_between_the_groups_lift_the_upper_limit():
    """The remark after the proof says that they leave both limits necessary; for the upper one they do not."""
    tau, highs, epsilon, temperature = 1.0, 10, 0.01, 1.5
    assert temperature > highest_temperature(tau, highs, epsilon) == pytest.approx(0.8724, abs=5e-5)
    between = [-tau + 1e-6] * 100
    assert low_weight(tau, highs, temperature, between) == pytest.approx(0.0072, abs=5e-5)
    assert low_weight(tau, highs, temperature) > epsilon


@given(taus, st.floats(0.01, 10), st.floats(1.01, 20), st.lists(st.floats(-0.99, 0.99), max_size=20))
def test_scores_between_the_groups_leave_the_lower_limit(tau, gamma, kappa, between):
    lowest = lowest_temperature(gamma, kappa)
    middle = [tau * place for place in between]
    weights = softmax(scores([tau + gamma, tau], middle), lowest / 1.01)
    assert float(weights[0] / weights[1]) > kappa


@given(st.integers(0, 10_000), st.integers(1, 60), st.floats(0.1, 20))
def test_the_gradient_of_the_anchor_loss_is_online_minus_anchor(seed, tiles, spread):
    draw = torch.Generator().manual_seed(seed)
    anchor, online = spread * torch.randn(2, 1, tiles, generator=draw, dtype=torch.float64)
    expected = softmax(online) - nsf(anchor)
    for divergence in (
        lambda z: kl(log_nsf(anchor), log_softmax(z)),
        lambda z: kl_to_softmax(anchor, NSF(), z),
    ):
        scores_ = online.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(divergence(scores_).sum(), scores_)
        assert float((gradient - expected).abs().max()) < 1e-12
