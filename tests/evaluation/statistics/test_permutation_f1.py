from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from asmil.errors import AsmilError
from asmil.evaluation.statistics import f1_permutation, permutation_f1


def macro_f1(target, predicted, n_classes):
    return f1_score(target, predicted, labels=list(range(n_classes)), average="macro", zero_division=0)


def all_differences(target, a, b, n_classes, units):
    """Every pattern tried slide by slide."""
    discordant = sorted({unit for unit, left, right in zip(units, a, b, strict=True) if left != right})
    differences = []
    for swaps in itertools.product([False, True], repeat=len(discordant)):
        swapped = np.isin(units, [unit for unit, swap in zip(discordant, swaps, strict=True) if swap])
        first, second = np.where(swapped, b, a), np.where(swapped, a, b)
        differences.append(macro_f1(target, first, n_classes) - macro_f1(target, second, n_classes))
    return np.array(differences), len(discordant)


@st.composite
def called_slides(draw: st.DrawFn):
    n, k = draw(st.integers(1, 9)), draw(st.integers(2, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    target, a, b = rng.integers(0, k, (3, n))
    patients = rng.integers(0, draw(st.integers(1, 6)), n) if draw(st.booleans()) else None
    return target, np.where(rng.random(n) < 0.4, b, a), b, k, patients


@given(called_slides())
@settings(max_examples=25, deadline=None)
def test_exact_is_what_trying_every_pattern_gives(case):
    target, a, b, k, patients = case
    found = permutation_f1(target, a, b, k, patients)
    units = np.arange(len(target)) if patients is None else patients
    differences, n_discordant = all_differences(target, a, b, k, units)
    observed = macro_f1(target, a, k) - macro_f1(target, b, k)
    assert found.exact
    assert (found.n_discordant, found.patterns) == (n_discordant, 2**n_discordant)
    assert found.value_a == pytest.approx(macro_f1(target, a, k))
    assert found.value_b == pytest.approx(macro_f1(target, b, k))
    assert found.difference == pytest.approx(observed, abs=1e-14)
    assert found.count == (np.abs(differences) >= abs(observed) - 1e-12).sum()
    assert found.p == found.count / found.patterns
    assert found.p_one_sided == (differences >= observed - 1e-12).mean()


@given(called_slides())
@settings(deadline=None)
def test_swapped_models_have_the_same_two_sided_p(case):
    target, a, b, k, patients = case
    there, back = permutation_f1(target, a, b, k, patients), permutation_f1(target, b, a, k, patients)
    assert (there.p, there.difference) == (back.p, -back.difference)


def test_without_discordant_slides_p_is_one():
    same = [0, 1, 2, 1]
    for exact in (None, False):
        found = permutation_f1([0, 1, 1, 2], same, same, 3, exact=exact)
        assert (found.p, found.p_one_sided, found.n_discordant, found.difference) == (1.0, 1.0, 0, 0.0)
    assert permutation_f1([0, 1, 1, 2], same, same, 3).patterns == 1


def test_slides_of_a_patient_are_swapped_together():
    target = np.tile([0, 1], 6)
    wrong = 1 - target
    # six discordant slides in two patients: as slides 2 of 64 patterns are extreme, as patients 2 of 4
    b = np.where(np.arange(12) < 6, wrong, target)
    assert permutation_f1(target, target, b, 2).p == 2 / 64
    by_patient = permutation_f1(target, target, b, 2, patients=["x"] * 3 + ["y"] * 3 + ["z"] * 6)
    assert (by_patient.p, by_patient.patterns, by_patient.n_discordant) == (0.5, 4, 2)


def test_a_patient_whose_changes_cancel_is_discordant_still():
    found = permutation_f1([0, 0, 1], [0, 1, 1], [1, 0, 1], 2, patients=["x", "x", "y"])
    assert (found.n_discordant, found.patterns, found.p) == (1, 2, 1.0)


def test_drawn_patterns_are_those_of_the_generator_in_blocks_or_not(monkeypatch):
    rng = np.random.default_rng(5)
    target, a, b = rng.integers(0, 3, (3, 40))
    swaps = np.random.Generator(np.random.PCG64(8)).integers(0, 2, size=(150, 40)) == 1
    observed = macro_f1(target, a, 3) - macro_f1(target, b, 3)
    differences = np.array(
        [macro_f1(target, np.where(s, b, a), 3) - macro_f1(target, np.where(s, a, b), 3) for s in swaps]
    )
    for cells in (1 << 21, 130):
        monkeypatch.setattr(f1_permutation, "CELLS_AT_ONCE", cells)
        found = permutation_f1(target, a, b, 3, resamples=150, seed=8)
        assert not found.exact
        assert found.patterns == 150
        assert found.count == (np.abs(differences) >= abs(observed) - 1e-12).sum()
        assert found.p == (found.count + 1) / 151
        assert found.p_one_sided == ((differences >= observed - 1e-12).sum() + 1) / 151


def test_drawn_and_tried_patterns_agree():
    rng = np.random.default_rng(1)
    target = rng.integers(0, 3, 60)
    a, b = (np.where(rng.random(60) < share, rng.integers(0, 3, 60), target) for share in (0.1, 0.25))
    exact, drawn = permutation_f1(target, a, b, 3), permutation_f1(target, a, b, 3, resamples=20_000, exact=False)
    assert exact.exact
    assert drawn.p == pytest.approx(exact.p, abs=0.015)
    assert drawn.p_one_sided == pytest.approx(exact.p_one_sided, abs=0.015)


def test_twenty_discordant_slides_are_tried_exactly_and_take_little_memory():
    target = np.arange(90) % 3
    b = np.where(np.arange(90) < 20, (target + 1) % 3, target)
    tracemalloc.start()
    found = permutation_f1(target, target, b, 3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.exact, found.patterns, found.count) == (True, 2**20, 2)
    assert peak < 20e6
    assert not permutation_f1(target, target, np.where(np.arange(90) < 21, (target + 1) % 3, target), 3).exact


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predicted_a": [0, 3, 1]}, "predicted_a: 3 .* 1 .*0 to 2"),
        ({"predicted_b": [0, 1]}, "predicted_b has 2"),
        ({"target": [0, 0.5, 1]}, "target: 0.5 .* 1 "),
        ({"n_classes": 1}, "n_classes is 1"),
        ({"patients": ["x", "y"]}, "target has 3, patients has 2"),
        ({"patients": ["x", None, "y"]}, "patients: .* 1 "),
        ({"resamples": 0, "exact": False}, "0 resamples"),
    ],
)
def test_mistakes_are_named(changes, message):
    given_values = {"target": [0, 1, 2], "predicted_a": [0, 1, 1], "predicted_b": [0, 2, 2], "n_classes": 3}
    with pytest.raises(AsmilError, match=message):
        permutation_f1(**(given_values | changes))


def test_too_many_patterns_to_try_are_refused():
    target = np.zeros(21, dtype=int)
    with pytest.raises(AsmilError, match="21 discordant slides"):
        permutation_f1(target, target, target + 1, 2, exact=True)
    with pytest.raises(AsmilError, match="21 discordant patients"):
        permutation_f1(target, target, target + 1, 2, patients=range(21), exact=True)
