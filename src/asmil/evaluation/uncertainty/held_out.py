"""Conformal p-values from patients that the models of a fold were not fitted on.

Patients are exchangeable, slides of one patient are not independent. Each held-out patient therefore counts once: its
m slides have the weight 1 / m. For one fold with n patients, and a new slide of a new patient with the score s,

    p = (1 + sum of the weights of held-out slides with a score >= s) / (n + 1),

so that P(p <= alpha) <= alpha for every alpha (hierarchical conformal prediction). Ties count as larger. With K folds,
the sums and the numbers of patients are added before the division (cross-conformal p-values). Then
P(p <= alpha) <= 2 alpha + 2 (K - 1) / (n + K), with n over all folds, under any dependence of the folds; in practice it
is close to alpha.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.tables.arrays import Floats, Integers

ROUNDING = 1e-9
"""Levels and p-values that differ by less are equal, e.g. 1 - 0.9 and 1 / 10."""


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """The scores of the held-out cases of one fold, ascending, with the weight of each and of all larger ones."""

    scores: Floats
    tail: Floats
    n_patients: int

    @classmethod
    def of(cls, scores: npt.ArrayLike, patients: Sequence[Hashable] | npt.NDArray[np.generic]) -> HeldOutScores:
        """Scores of n cases, and the patient of each."""
        values = np.asarray(scores, dtype=np.float64)
        _, index, counts = np.unique(np.asarray(patients), return_inverse=True, return_counts=True)
        order = np.argsort(values, kind="stable")
        weights = (1 / counts[index])[order]
        tail = np.append(np.cumsum(weights[::-1])[::-1], 0.0)
        return cls(values[order], tail, len(counts))

    def at_least(self, scores: Floats) -> Floats:
        """The weight of the held-out cases whose score is at least as large as each of these."""
        found: Floats = self.tail[np.searchsorted(self.scores, scores, side="left")]
        return found


def in_order_of_appearance(patients: npt.NDArray[np.generic]) -> Integers:
    """Numbers of patients that say nothing about their names."""
    _, first, index = np.unique(patients, return_index=True, return_inverse=True)
    numbers: Integers = np.argsort(np.argsort(first))[index].astype(np.int64)
    return numbers


def pooled_p_values(held_out: Sequence[HeldOutScores], scores: Sequence[Floats]) -> Floats:
    """The p-values of new cases, from their scores in each fold.

    >>> fold = HeldOutScores.of([1.0, 2.0, 3.0, 3.0], ["a", "b", "c", "c"])
    >>> pooled_p_values([fold], [np.array([0.0, 2.0, 4.0])]).tolist()
    [1.0, 0.75, 0.25]
    """
    larger = sum((fold.at_least(of_fold) for fold, of_fold in zip(held_out, scores, strict=True)), np.zeros(1))
    return np.asarray((1 + larger) / (1 + sum(fold.n_patients for fold in held_out)))
