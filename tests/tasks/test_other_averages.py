"""Averages other than macro over all classes, which other software reports under the same names."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from asmil.tasks import metrics


@st.composite
def predictions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Targets with every class, and probabilities of which some are tied."""
    n, k = draw(st.integers(0, 40)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.integers(1, draw(st.integers(2, 50)), size=(n + k, k)).astype(float)
    return rng.permutation(np.r_[np.arange(k), rng.integers(0, k, n)]), scores / scores.sum(axis=1, keepdims=True)


@given(predictions())
@settings(max_examples=50, deadline=None)
def test_equal_to_scikit_learn(case):
    target, probabilities = case
    k = probabilities.shape[1]
    predicted = metrics.predicted_classes(probabilities)
    labels = list(range(k))
    for average, found in (
        ("micro", metrics.micro_f1(target, predicted)),
        ("weighted", metrics.weighted_f1(target, predicted, k)),
        (None, metrics.f1_per_class(target, predicted, k)),
    ):
        assert found == pytest.approx(sk.f1_score(target, predicted, labels=labels, average=average, zero_division=0))
    threshold = metrics.one_vs_rest_f1(target, probabilities)
    called = probabilities >= 0.5
    assert threshold.per_class == pytest.approx(sk.f1_score(np.eye(k)[target], called, average=None, zero_division=0))
    assert threshold.macro == pytest.approx(threshold.per_class.mean())
    assert threshold.slides_without_class == (called.sum(axis=1) == 0).sum()
    assert threshold.slides_with_several == (called.sum(axis=1) > 1).sum()
    if k > 2:
        assert metrics.one_vs_one_auc(target, probabilities) == pytest.approx(
            sk.roc_auc_score(target, probabilities, multi_class="ovo")
        )
        assert metrics.weighted_mean_auc(target, probabilities) == pytest.approx(
            sk.roc_auc_score(target, probabilities, multi_class="ovr", average="weighted")
        )


def test_an_absent_class():
    target = np.array([0, 0, 1, 1])
    probabilities = np.array([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.2, 0.7, 0.1], [0.4, 0.3, 0.3]])
    assert metrics.auc_per_class(target, probabilities)[:2] == pytest.approx([0.75, 0.75])
    assert metrics.macro_auc(target, probabilities) == pytest.approx(0.75)
    assert metrics.weighted_mean_auc(target, probabilities) == pytest.approx(0.75)
    assert metrics.one_vs_one_auc(target, probabilities) == pytest.approx(0.75)
    one = np.zeros(4, dtype=int)
    assert np.isnan(metrics.weighted_mean_auc(one, probabilities))
    assert np.isnan(metrics.one_vs_one_auc(one, probabilities))


def test_argmax_and_threshold_differ_at_a_tie():
    target, probabilities = np.array([1, 0]), np.array([[0.5, 0.5], [0.9, 0.1]])
    assert metrics.predicted_classes(probabilities).tolist() == [0, 0]
    found = metrics.one_vs_rest_f1(target, probabilities)
    assert found.slides_with_several == 1
    assert found.per_class == pytest.approx([2 / 3, 1.0])
