"""Classification metrics: pure functions on arrays, for K classes and n slides.

`target` and `predicted` are n class indices (0 .. K - 1), `probabilities` is n x K. The predicted class is
the argmax of the probabilities (the first at a tie). Averages are macro averages: every class has the same
weight. For metrics of many bootstrap resamples at once see `asmil.tasks.weighted`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.tables.arrays import AnyFloats, Booleans, Floats
from asmil.tasks import weighted
from asmil.tasks.checked_arrays import classes_of, probabilities_of, same_length

Integers = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class ClassMetrics:
    """One class against the rest. Ratios with a zero denominator are 0; an undefined AUC is nan."""

    label: int
    precision: float
    recall: float
    specificity: float
    f1: float
    auc: float
    support: int


@dataclass(frozen=True, slots=True)
class OneVsRestF1:
    """F1 with one threshold per class; number of slides without a class, and with more than one."""

    per_class: Floats
    macro: float
    slides_without_class: int
    slides_with_several: int


def predicted_classes(probabilities: AnyFloats) -> npt.NDArray[np.intp]:
    """Argmax of every row; the first class at a tie."""
    return np.asarray(np.argmax(probabilities, axis=1))


def accuracy(target: Integers, predicted: Integers) -> float:
    """Share of slides that are predicted correctly.

    >>> accuracy(np.array([0, 1, 1]), np.array([0, 1, 0]))
    0.6666666666666666
    """
    same_length(target=len(target), predicted=len(predicted))
    return float(np.mean(np.asarray(target) == np.asarray(predicted)))


def macro_f1(target: Integers, predicted: Integers, n_classes: int) -> float:
    """Mean of F1 = 2 TP / (2 TP + FP + FN) over all K classes of the task.

    A class that neither occurs nor is predicted has F1 = 0. scikit-learn gives the same result with
    `f1_score(..., labels=range(K), average="macro", zero_division=0)`.
    """
    return float(weighted.f1_scores(_confusion(target, predicted, n_classes)).mean())


def f1_per_class(target: Integers, predicted: Integers, n_classes: int) -> Floats:
    """K values of 2 TP / (2 TP + FP + FN), 0 if the denominator is 0."""
    return weighted.f1_scores(_confusion(target, predicted, n_classes))


def micro_f1(target: Integers, predicted: Integers) -> float:
    """F1 of the pooled counts of all classes; with one predicted class per slide this equals the accuracy."""
    return accuracy(target, predicted)


def weighted_f1(target: Integers, predicted: Integers, n_classes: int) -> float:
    """Mean F1, weighted by the frequency of each class in `target`."""
    return float(np.average(f1_per_class(target, predicted, n_classes), weights=_supports(target, n_classes)))


def one_vs_rest_f1(target: Integers, probabilities: AnyFloats, threshold: float = 0.5) -> OneVsRestF1:
    """F1 if every class is predicted separately, at p >= threshold: a slide may get no class, or several.

    All other functions here use the argmax instead; for K > 2 slides without a class lower the recall.
    """
    truth, scores = probabilities_of(target, probabilities)
    called = scores >= threshold
    of_class = np.eye(called.shape[1], dtype=np.bool_)[truth]
    size = called.sum(axis=0) + of_class.sum(axis=0)
    f1 = 2 * (called & of_class).sum(axis=0) / np.maximum(size, 1)
    n_called = called.sum(axis=1)
    return OneVsRestF1(f1, float(f1.mean()), int((n_called == 0).sum()), int((n_called > 1).sum()))


def balanced_accuracy(target: Integers, predicted: Integers, n_classes: int) -> float:
    """Mean recall over the classes that occur in `target`."""
    return float(weighted.balanced_accuracies(_confusion(target, predicted, n_classes)))


def auc_per_class(target: Integers, probabilities: AnyFloats) -> Floats:
    """K one-vs-rest AUCs, ties by midranks; nan if no slide, or every slide, belongs to the class."""
    truth, scores = probabilities_of(target, probabilities)
    return np.asarray(weighted.weighted_auc(truth, scores, np.ones((1, len(truth))))[0])


def macro_auc(target: Integers, probabilities: AnyFloats) -> float:
    """Mean one-vs-rest AUC over the classes for which it is defined; nan if there are none.

    For two classes whose probabilities sum to 1 this is the AUC of class 1.
    """
    return float(weighted.mean_defined(auc_per_class(target, probabilities)))


def weighted_mean_auc(target: Integers, probabilities: AnyFloats) -> float:
    """Mean one-vs-rest AUC, weighted by class frequency, over the classes for which it is defined."""
    aucs = auc_per_class(target, probabilities)
    supports = _supports(target, len(aucs))
    defined = ~np.isnan(aucs)
    return float(np.average(aucs[defined], weights=supports[defined])) if defined.any() else float("nan")


def one_vs_one_auc(target: Integers, probabilities: AnyFloats) -> float:
    """Hand and Till's AUC: the mean over pairs of classes of the two AUCs among the slides of the pair.

    Pairs with an absent class are left out; nan if no pair remains. This differs from `macro_auc`.
    """
    truth, scores = probabilities_of(target, probabilities)
    pairs = []
    for first in range(scores.shape[1]):
        for second in range(first + 1, scores.shape[1]):
            both = (truth == first) | (truth == second)
            if not both.any():
                continue
            unweighted = np.ones((1, int(both.sum())))
            aucs = [weighted.binary_auc(truth[both] == c, scores[both, c], unweighted)[0] for c in (first, second)]
            pairs.append(np.mean(aucs))
    return float(weighted.mean_defined(np.array(pairs, dtype=np.float64)))


def confusion_matrix(target: Integers, predicted: Integers, n_classes: int) -> npt.NDArray[np.int64]:
    """K x K counts: rows are the true classes, columns the predicted ones."""
    return np.rint(_confusion(target, predicted, n_classes)).astype(np.int64)


def per_class(target: Integers, probabilities: AnyFloats) -> list[ClassMetrics]:
    """The metrics of every class against the rest, in the order of the columns of `probabilities`."""
    confusion = _confusion(target, predicted_classes(probabilities), probabilities.shape[1])
    columns = zip(
        weighted.precisions(confusion),
        weighted.recalls(confusion),
        weighted.specificities(confusion),
        weighted.f1_scores(confusion),
        auc_per_class(target, probabilities),
        confusion.sum(axis=1),
        strict=True,
    )
    return [
        ClassMetrics(label, float(prec), float(rec), float(spec), float(f1), float(auc), round(float(support)))
        for label, (prec, rec, spec, f1, auc, support) in enumerate(columns)
    ]


def cross_entropy(target: Integers, probabilities: AnyFloats) -> float:
    """Mean of -ln p(true class), in nats.

    Probabilities are clipped to at least the machine epsilon of their type, so that confident errors stay finite.
    """
    probabilities = np.asarray(probabilities)
    of_target = probabilities[np.arange(len(probabilities)), np.asarray(target)]
    smallest = np.finfo(probabilities.dtype).eps
    return float(-np.log(np.maximum(of_target, smallest)).mean(dtype=np.float64))


def roc_points(positive: Booleans, score: AnyFloats, weights: AnyFloats | None = None) -> tuple[AnyFloats, AnyFloats]:
    """False and true positive rates from (0, 0) to (1, 1), one point per distinct score; weights: one per slide."""
    true, total = _cumulated(positive, score, weights)
    false = total - true
    return np.r_[0.0, false / false[-1]], np.r_[0.0, true / true[-1]]


def precision_recall_points(
    positive: Booleans, score: AnyFloats, weights: AnyFloats | None = None
) -> tuple[AnyFloats, AnyFloats]:
    """Recall and precision from the highest score down, one point per distinct score; recall increases to 1."""
    true, total = _cumulated(positive, score, weights)
    return true / true[-1], true / np.maximum(total, 1e-300)


def _cumulated(positive: Booleans, score: AnyFloats, weights: AnyFloats | None) -> tuple[AnyFloats, AnyFloats]:
    """The weight of positive slides, and of all slides, at or above each distinct score."""
    order = np.argsort(-score, kind="stable")
    last_of_tie = np.r_[np.flatnonzero(np.diff(score[order])), len(score) - 1]
    weight = np.ones(len(score)) if weights is None else weights[order]
    return np.cumsum(weight * positive[order])[last_of_tie], np.cumsum(weight)[last_of_tie]


def _confusion(target: Integers, predicted: Integers, n_classes: int) -> Floats:
    truth, called = classes_of("target", target, n_classes), classes_of("predicted", predicted, n_classes)
    same_length(target=len(truth), predicted=len(called))
    return np.asarray(weighted.weighted_confusion(truth, called, n_classes, np.ones((1, len(truth))))[0])


def _supports(target: Integers, n_classes: int) -> npt.NDArray[np.intp]:
    return np.bincount(np.asarray(target), minlength=n_classes)
