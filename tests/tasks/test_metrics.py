from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from asmil.tasks import metrics, weighted
from shared_data import read_oracle


@st.composite
def predictions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Targets and probabilities; a coarse grid of scores makes ties common."""
    n, k = draw(st.integers(1, 40)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.integers(1, draw(st.integers(2, 50)), size=(n, k)).astype(float)
    return rng.integers(0, k, n), scores / scores.sum(axis=1, keepdims=True)


@given(predictions())
@settings(max_examples=60, deadline=None)
def test_equal_to_scikit_learn(case: tuple[np.ndarray, np.ndarray]) -> None:
    target, probabilities = case
    k = probabilities.shape[1]
    predicted = metrics.predicted_classes(probabilities)
    labels = list(range(k))
    precision, recall, f1, support = sk.precision_recall_fscore_support(
        target, predicted, labels=labels, zero_division=0
    )
    assert metrics.accuracy(target, predicted) == pytest.approx(sk.accuracy_score(target, predicted))
    assert metrics.macro_f1(target, predicted, k) == pytest.approx(f1.mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert metrics.balanced_accuracy(target, predicted, k) == pytest.approx(
            sk.balanced_accuracy_score(target, predicted)
        )
    np.testing.assert_array_equal(
        metrics.confusion_matrix(target, predicted, k), sk.confusion_matrix(target, predicted, labels=labels)
    )
    assert metrics.cross_entropy(target, probabilities) == pytest.approx(
        sk.log_loss(target, probabilities, labels=labels)
    )
    rows = metrics.per_class(target, probabilities)
    np.testing.assert_allclose([row.precision for row in rows], precision)
    np.testing.assert_allclose([row.recall for row in rows], recall)
    np.testing.assert_allclose([row.f1 for row in rows], f1)
    assert [row.support for row in rows] == list(support)
    for row in rows:
        positive = target == row.label
        if positive.all() or not positive.any():
            assert np.isnan(row.auc)
        else:
            assert row.auc == pytest.approx(sk.roc_auc_score(positive, probabilities[:, row.label]))
        if not positive.all():
            assert row.specificity == pytest.approx(np.mean(predicted[~positive] != row.label))


@given(predictions(), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_weights_equal_repeated_slides(case: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    target, probabilities = case
    n, k = probabilities.shape
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=3)
    predicted = metrics.predicted_classes(probabilities)
    confusion = weighted.weighted_confusion(target, predicted, k, counts.astype(float))
    auc = weighted.weighted_auc(target, probabilities, counts.astype(float))
    for row, count in enumerate(counts):
        drawn = np.repeat(np.arange(n), count)
        np.testing.assert_array_equal(confusion[row], metrics.confusion_matrix(target[drawn], predicted[drawn], k))
        np.testing.assert_allclose(auc[row], metrics.auc_per_class(target[drawn], probabilities[drawn]), atol=1e-12)


@given(predictions(), st.randoms())
@settings(max_examples=30, deadline=None)
def test_order_of_slides_and_monotone_scores_do_not_matter(case: Any, random: Any) -> None:
    target, probabilities = case
    order = np.array(random.sample(range(len(target)), len(target)))
    before = metrics.auc_per_class(target, probabilities)
    np.testing.assert_allclose(metrics.auc_per_class(target[order], probabilities[order]), before, atol=1e-12)
    np.testing.assert_allclose(metrics.auc_per_class(target, np.exp(3 * probabilities)), before, atol=1e-12)


def test_macro_auc_of_two_classes_is_the_auc_of_class_1() -> None:
    target = np.array([0, 0, 1, 1, 1, 0])
    score = np.array([0.25, 0.5, 0.5, 0.75, 0.125, 0.125])
    probabilities = np.stack([1 - score, score], axis=1)
    assert metrics.macro_auc(target, probabilities) == pytest.approx(sk.roc_auc_score(target, score))


def test_a_class_without_slides() -> None:
    target = np.array([0, 0, 1, 1])
    probabilities = np.array([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.3, 0.6, 0.1]])
    auc = metrics.auc_per_class(target, probabilities)
    assert np.isnan(auc[2])
    assert metrics.macro_auc(target, probabilities) == pytest.approx(auc[:2].mean())
    predicted = metrics.predicted_classes(probabilities)
    assert metrics.macro_f1(target, predicted, 3) == pytest.approx(metrics.macro_f1(target, predicted, 2) * 2 / 3)
    assert metrics.balanced_accuracy(target, predicted, 3) == pytest.approx(0.75)


def test_one_class_only_has_no_auc_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(metrics.macro_auc(np.zeros(3, int), np.full((3, 2), 0.5)))


def test_cross_entropy_of_a_confident_error_is_finite() -> None:
    assert np.isfinite(metrics.cross_entropy(np.array([0]), np.array([[0.0, 1.0]])))


@pytest.mark.parametrize(
    "name",
    ["classification_3class", "classification_binary_with_ties_at_half", "classification_absent_class"],
)
def test_oracle(name: str) -> None:
    block = read_oracle("statistics")[name]
    target, probabilities = np.array(block["y"]), np.array(block["prob"])
    k = probabilities.shape[1]
    predicted = metrics.predicted_classes(probabilities)
    rows = metrics.per_class(target, probabilities)
    assert predicted.tolist() == block["argmax"]
    assert metrics.confusion_matrix(target, predicted, k).tolist() == block["confusion_rows_true"]
    assert metrics.accuracy(target, predicted) == pytest.approx(block["accuracy"], abs=1e-9)
    assert metrics.macro_f1(target, predicted, k) == pytest.approx(block["macro_f1_argmax"], abs=1e-9)
    assert metrics.balanced_accuracy(target, predicted, k) == pytest.approx(block["balanced_accuracy"], abs=1e-9)
    assert [row.f1 for row in rows] == pytest.approx(block["f1_per_class_argmax"], abs=1e-9)
    assert [row.precision for row in rows] == pytest.approx(block["precision_per_class"], abs=1e-9)
    assert [row.recall for row in rows] == pytest.approx(block["recall_per_class"], abs=1e-9)
    expected_auc = [np.nan if value is None else value for value in block["auc_per_class"]]
    np.testing.assert_allclose([row.auc for row in rows], expected_auc, atol=1e-9)
    if block.get("macro_auc_ovr") is not None:
        assert metrics.macro_auc(target, probabilities) == pytest.approx(block["macro_auc_ovr"], abs=1e-9)
