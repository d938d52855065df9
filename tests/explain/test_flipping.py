"""Patch flipping on models whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from asmil.explain.flipping import area_between, flip, removed_counts


def sum_of(weights):
    """A model that says the sum of what is left, over the number of all tiles."""

    def ask(order, counts):
        left = np.array([weights[order[count:]].sum() for count in counts])
        return np.stack([left, left / len(weights)], axis=1)

    return ask


def test_the_true_order_beats_others_and_the_reverse_is_its_negative():
    weights = np.random.default_rng(0).random(60) ** 4
    ties = np.arange(60)
    true, reverse = flip(weights, sum_of(weights), ties), flip(-weights, sum_of(weights), ties)
    assert true.area > 0.1
    assert true.area == pytest.approx(-reverse.area)
    assert true.evidence_area == pytest.approx(60 * true.area)
    others = [flip(np.random.default_rng(seed).random(60), sum_of(weights), ties).area for seed in range(1, 41)]
    assert abs(np.mean(others)) < 0.02
    assert max(others) < true.area


def test_among_equal_tiles_the_given_order_counts():
    weights = np.arange(20.0)
    rising, falling = (flip(np.ones(20), sum_of(weights), order) for order in (np.arange(20), np.arange(20)[::-1]))
    assert rising.area == pytest.approx(-falling.area)


def test_by_hand():
    found = flip([3.0, 1.0], sum_of(np.array([3.0, 1.0])), np.arange(2), (0.0, 0.5, 1.0))
    assert found.removed.tolist() == [0.0, 0.5]
    assert found.most_first.tolist() == [4.0, 1.0]
    assert found.least_first.tolist() == [4.0, 3.0]
    assert found.evidence_area == pytest.approx(1.0)
    assert removed_counts(2) == [0, 1]
    assert removed_counts(1000)[-1] == 950
    assert np.isnan(area_between(np.zeros(1), np.ones(1), np.ones(1)))
