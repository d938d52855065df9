"""The leak check: a column that predicts the label alone is a label, not a feature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asmil.classic.bag_set import BagSet
from asmil.errors import AsmilError
from asmil.tables.arrays import Booleans, Floats

LIMIT = 0.98
_SHOWN = 3


@dataclass(frozen=True)
class ColumnScores:
    """How well each column alone predicts the label: accuracy of its best threshold, in either direction.

    per_instance: D, every instance against the label of its bag
    per_bag: D, the mean of the column over a bag against its label
    suspects: the columns (from 0) that do so too well, the best first
    """

    per_instance: Floats
    per_bag: Floats
    suspects: tuple[int, ...]

    @property
    def best(self) -> int:
        """The column (from 0) with the highest of its two scores."""
        return int(np.argmax(np.maximum(self.per_instance, self.per_bag)))


def column_scores(bag_set: BagSet) -> ColumnScores:
    """The scores of all columns, in O(D N log N).

    A column is suspect from an accuracy of 0.98 on, per instance or per bag, unless its errors are more than half of
    those of always predicting the larger class: if nearly all instances have one class, every column reaches 0.98.
    """
    of_instances, of_bags = bag_set.label[bag_set.bag], bag_set.label
    sizes = np.bincount(bag_set.bag)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    means = np.add.reduceat(bag_set.features.astype(np.float64), starts, axis=0) / sizes[:, None]
    per_instance, per_bag = best_threshold(bag_set.features, of_instances), best_threshold(means, of_bags)
    suspect = _predicts(per_instance, of_instances) | _predicts(per_bag, of_bags)
    order = np.argsort(-np.maximum(per_instance, per_bag), kind="stable")
    return ColumnScores(per_instance, per_bag, tuple(int(column) for column in order if suspect[column]))


def best_threshold(values: NDArray[np.floating], label: NDArray[np.integer]) -> Floats:
    """The accuracy of the best single threshold on each column of `values` (n x D), either side being class 1.

    >>> best_threshold(np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [4.0, 5.0]]), np.array([0, 1, 1, 1])).tolist()
    [1.0, 0.75]
    """
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    sign = np.where(label > 0, -1, 1)[order]
    # correct answers if the first k in the order are of class 0, minus those if all are of class 1
    gained = np.vstack([np.zeros((1, values.shape[1]), dtype=np.int64), np.cumsum(sign, axis=0)])
    no_cut = np.vstack([np.zeros((1, values.shape[1]), dtype=bool), ordered[1:] == ordered[:-1]])
    right = int(np.sum(label > 0)) + gained[:-1]
    n = len(label)
    share = np.where(no_cut, 0.5, right / n)
    return np.asarray(np.maximum(share, 1 - share).max(axis=0))


def refuse_leaks(bag_set: BagSet) -> ColumnScores:
    """The scores, or an error that names the file, the column and both scores."""
    scores = column_scores(bag_set)
    if not scores.suspects:
        return scores
    described = "; ".join(
        f"column {column + 1} of {bag_set.n_features}: {scores.per_instance[column]:.3f} per instance, "
        f"{scores.per_bag[column]:.3f} per bag"
        for column in scores.suspects[:_SHOWN]
    )
    more = f"; and {len(scores.suspects) - _SHOWN} more" if scores.suspects[_SHOWN:] else ""
    raise AsmilError(
        f"{bag_set.path}: a column alone predicts the label, so it is the label or made from it ({described}{more}; "
        f"the limit is {LIMIT}); take it out of the file, or give --drop-last-column if it is the last"
    )


def _predicts(accuracy: Floats, label: NDArray[np.integer]) -> Booleans:
    rarer = min(float(np.mean(label > 0)), float(np.mean(label == 0)))
    return np.asarray((accuracy >= LIMIT) & (1 - accuracy <= rarer / 2))
