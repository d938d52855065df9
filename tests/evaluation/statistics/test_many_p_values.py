"""Adjusting and combining p-values, and t-tests of repeated differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from asmil.errors import AsmilError
from asmil.evaluation.statistics import (
    benjamini_hochberg,
    combine_p,
    corrected_resampled_t,
    fisher_if_independent,
    holm,
    paired_t,
    stouffer_if_independent,
)

p_values = st.lists(st.floats(0, 1) | st.sampled_from([0.01, 0.02, 0.05]), min_size=1, max_size=12)
RULES = ("bonferroni", "twice_mean", "twice_median", "cauchy", "harmonic_mean")
PAPER = [0.013, 0.024, 0.024, 0.035, 0.012, 0.009]


@given(p_values)
def test_holm_rejects_step_by_step(p):
    adjusted = holm(p)
    assert ((adjusted >= p) & (adjusted <= 1)).all()
    for alpha in (0.013, 0.049, 0.2):
        rejected = set()
        for step, place in enumerate(np.argsort(p, kind="stable")):
            if p[place] * (len(p) - step) > alpha:
                break
            rejected.add(place)
        assert set(np.flatnonzero(adjusted <= alpha)) == rejected


@given(p_values)
def test_benjamini_hochberg_is_scipys(p):
    np.testing.assert_allclose(benjamini_hochberg(p), stats.false_discovery_control(p), atol=1e-15)
    assert (benjamini_hochberg(p) <= holm(p) + 1e-15).all()


@given(p_values, st.randoms())
def test_adjusted_values_follow_their_p_value(p, random):
    order = list(range(len(p)))
    random.shuffle(order)
    for adjust in (holm, benjamini_hochberg):
        np.testing.assert_allclose(adjust(np.array(p)[order]), adjust(p)[order])


def test_none_of_the_papers_six_p_values_survives_holm():
    np.testing.assert_allclose(holm(PAPER), [0.06, 0.072, 0.072, 0.072, 0.06, 0.054])
    assert holm([]).shape == (0,)
    assert holm([0.04]) == [0.04]


@given(p_values)
def test_independent_combinations_are_scipys(p):
    if min(p) > 0 and max(p) < 1:
        assert fisher_if_independent(p) == pytest.approx(stats.combine_pvalues(p, "fisher")[1], rel=1e-9, abs=1e-300)
        assert stouffer_if_independent(p) == pytest.approx(
            stats.combine_pvalues(p, "stouffer")[1], rel=1e-9, abs=1e-300
        )


@given(p_values)
def test_rules_for_dependent_p_values_by_their_formulas(p):
    k = len(p)
    assert combine_p(p, "bonferroni") == min(1, k * min(p))
    assert combine_p(p, "twice_mean") == pytest.approx(min(1, 2 * sum(p) / k))
    assert combine_p(p, "twice_median") == pytest.approx(min(1, 2 * float(np.median(p))))
    if min(p) > 1e-9:
        assert combine_p(p, "harmonic_mean") == pytest.approx(stats.hmean(p))
        tangents = [math.tan((0.5 - one) * math.pi) for one in p]
        assert combine_p(p, "cauchy") == pytest.approx(stats.cauchy.sf(np.mean(tangents)), rel=1e-6, abs=1e-12)
    assert all(0 <= combine_p(p, rule) <= 1 for rule in RULES)


@pytest.mark.parametrize("rule", RULES)
def test_combined_seeds_keep_the_level_where_fisher_does_not(rule):
    """Ten seeds on the same slides: p-values of strongly correlated normal statistics, with no difference at all."""
    rng = np.random.default_rng(7)
    z = math.sqrt(0.8) * rng.normal(size=(4000, 1)) + math.sqrt(0.2) * rng.normal(size=(4000, 10))
    p = 2 * stats.norm.sf(np.abs(z))
    share = np.mean([combine_p(row, rule) <= 0.05 for row in p])
    assert share <= (0.05 if rule in ("bonferroni", "twice_mean", "twice_median") else 0.08)
    assert np.mean([fisher_if_independent(row) <= 0.05 for row in p[:500]]) > 0.1


def test_the_ends_of_the_scale():
    assert [combine_p([0.0, 0.5], rule) for rule in ("bonferroni", "harmonic_mean")] == [0, 0]
    assert combine_p([0.0, 0.5], "cauchy") < 1e-15
    assert fisher_if_independent([0.0, 0.5]) == stouffer_if_independent([0.0, 0.5]) == 0
    with pytest.raises(AsmilError, match="0 and 1"):
        stouffer_if_independent([0.0, 1.0])


@pytest.mark.parametrize("function", [holm, benjamini_hochberg, fisher_if_independent, stouffer_if_independent])
@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([0.1, math.nan], "p: .* 1 "),
        ([0.1, None], "p: .* 1 "),
        ([0.1, 1.2], "p: 1.2 .* 1 "),
        ([-0.1], "p: -0.1 .* 0"),
        ([[0.1]], "p: .*list"),
    ],
)
def test_what_is_no_p_value_is_refused(function, p, message):
    with pytest.raises(AsmilError, match=message):
        function(p)


def test_unknown_rules_and_empty_lists_are_refused():
    with pytest.raises(AsmilError, match="'twice_mean'"):
        combine_p([0.1], "twice_means")
    with pytest.raises(AsmilError, match="no p-value"):
        combine_p([], "bonferroni")


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=20))
def test_paired_t_is_scipys(differences):
    if np.ptp(differences) > 1e-6:
        found, expected = paired_t(differences), stats.ttest_1samp(differences, 0)
        assert (found.t, found.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-7, abs=1e-12)
        assert found.df == len(differences) - 1


def test_the_corrected_t_by_hand():
    found = corrected_resampled_t([0.05, 0.02, 0.04, 0.06, 0.03], n_train=300, n_test=75)
    t = 0.04 / math.sqrt((1 / 5 + 1 / 4) * 0.00025)
    assert (found.t, found.df) == (pytest.approx(t), 4)
    assert found.p == pytest.approx(2 * stats.t.sf(t, 4))
    assert found.p > paired_t([0.05, 0.02, 0.04, 0.06, 0.03]).p


def test_differences_without_spread():
    assert (paired_t([0.0, 0.0, 0.0]).t, corrected_resampled_t([0.0, 1e-17], 4, 1).p) == (0.0, 1.0)
    with pytest.raises(AsmilError, match=r"3 are 0\.1"):
        paired_t([0.8 - 0.7, 0.7 - 0.6, 0.1])


@pytest.mark.parametrize(
    ("differences", "n_train", "n_test", "message"),
    [
        ([0.1], 10, 2, "at least 2 finite"),
        ([0.1, math.inf], 10, 2, "at least 2 finite"),
        ([0.1, math.nan], 10, 2, "differences: .* 1 "),
        ([0.1, 0.2], 0, 2, "n_train.* 0 and 2"),
        ([0.1, 0.2], 10, -1, "n_test.* 10 and -1"),
    ],
)
def test_mistakes_in_t_tests_are_named(differences, n_train, n_test, message):
    with pytest.raises(AsmilError, match=message):
        corrected_resampled_t(differences, n_train, n_test)
