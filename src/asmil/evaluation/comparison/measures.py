"""By which numbers runs of a kind of task are compared: each a function of truth and prediction under weights.

A measure takes the truth (n values, or n x T), the prediction (n x C) and R x n weights of the rows, and gives R
values, one a set of weights: weights of 1 give the plain number, counts of drawn patients a bootstrap resample (see
`asmil.tasks.weighted`). It is nan where it is undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from asmil.tasks import weighted
from asmil.tasks.concordance import weighted_concordance
from asmil.tasks.metrics import predicted_classes

Floats = npt.NDArray[np.float64]
Truth = npt.NDArray[Any]


@dataclass(frozen=True)
class Measure:
    """One number of a run; `joins_folds`: whether predictions of several models may be judged in one go."""

    name: str
    title: str
    function: Callable[[Truth, Floats, Floats], Floats]
    larger_is_better: bool = True
    joins_folds: bool = True


def macro_f1(target: Truth, probabilities: Floats, weights: Floats) -> Floats:
    """Mean F1 over all K classes; the predicted class is the argmax."""
    n_classes = probabilities.shape[1]
    confusion = weighted.weighted_confusion(target, predicted_classes(probabilities), n_classes, weights)
    return np.asarray(weighted.f1_scores(confusion).mean(axis=1))


def macro_auc(target: Truth, probabilities: Floats, weights: Floats) -> Floats:
    """Mean one-vs-rest AUC over the classes for which it is defined."""
    return weighted.mean_defined(weighted.weighted_auc(target, probabilities, weights))


def c_index(time_and_event: Truth, risk: Floats, weights: Floats) -> Floats:
    """Harrell's C: share of comparable pairs in which the patient with the higher risk had the event first."""
    return weighted_concordance(time_and_event[:, 0], time_and_event[:, 1], risk[:, 0], weights)


def mean_absolute_error(target: Truth, value: Floats, weights: Floats) -> Floats:
    """Weighted mean of |value - target|."""
    return np.asarray(weights @ np.abs(value[:, 0] - target) / weights.sum(axis=1))


def r_squared(target: Truth, value: Floats, weights: Floats) -> Floats:
    """1 - (squares of the errors) / (squares around the mean); nan where all targets are equal."""
    total = weights.sum(axis=1)
    residual = weights @ (value[:, 0] - target) ** 2
    centered = target - target.mean()
    around = weights @ centered**2 - (weights @ centered) ** 2 / total
    safe = np.where(around > 1e-12, around, 1.0)
    return np.asarray(np.where(around > 1e-12, 1 - residual / safe, np.nan))


def label_macro_f1(present: Truth, probabilities: Floats, weights: Floats) -> Floats:
    """Mean over labels of the F1 at 0.5."""
    called = probabilities >= 0.5
    true_positives = weights @ (called & (present > 0)).astype(np.float64)
    size = weights @ (called.astype(np.float64) + (present > 0))
    safe = np.where(size > 0, size, 1.0)
    return np.asarray(np.where(size > 0, 2 * true_positives / safe, 0.0).mean(axis=1))


def label_macro_auc(present: Truth, probabilities: Floats, weights: Floats) -> Floats:
    """Mean over labels of the AUC, where defined."""
    labels = range(probabilities.shape[1])
    columns = [
        weighted.weighted_auc(present[:, label].astype(np.intp), probabilities[:, [label, label]], weights)[:, 1]
        for label in labels
    ]
    return weighted.mean_defined(np.stack(columns, axis=1))


MEASURES: Mapping[str, tuple[Measure, ...]] = {
    "classification": (
        Measure("macro_f1", "macro-F1", macro_f1),
        Measure("macro_auc", "macro-AUC", macro_auc),
    ),
    # the risks of two models have no common scale, so no pair is made across folds
    "survival": (Measure("c_index", "C-index", c_index, joins_folds=False),),
    "regression": (
        Measure("mae", "MAE", mean_absolute_error, larger_is_better=False),
        Measure("r2", "R2", r_squared),
    ),
    "multilabel": (
        Measure("macro_f1", "macro-F1", label_macro_f1),
        Measure("macro_auc", "macro-AUC", label_macro_auc),
    ),
}
