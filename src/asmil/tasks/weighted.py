"""Metrics under many sets of slide weights at once.

A bootstrap resample that draws slide i w_i times gives the same metric as the original slides with the
integer weights w. One pass over a matrix of weights (R x n) therefore computes R resamples without copying
slides; weights of 1 give the plain metric. All functions here are pure functions on arrays.

Notation: n slides, K classes, R sets of weights.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asmil.tables.arrays import Booleans, Floats

Integers = npt.NDArray[np.integer]


def weighted_confusion(target: Integers, predicted: Integers, n_classes: int, weights: Floats) -> Floats:
    """R x K x K sums of weights; entry (r, i, j): slides of class i that were predicted as j.

    target, predicted: n class indices; weights: R x n.
    """
    cell = np.asarray(target) * n_classes + np.asarray(predicted)
    indicator = np.zeros((len(cell), n_classes * n_classes))
    indicator[np.arange(len(cell)), cell] = 1.0
    counts: Floats = weights @ indicator
    return counts.reshape(-1, n_classes, n_classes)


def weighted_auc(target: Integers, probabilities: Floats, weights: Floats) -> Floats:
    """R x K one-vs-rest AUCs, ties counted half; nan if undefined.

    AUC_k = sum_ij w_i w_j psi(p_ik, p_jk) / (sum_i w_i sum_j w_j), i in class k, j not, and psi = 1, 1/2, 0
    for >, =, <. With the slides sorted by p_k, psi needs only the weight of the negatives below each group
    of equal scores: O(n log n) for the sort, O(R n) for the sums. Undefined: no weight inside or outside k.

    target: n class indices; probabilities: n x K; weights: R x n.
    """
    return label_auc(_of_each_class(target, probabilities), probabilities, weights)


def binary_auc(positive: Booleans, score: Floats, weights: Floats) -> Floats:
    """R AUCs of one score (n values) for one class against the rest; nan if undefined."""
    order = np.argsort(score, kind="stable")
    ordered_score, ordered_positive = score[order], positive[order]
    group_starts = np.flatnonzero(np.r_[True, ordered_score[1:] != ordered_score[:-1]])
    ordered_weights = weights.take(order, axis=1)
    positives = _group_sums(ordered_weights * ordered_positive, group_starts)
    negatives = _group_sums(ordered_weights * ~ordered_positive, group_starts)
    negatives_up_to = np.cumsum(negatives, axis=1)
    wins = (positives * (negatives_up_to - negatives / 2)).sum(axis=1)
    pairs = positives.sum(axis=1) * negatives_up_to[:, -1]
    return np.asarray(np.where(pairs > 0, wins / np.where(pairs > 0, pairs, 1.0), np.nan))


def weighted_average_precision(target: Integers, probabilities: Floats, weights: Floats) -> Floats:
    """R x K average precisions of one class against the rest; nan for a class without weight.

    target: n class indices; probabilities: n x K; weights: R x n.
    """
    return label_average_precision(_of_each_class(target, probabilities), probabilities, weights)


def _of_each_class(target: Integers, probabilities: Floats) -> Booleans:
    """n x K: whether a slide is of each class."""
    return np.asarray(np.asarray(target)[:, None] == np.arange(probabilities.shape[1]))


def binary_average_precision(positive: Booleans, score: Floats, weights: Floats) -> Floats:
    """R average precisions: the sum over distinct scores, highest first, of (recall - recall before) * precision.

    nan without a positive slide. positive, score: n; weights: R x n.
    """
    order = np.argsort(-score, kind="stable")
    ordered_score = score[order]
    group_starts = np.flatnonzero(np.r_[True, ordered_score[1:] != ordered_score[:-1]])
    ordered_weights = weights.take(order, axis=1)
    positives = _group_sums(ordered_weights * positive[order], group_starts)
    called = np.cumsum(_group_sums(ordered_weights, group_starts), axis=1)
    precision = _ratio(np.cumsum(positives, axis=1), called)
    total = positives.sum(axis=1)
    summed = (positives * precision).sum(axis=1)
    return np.asarray(np.where(total > 0, summed / np.where(total > 0, total, 1.0), np.nan))


def label_auc(present: Booleans, scores: Floats, weights: Floats) -> Floats:
    """R x K AUCs of K labels; present, scores: n x K; nan if undefined."""
    return np.stack([binary_auc(present[:, k], scores[:, k], weights) for k in range(present.shape[1])], axis=1)


def label_average_precision(present: Booleans, scores: Floats, weights: Floats) -> Floats:
    """R x K average precisions of K labels; present, scores: n x K; nan for a label without a positive slide."""
    columns = range(present.shape[1])
    return np.stack([binary_average_precision(present[:, k], scores[:, k], weights) for k in columns], axis=1)


def label_f1(present: Booleans, called: Booleans, weights: Floats) -> Floats:
    """R x K values of F1 of K labels; present, called: n x K; 0 for a label that neither occurs nor is predicted."""
    both = weights @ (called & present).astype(np.float64)
    return _ratio(2 * both, weights @ called.astype(np.float64) + weights @ present.astype(np.float64))


def weighted_mean(values: Floats, weights: Floats) -> Floats:
    """R means of n values; nan without weight."""
    return np.asarray(weights @ values / _positive_or_nan(weights.sum(axis=1)))


def absolute_error(target: Floats, value: Floats, weights: Floats) -> Floats:
    """R means of |target - value|; nan without weight."""
    return weighted_mean(np.abs(target - value), weights)


def root_mean_squared_error(target: Floats, value: Floats, weights: Floats) -> Floats:
    """R roots of the mean of (target - value)^2; nan without weight."""
    return np.asarray(np.sqrt(weighted_mean((target - value) ** 2, weights)))


def r_squared(target: Floats, value: Floats, weights: Floats) -> Floats:
    """R values of 1 - sum (y - v)^2 / sum (y - mean y)^2; nan if all targets with a weight above 0 are equal.

    Targets count as equal if they differ only by rounding, relative to their size.
    """
    total = weights.sum(axis=1)
    centered = target - target.mean()
    squares = weights @ centered**2
    spread = squares - (weights @ centered) ** 2 / _positive_or_nan(total)
    rounding = (1e-13 * np.abs(target).max()) ** 2 * total
    defined = spread > np.maximum(1e-12 * squares, rounding)
    return np.where(defined, 1 - weights @ (target - value) ** 2 / np.where(defined, spread, 1.0), np.nan)


def correlation(x: Floats, y: Floats, weights: Floats) -> Floats:
    """R Pearson correlations of n, or R x n, values; nan if either is constant."""
    total = weights.sum(axis=1, keepdims=True)
    safe = np.where(total > 0, total, 1.0)
    x_apart = x - (weights * x).sum(axis=1, keepdims=True) / safe
    y_apart = y - (weights * y).sum(axis=1, keepdims=True) / safe
    x_spread, y_spread = (weights * x_apart**2).sum(axis=1), (weights * y_apart**2).sum(axis=1)
    product, smallest = np.sqrt(x_spread * y_spread), 1e-12 * total[:, 0]
    defined = (x_spread > smallest * np.abs(x).max() ** 2) & (y_spread > smallest * np.abs(y).max() ** 2)
    return np.where(defined, (weights * x_apart * y_apart).sum(axis=1) / np.where(defined, product, 1.0), np.nan)


def midranks(values: Floats, weights: Floats) -> Floats:
    """R x n midranks of n values, each repeated according to its weight."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    group_weight = _group_sums(weights.take(order, axis=1), starts)
    midrank = np.cumsum(group_weight, axis=1) - group_weight / 2 + 0.5
    ranks = np.empty_like(weights)
    ranks[:, order] = np.repeat(midrank, np.diff(np.r_[starts, len(values)]), axis=1)
    return ranks


def f1_scores(confusion: Floats) -> Floats:
    """... x K values of 2 TP / (2 TP + FP + FN), 0 if the denominator is 0."""
    return _ratio(2 * _diagonal(confusion), confusion.sum(-1) + confusion.sum(-2))


def recalls(confusion: Floats) -> Floats:
    """... x K values of TP / (TP + FN), 0 for a class without slides."""
    return _ratio(_diagonal(confusion), confusion.sum(-1))


def precisions(confusion: Floats) -> Floats:
    """... x K values of TP / (TP + FP), 0 for a class that was never predicted."""
    return _ratio(_diagonal(confusion), confusion.sum(-2))


def specificities(confusion: Floats) -> Floats:
    """... x K values of TN / (TN + FP), 0 if every slide belongs to the class."""
    total = confusion.sum((-2, -1))[..., None]
    negatives = total - confusion.sum(-1)
    false_positives = confusion.sum(-2) - _diagonal(confusion)
    return _ratio(negatives - false_positives, negatives)


def accuracies(confusion: Floats) -> Floats:
    """Share of slides predicted correctly, one value per matrix."""
    return _ratio(_diagonal(confusion).sum(-1), confusion.sum((-2, -1)))


def balanced_accuracies(confusion: Floats) -> Floats:
    """Mean recall over the classes present, one value per matrix."""
    present = confusion.sum(-1) > 0
    return _ratio((recalls(confusion) * present).sum(-1), present.sum(-1).astype(np.float64))


def has_two_classes(target: Integers, n_classes: int, weights: Floats) -> Booleans:
    """R: whether at least two classes have weight; resamples with one class have no AUC and are skipped."""
    membership = np.eye(n_classes)[np.asarray(target)]
    return np.asarray(((weights @ membership) > 0).sum(axis=1) >= 2)


def mean_defined(values: Floats) -> Floats:
    """Mean over the last axis of the values that are not nan; nan if there are none."""
    defined = ~np.isnan(values)
    count = defined.sum(-1)
    total = np.where(defined, values, 0.0).sum(-1)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def _group_sums(ordered: Floats, starts: Integers) -> Floats:
    """R x G sums of R x n values over groups of neighbors, which begin at `starts`."""
    if len(starts) == ordered.shape[1]:
        return ordered
    return np.add.reduceat(ordered, starts, axis=1)


def _diagonal(confusion: Floats) -> Floats:
    return np.diagonal(confusion, axis1=-2, axis2=-1)


def _positive_or_nan(values: Floats) -> Floats:
    return np.where(values > 0, values, np.nan)


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    safe = np.where(denominator > 0, denominator, 1.0)
    return np.asarray(np.where(denominator > 0, numerator / safe, 0.0))
