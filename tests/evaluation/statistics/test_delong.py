from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from asmil.errors import AsmilError
from asmil.evaluation.statistics import delong


@st.composite
def scored_slides(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Target and two scores; few distinct values make ties common, and both classes have at least two slides."""
    n, levels = draw(st.integers(0, 30)), draw(st.sampled_from([2, 5, 1000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    target = rng.permutation(np.r_[0, 0, 1, 1, rng.integers(0, 2, n)])
    a, b = (rng.integers(0, levels, len(target)) / levels for _ in range(2))
    return target, a, b


def by_definition(target, *scores):
    """AUCs and covariance from the table of all pairs."""
    placements = []
    for score in scores:
        x, y = score[target == 1][:, None], score[target == 0][None, :]
        psi = (x > y) + 0.5 * (x == y)
        placements.append((psi.mean(axis=1), psi.mean(axis=0)))
    m, n = (len(side) for side in placements[0])
    covariance = np.cov([of[0] for of in placements]) / m + np.cov([of[1] for of in placements]) / n
    return [of[0].mean() for of in placements], covariance


@given(scored_slides())
def test_equal_to_the_definition_over_all_pairs(case):
    target, a, b = case
    aucs, covariance = by_definition(target, a, b)
    variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    if variance < 1e-14 and abs(aucs[0] - aucs[1]) > 1e-12:
        with pytest.raises(AsmilError, match="variance is 0"):
            delong(target, a, b)
        return
    found = delong(target, a, b)
    assert [found.auc_a, found.auc_b] == pytest.approx(aucs, abs=1e-14)
    assert found.auc_a == pytest.approx(roc_auc_score(target, a))
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-14)
    assert found.variance == pytest.approx(variance, abs=1e-14)
    if found.variance > 0:
        assert found.z == pytest.approx(found.difference / math.sqrt(variance), rel=1e-7)
        assert found.p == pytest.approx(2 * norm.sf(abs(found.z)))
    else:
        assert (found.z, found.p, found.interval) == (0.0, 1.0, (0.0, 0.0))


@given(scored_slides())
def test_swapped_models_change_only_the_sign(case):
    try:
        there, back = delong(*case), delong(case[0], case[2], case[1])
    except AsmilError:
        return
    assert (back.z, back.p, back.variance) == (-there.z, there.p, there.variance)
    assert back.interval == (-there.interval.high, -there.interval.low)
    assert (back.interval_a, back.interval_b) == (there.interval_b, there.interval_a)


@given(scored_slides())
def test_a_monotone_rescaling_is_no_difference(case):
    target, a, _ = case
    found = delong(target, a, np.exp(3 * a) - 7)
    assert (found.difference, found.variance, found.z, found.p) == (0.0, 0.0, 0.0, 1.0)
    assert found.interval_a == found.interval_b


def test_two_positives_and_two_negatives_by_hand():
    found = delong([1, 1, 0, 0], [0.9, 0.4, 0.5, 0.1], [0.9, 0.6, 0.5, 0.1])
    assert (found.auc_a, found.auc_b) == (0.75, 1.0)
    # placements of a: positives 1, 1/2, negatives 1/2, 1; variances 1/8 each; b has none
    np.testing.assert_allclose(found.covariance, [[0.125, 0.0], [0.0, 0.0]])
    assert found.z == pytest.approx(-0.25 / math.sqrt(0.125))
    assert found.interval_a == pytest.approx((0.75 - 1.959963984540054 * math.sqrt(0.125), 1.4429519121748385))


def test_the_level_is_kept_where_both_scores_are_equally_good():
    rng = np.random.default_rng(3)
    target = np.repeat([0, 1], 50)
    shared = rng.normal(size=(1500, 100)) + target
    scores = shared[:, None] + rng.normal(size=(1500, 2, 100))
    rejected = np.mean([delong(target, *pair).p <= 0.05 for pair in scores])
    assert 0.035 < rejected < 0.07


def test_two_hundred_thousand_slides_take_little_memory():
    rng = np.random.default_rng(0)
    target = rng.integers(0, 2, 200_000)
    a, b = (np.round(rng.normal(size=200_000) + target, 2) for _ in range(2))
    tracemalloc.start()
    found = delong(target, a, b)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30e6, "a matrix of all pairs has 80 GB"
    assert found.auc_a == pytest.approx(roc_auc_score(target, a), abs=1e-12)


def test_infinite_scores_are_ranked():
    scores = [-np.inf, 0.0, 0.0, np.inf]
    assert delong([0, 0, 1, 1], scores, [1.0, 2.0, 2.0, 3.0]).p == 1.0


@pytest.mark.parametrize(
    ("target", "a", "b", "message"),
    [
        ([0, 1, 1, 1], [1, 2, 3, 4], [1, 2, 3, 4], "3 positives and 1 negatives"),
        ([0, 0, 0, 1], [1, 2, 3, 4], [1, 2, 3, 4], "1 positives and 3 negatives"),
        ([0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], "1 and 0 .*variance"),
        ([0, 0, 1, 2], [1, 2, 3, 4], [1, 2, 3, 4], "target: 2 .* 3"),
        ([0, 0, 1, 1], [1, 2, np.nan, 4], [1, 2, 3, 4], "score_a: .* 2 "),
        ([0, 0, 1, 1], [1, 2, 3, 4], [1, 2, 3], "target has 4, score_a has 4, score_b has 3"),
        ([0, 0, 1, 1], [[1, 2], [3, 4]], [1, 2, 3, 4], r"score_a: .*\(2, 2\)"),
        (["n", "t", "t"], [1, 2, 3], [1, 2, 3], "target: .*0 to 1"),
        ([0, 1], ["x", 2], [1, 2], "score_a: "),
        ([], [], [], "target: .*class index"),
    ],
)
def test_what_cannot_be_tested_is_refused_in_one_sentence(target, a, b, message):
    with pytest.raises(AsmilError, match=message):
        delong(target, a, b)


def test_the_order_of_the_slides_does_not_matter():
    target, a, b = [0, 1, 0, 1, 1], [0.2, 0.3, 0.6, 0.7, 0.9], [0.5, 0.4, 0.1, 0.8, 0.2]
    found = {
        (one.z, one.p, one.auc_a)
        for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 7)
        for one in [delong(*(np.array(values)[list(order)] for values in (target, a, b)))]
    }
    assert max(z for z, _, _ in found) - min(z for z, _, _ in found) < 1e-12
    assert len({auc for _, _, auc in found}) == 1
