"""How good a classification is: pure functions on arrays, K classes, n slides.

`target` and `predicted` are n class indices (0 .. K - 1), `probabilities` is n x K. The predicted class is
the argmax of the probabilities (the first at a tie). Averages are macro averages: every class counts the
same, however rare. For metrics of many bootstrap resamples at once see `asmil.tasks.weighted`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.tasks import weighted

Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class ClassMetrics:
    """One class against the rest. Ratios without a denominator are 0; an undefined AUC is nan."""

    label: int
    precision: float
    recall: float
    specificity: float
    f1: float
    auc: float
    support: int


def predicted_classes(probabilities: Floats) -> npt.NDArray[np.intp]:
    """Argmax of every row; at a tie the first class."""
    return np.asarray(np.argmax(probabilities, axis=1))


def accuracy(target: Integers, predicted: Integers) -> float:
    """Share of slides whose class was called right.

    >>> accuracy(np.array([0, 1, 1]), np.array([0, 1, 0]))
    0.6666666666666666
    """
    return float(np.mean(np.asarray(target) == np.asarray(predicted)))


def macro_f1(target: Integers, predicted: Integers, n_classes: int) -> float:
    """Mean of F1 = 2 TP / (2 TP + FP + FN) over all K classes of the task.

    A class that neither occurs nor is called counts with F1 = 0. scikit-learn gives the same number with
    `f1_score(..., labels=range(K), average="macro", zero_division=0)`.
    """
    return float(weighted.f1_scores(_confusion(target, predicted, n_classes)).mean())


def balanced_accuracy(target: Integers, predicted: Integers, n_classes: int) -> float:
    """Mean recall over the classes that occur in `target`."""
    return float(weighted.balanced_accuracies(_confusion(target, predicted, n_classes)))


def auc_per_class(target: Integers, probabilities: Floats) -> npt.NDArray[np.float64]:
    """K areas under the one-vs-rest ROC curves, ties by midranks; nan where a class or its rest is absent."""
    scores = np.asarray(probabilities, dtype=np.float64)
    return np.asarray(weighted.weighted_auc(target, scores, np.ones((1, len(target))))[0])


def macro_auc(target: Integers, probabilities: Floats) -> float:
    """Mean one-vs-rest AUC over the classes for which it is defined; nan if there is none.

    For two classes whose probabilities sum to 1 this is the AUC of class 1.
    """
    return float(weighted.mean_defined(auc_per_class(target, probabilities)))


def confusion_matrix(target: Integers, predicted: Integers, n_classes: int) -> npt.NDArray[np.int64]:
    """K x K counts: rows are the true classes, columns the predicted ones."""
    return np.rint(_confusion(target, predicted, n_classes)).astype(np.int64)


def per_class(target: Integers, probabilities: Floats) -> list[ClassMetrics]:
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


def cross_entropy(target: Integers, probabilities: Floats) -> float:
    """Mean of -ln p(true class), in nats.

    Probabilities are kept above the machine epsilon of their type, so that one confident error stays finite.
    """
    probabilities = np.asarray(probabilities)
    of_target = probabilities[np.arange(len(probabilities)), np.asarray(target)]
    smallest = np.finfo(probabilities.dtype).eps
    return float(-np.log(np.maximum(of_target, smallest)).mean(dtype=np.float64))


def _confusion(target: Integers, predicted: Integers, n_classes: int) -> npt.NDArray[np.float64]:
    return np.asarray(weighted.weighted_confusion(target, predicted, n_classes, np.ones((1, len(target))))[0])
