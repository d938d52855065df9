from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines.utils import concordance_index

from asmil.errors import AsmilError
from asmil.tasks.concordance import concordance, concordance_pairs, weight_before_and_below, weighted_concordance

ALL_TIES = ("harrell", "strict", "none", "time", "risk", "all")


def all_pairs(time, event, risk):
    """The definition, pair by pair: C, D, R, T, and of the pairs with t_i < t_j the concordant ones and all."""
    counts = np.zeros(6)
    for i in np.flatnonzero(event):
        for j in range(len(time)):
            at_once = time[i] == time[j] and not event[j]
            if time[i] < time[j] or at_once:
                tied = risk[i] == risk[j] or abs(risk[i] - risk[j]) <= 1e-8
                counts += (not tied and risk[i] > risk[j], not tied and risk[i] < risk[j], tied, at_once, 0, 0)
            if time[i] < time[j]:
                counts += (0, 0, 0, 0, risk[i] > risk[j], 1)
    return counts


def found_pairs(time, event, risk):
    pairs = concordance_pairs(time, event, risk)
    names = ("concordant", "discordant", "tied_risk", "tied_time", "strict_concordant", "strict_comparable")
    return [float(getattr(pairs, name)[0]) for name in names]


patients = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.booleans(),
        st.sampled_from([-np.inf, -1.0, 0.0, 5e-9, 1.2e-8, 3e-8, 0.5, 2.0]) | st.floats(-1, 1),
    ),
    min_size=1,
    max_size=40,
)


@given(patients)
@settings(deadline=None)
def test_pairs_are_those_of_the_definition(rows):
    time, event, risk = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    np.testing.assert_array_equal(found_pairs(time, event, risk), all_pairs(time, event, risk))


@given(patients, st.randoms())
@settings(deadline=None)
def test_integer_weights_are_repeated_patients(rows, random):
    time, event, risk = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    weights = np.array([[random.randint(0, 3) for _ in rows] for _ in range(4)])
    for ties in ALL_TIES:
        for row, value in zip(weights, weighted_concordance(time, event, risk, weights, ties), strict=True):
            drawn = np.repeat(np.arange(len(rows)), row)
            try:
                expected = concordance(time[drawn], event[drawn], risk[drawn], ties)
            except AsmilError:
                expected = np.nan
            np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_ties_count_as_stated():
    """Events at 1 and 2, a patient censored at 2, one at 3: C = 2 of 5 pairs, R = 1, T = 1."""
    time, event, risk = [1, 2, 2, 3], [1, 1, 0, 0], [0.5, 0.9, 0.5, 0.7]
    assert found_pairs(time, event, risk) == [2, 2, 1, 1, 1, 4]
    expected = {"harrell": 2.5 / 5, "risk": 2.5 / 5, "none": 2 / 4, "time": 2.5 / 5, "all": 3 / 6, "strict": 1 / 4}
    assert {ties: concordance(time, event, risk, ties) for ties in ALL_TIES} == expected


def test_a_constant_predictor():
    time, event, risk = [1, 2, 3], [1, 1, 0], [0.0, 0.0, 0.0]
    assert concordance(time, event, risk) == 0.5
    assert concordance(time, event, risk, "strict") == 0.0
    assert np.isnan(concordance(time, event, risk, "none"))


def test_lifelines_agrees_without_equal_times():
    draw = np.random.default_rng(0)
    time, event = draw.permutation(300) / 10, draw.random(300) < 0.4
    risk = draw.integers(0, 40, 300).astype(float)
    assert concordance(time, event, risk) == pytest.approx(concordance_index(time, -risk, event), abs=1e-12)


def test_an_infinite_mean_time_is_the_lowest_risk():
    assert concordance([1, 2, 3], [1, 1, 0], [0.0, -1.0, -np.inf]) == 1.0
    assert concordance([1, 2], [1, 1], [-np.inf, -np.inf]) == 0.5


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (([1, 2], [1, 1], [0.0, np.nan]), "risk .*patient 1 .* nan"),
        (([1, 2, 5], [0, 0, 1], [0.0, 1.0, 2.0]), "3 patients"),
        (([1, 2], [0, 0], [0.0, 1.0]), "no two"),
        (([3, 3], [1, 1], [0.0, 1.0]), "no two"),
        (([1, -2], [1, 1], [0.0, 1.0]), "time .*patient 1 .* -2"),
        (([1, 2], [1, 2], [0.0, 1.0]), "event .*patient 1 .* 2"),
        (([1, 2], [1, 1], [0.0]), "one of each"),
        (([1, 2], [1], [0.0, 1.0]), "event"),
    ],
)
def test_what_has_no_c_index_is_refused(data, word):
    with pytest.raises(AsmilError, match=word):
        concordance(*data)


def test_events_and_censored_at_one_time_only_have_no_strict_pair():
    assert concordance([2, 2], [1, 0], [1.0, 0.0]) == 1.0
    with pytest.raises(AsmilError, match="no two"):
        concordance([2, 2], [1, 0], [1.0, 0.0], "strict")


def test_unknown_ties_are_named():
    with pytest.raises(AsmilError, match=r"'harrel'.*'harrell'"):
        concordance([1, 2], [1, 1], [1.0, 0.0], "harrel")


def test_many_patients_are_counted_without_a_matrix_of_pairs():
    draw = np.random.default_rng(0)
    time, risk = draw.exponential(size=100_000), draw.normal(size=100_000)
    tracemalloc.start()
    assert concordance(time, draw.random(100_000) < 0.5, risk) == pytest.approx(0.5, abs=0.01)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6, "a matrix of all pairs has 10 GB"


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9])
def test_dominance_against_counting(count):
    draw = np.random.default_rng(count)
    values, weights = draw.permutation(count), draw.random((3, count))
    before, below = draw.integers(0, count + 1, (2, 30))
    expected = [weights[:, :p][:, values[:p] < v].sum(axis=1) for p, v in zip(before, below, strict=True)]
    found = weight_before_and_below(values, weights, before, below)
    np.testing.assert_allclose(found, np.transpose(expected), atol=1e-12)
