"""The epoch whose predictions count: the last, the best on validation bags, or (optimistic) the best on test bags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asmil.classic.folds import Fold
from asmil.tables.arrays import Floats, Integers
from asmil.tasks.metrics import accuracy, cross_entropy, macro_auc, predicted_classes

Scores = Floats
RULES = {
    "last": "after the last epoch",
    "val": "at the epoch that an inner ninth of the training bags chose",
    "optimistic": "at the epoch that is best on the test bags themselves: an upper bound, not a result",
}


@dataclass(frozen=True)
class RuleResult:
    """The result of one rule for one seed.

    folds: accuracy of every fold
    auc: over all bags, each scored by the model that did not see it
    epochs: the epoch (from 1) used for each fold; empty if there are none
    """

    folds: list[float]
    auc: float
    epochs: list[int]


def joined_result(scores: Scores, label: Integers, folds: Sequence[Fold], epochs: list[int]) -> RuleResult:
    """scores: B x 2, each bag scored by the model of the fold that tests it."""
    predicted = predicted_classes(scores)
    return RuleResult(
        [accuracy(label[fold.test], predicted[fold.test]) for fold in folds], macro_auc(label, scores), epochs
    )


def read_rules(probabilities: Scores, label: Integers, folds: Sequence[Fold]) -> dict[str, RuleResult]:
    """All rules, from the probabilities of all bags after every epoch.

    probabilities: E x 2F x B x K; the first F trainings saw all training bags of their fold, the others its `fit` part
    """
    n_epochs, n_folds = len(probabilities), len(folds)
    of_all, of_part = probabilities[:, :n_folds], probabilities[:, n_folds:]
    chosen = {
        "last": (of_all, [n_epochs - 1] * n_folds),
        "val": (of_part, [choose_epoch(of_part[:, i], label, fold.val) for i, fold in enumerate(folds)]),
        "optimistic": (of_all, [_best_epoch(of_all[:, i], label, fold.test) for i, fold in enumerate(folds)]),
    }
    results = {}
    for rule, (scored, epochs) in chosen.items():
        scores = np.zeros((len(label), probabilities.shape[-1]))
        for i, (fold, epoch) in enumerate(zip(folds, epochs, strict=True)):
            scores[fold.test] = scored[epoch, i, fold.test]
        results[rule] = joined_result(scores, label, folds, [epoch + 1 for epoch in epochs])
    return results


def choose_epoch(probabilities: Scores, label: Integers, bags: Integers) -> int:
    """The epoch (from 0) with the best accuracy on `bags`; of equals that with the lower loss, then the earlier.

    probabilities: E x B x K of one training
    """
    ranks = [
        (-accuracy(label[bags], predicted_classes(epoch[bags])), cross_entropy(label[bags], epoch[bags]))
        for epoch in probabilities
    ]
    return min(range(len(ranks)), key=ranks.__getitem__)


def _best_epoch(probabilities: Scores, label: Integers, bags: Integers) -> int:
    return int(np.argmax([accuracy(label[bags], predicted_classes(epoch[bags])) for epoch in probabilities]))
