"""Classification metrics under many sets of slide weights at once.

A bootstrap resample that draws slide i w_i times gives the same metric as the original slides with the
integer weights w. One pass over a matrix of weights (R x n) therefore answers R resamples without copying
a slide; weights of 1 answer the plain metric. Everything here is a pure function on arrays.

Letters: n slides, K classes, R sets of weights.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]


def weighted_confusion(target: Integers, predicted: Integers, n_classes: int, weights: Floats) -> Floats:
    """R x K x K sums of weights; entry (r, i, j): slides of class i that were called j.

    target, predicted: n class indices; weights: R x n.
    """
    cell = np.asarray(target) * n_classes + np.asarray(predicted)
    indicator = np.zeros((len(cell), n_classes * n_classes))
    indicator[np.arange(len(cell)), cell] = 1.0
    counts: Floats = weights @ indicator
    return counts.reshape(-1, n_classes, n_classes)


def weighted_auc(target: Integers, probabilities: Floats, weights: Floats) -> Floats:
    """R x K areas under the one-vs-rest ROC curves, ties counted half; nan where undefined.

    AUC_k = sum_ij w_i w_j psi(p_ik, p_jk) / (sum_i w_i sum_j w_j), i in class k, j not, and psi = 1, 1/2, 0
    for >, =, <. With the slides sorted by p_k, psi needs only the weight of the negatives below each group
    of equal scores: O(n log n) for the sort, O(R n) for the sums. Undefined: no weight inside or outside k.

    target: n class indices; probabilities: n x K; weights: R x n.
    """
    target = np.asarray(target)
    columns = [binary_auc(target == label, probabilities[:, label], weights) for label in range(probabilities.shape[1])]
    return np.stack(columns, axis=1)


def binary_auc(positive: npt.NDArray[np.bool_], score: Floats, weights: Floats) -> Floats:
    """R areas under the ROC curve of one score (n values) for one class against the rest; nan where undefined."""
    order = np.argsort(score, kind="stable")
    ordered_score, ordered_positive = score[order], positive[order]
    group_starts = np.flatnonzero(np.r_[True, ordered_score[1:] != ordered_score[:-1]])
    ordered_weights = weights[:, order]
    positives = np.add.reduceat(ordered_weights * ordered_positive, group_starts, axis=1)
    negatives = np.add.reduceat(ordered_weights * ~ordered_positive, group_starts, axis=1)
    negatives_up_to = np.cumsum(negatives, axis=1)
    wins = (positives * (negatives_up_to - negatives / 2)).sum(axis=1)
    pairs = positives.sum(axis=1) * negatives_up_to[:, -1]
    return np.asarray(np.where(pairs > 0, wins / np.where(pairs > 0, pairs, 1.0), np.nan))


def weighted_average_precision(target: Integers, probabilities: Floats, weights: Floats) -> Floats:
    """R x K average precisions of one class against the rest; nan for a class without weight.

    target: n class indices; probabilities: n x K; weights: R x n.
    """
    target = np.asarray(target)
    columns = [
        binary_average_precision(target == label, probabilities[:, label], weights)
        for label in range(probabilities.shape[1])
    ]
    return np.stack(columns, axis=1)


def binary_average_precision(positive: npt.NDArray[np.bool_], score: Floats, weights: Floats) -> Floats:
    """R average precisions: the sum over distinct scores, highest first, of (recall - recall before) * precision.

    nan without a positive slide. positive, score: n; weights: R x n.
    """
    order = np.argsort(-score, kind="stable")
    ordered_score = score[order]
    group_starts = np.flatnonzero(np.r_[True, ordered_score[1:] != ordered_score[:-1]])
    ordered_weights = weights[:, order]
    positives = np.add.reduceat(ordered_weights * positive[order], group_starts, axis=1)
    called = np.cumsum(np.add.reduceat(ordered_weights, group_starts, axis=1), axis=1)
    precision = _ratio(np.cumsum(positives, axis=1), called)
    total = positives.sum(axis=1)
    found = (positives * precision).sum(axis=1)
    return np.asarray(np.where(total > 0, found / np.where(total > 0, total, 1.0), np.nan))


def f1_scores(confusion: Floats) -> Floats:
    """... x K values of 2 TP / (2 TP + FP + FN), 0 where the denominator is 0."""
    return _ratio(2 * _diagonal(confusion), confusion.sum(-1) + confusion.sum(-2))


def recalls(confusion: Floats) -> Floats:
    """... x K values of TP / (TP + FN), 0 for a class without slides."""
    return _ratio(_diagonal(confusion), confusion.sum(-1))


def precisions(confusion: Floats) -> Floats:
    """... x K values of TP / (TP + FP), 0 for a class that was never called."""
    return _ratio(_diagonal(confusion), confusion.sum(-2))


def specificities(confusion: Floats) -> Floats:
    """... x K values of TN / (TN + FP), 0 where every slide is of the class."""
    total = confusion.sum((-2, -1))[..., None]
    negatives = total - confusion.sum(-1)
    false_positives = confusion.sum(-2) - _diagonal(confusion)
    return _ratio(negatives - false_positives, negatives)


def accuracies(confusion: Floats) -> Floats:
    """Share of slides called right, one value a matrix."""
    return _ratio(_diagonal(confusion).sum(-1), confusion.sum((-2, -1)))


def balanced_accuracies(confusion: Floats) -> Floats:
    """Mean recall over the classes present, one value a matrix."""
    present = confusion.sum(-1) > 0
    return _ratio((recalls(confusion) * present).sum(-1), present.sum(-1).astype(np.float64))


def mean_defined(values: Floats) -> Floats:
    """Mean over the last axis of the values that are not nan; nan where none is left."""
    defined = ~np.isnan(values)
    count = defined.sum(-1)
    total = np.where(defined, values, 0.0).sum(-1)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def _diagonal(confusion: Floats) -> Floats:
    return np.diagonal(confusion, axis1=-2, axis2=-1)


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    safe = np.where(denominator > 0, denominator, 1.0)
    return np.asarray(np.where(denominator > 0, numerator / safe, 0.0))
