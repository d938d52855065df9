"""A paired permutation test: do two classifiers have the same macro-F1?

Under the null hypothesis the two models are exchangeable, unit by unit; a unit is a patient with all its
slides, or a slide. The predictions of a unit are swapped between the models with probability 1/2, and the
difference in macro-F1 is recomputed. Only units with a discordant slide matter: with d of them there are 2^d
patterns. If d is small, all patterns are tried; otherwise patterns are drawn at random.

Macro-F1 needs two counts per class: slides predicted correctly, and slides predicted as the class. A swap moves a
unit's counts from one model to the other, so each pattern is a sum of small integers, and slides are read only once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.tables.arrays import Floats
from asmil.tasks.checked_arrays import Classes, classes_of, same_length
from asmil.tasks.intervals import generator_of, units_of

MOST_DISCORDANT_FOR_EXACT = 20
TIE = 1e-12
"""Differences in F1 that are closer than this count as equal."""
CELLS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class PermutationTest:
    """Two macro-F1 values, their difference a - b, and how many swap patterns give a difference as large.

    p: two-sided; p_one_sided: for a being better; count: patterns (of `patterns`) that are at least as extreme,
    two-sided. Exact: p = count / patterns. Drawn: p = (count + 1) / (patterns + 1).
    """

    value_a: float
    value_b: float
    difference: float
    p: float
    p_one_sided: float
    patterns: int
    exact: bool
    count: int
    n_discordant: int


@dataclass(frozen=True)
class _Counts:
    """The counts behind macro-F1: slides per class (K), and 2 x K counts of both models (correct, predicted)."""

    support: Floats
    a: Floats
    b: Floats

    def differences(self, moved: Floats) -> Floats:
        """Macro-F1 of a minus that of b after moving the counts `moved` (R x 2K) from b to a."""
        return self._macro_f1(self.a + moved) - self._macro_f1(self.b - moved)

    def values(self) -> tuple[float, float]:
        """Macro-F1 of both models without swaps."""
        return float(self._macro_f1(self.a[None])[0]), float(self._macro_f1(self.b[None])[0])

    def _macro_f1(self, counts: Floats) -> Floats:
        n_classes = len(self.support)
        right, called = counts[:, :n_classes], counts[:, n_classes:]
        # a class that neither occurs nor is predicted has no correct predictions: its F1 is 0 / 1
        return np.asarray((2 * right / np.maximum(self.support + called, 1.0)).mean(axis=1))


def permutation_f1(
    target: npt.ArrayLike,
    predicted_a: npt.ArrayLike,
    predicted_b: npt.ArrayLike,
    n_classes: int,
    patients: Sequence[Hashable] | npt.NDArray[np.generic] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    exact: bool | None = None,
) -> PermutationTest:
    """Compare the macro-F1 (over all K classes) of two models on the same slides.

    target, predicted_a, predicted_b: n class indices. patients: n names; a patient's slides are swapped together.
    exact: True tries all patterns, False draws `resamples` of them, None tries all up to 20 discordant units.

    >>> permutation_f1([0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 0, 1], n_classes=2).p
    0.5
    """
    if not isinstance(n_classes, int | np.integer) or n_classes < 2:
        raise AsmilError(f"n_classes is {n_classes!r}; give the number of classes of the task, at least 2")
    truth, a, b = (
        classes_of(name, values, n_classes)
        for name, values in (("target", target), ("predicted_a", predicted_a), ("predicted_b", predicted_b))
    )
    same_length(target=len(truth), predicted_a=len(a), predicted_b=len(b))
    units = units_of(patients, len(truth))
    counts, changes, discordant = _count(truth, a, b, n_classes, units)
    n_discordant = int(discordant.sum())
    if exact is None:
        exact = n_discordant <= MOST_DISCORDANT_FOR_EXACT
    if exact and n_discordant > MOST_DISCORDANT_FOR_EXACT:
        raise AsmilError(
            f"{n_discordant} discordant {'slides' if patients is None else 'patients'} have too many patterns to try "
            f"all (at most {MOST_DISCORDANT_FOR_EXACT}); leave out exact=True to draw patterns at random"
        )
    if not exact and resamples < 1:
        raise AsmilError(f"{resamples} resamples are too few; give at least 1, better 10,000")

    value_a, value_b = counts.values()
    difference = value_a - value_b
    sums = _all_patterns(changes[discordant]) if exact else _drawn_patterns(changes, discordant, resamples, seed)
    patterns = count = count_one_sided = 0
    for moved in sums:
        differences = counts.differences(moved)
        patterns += len(differences)
        count += int((np.abs(differences) >= abs(difference) - TIE).sum())
        count_one_sided += int((differences >= difference - TIE).sum())
    # with drawn patterns the observed one is counted too, which keeps p above 0 and the test valid
    observed = 0 if exact else 1
    return PermutationTest(
        value_a=value_a,
        value_b=value_b,
        difference=difference,
        p=(count + observed) / (patterns + observed),
        p_one_sided=(count_one_sided + observed) / (patterns + observed),
        patterns=patterns,
        exact=exact,
        count=count,
        n_discordant=n_discordant,
    )


def _count(
    truth: Classes, a: Classes, b: Classes, n_classes: int, units: Classes
) -> tuple[_Counts, Floats, npt.NDArray[np.bool_]]:
    """The counts, the change (U x 2K) of a's counts when a unit is swapped, and which units are discordant."""
    of_a, of_b = _of_slides(truth, a, n_classes), _of_slides(truth, b, n_classes)
    n_units = int(units.max()) + 1
    changes = np.zeros((n_units, 2 * n_classes))
    np.add.at(changes, units, of_b - of_a)
    discordant = np.bincount(units, weights=a != b, minlength=n_units) > 0
    support = np.bincount(truth, minlength=n_classes).astype(np.float64)
    return _Counts(support, of_a.sum(axis=0), of_b.sum(axis=0)), changes, discordant


def _of_slides(truth: Classes, predicted: Classes, n_classes: int) -> Floats:
    """n x 2K: whether a class was predicted correctly (first K columns), and whether it was predicted (others)."""
    called = np.eye(n_classes)[predicted]
    return np.concatenate([called * (truth == predicted)[:, None], called], axis=1)


def _all_patterns(changes: Floats) -> Iterator[Floats]:
    """The sums of all subsets of rows, in blocks: each subset of the last rows is added to all of the first."""
    half = len(changes) // 2
    first, last = _subset_sums(changes[:half]), _subset_sums(changes[half:])
    for row in last:
        yield first + row


def _subset_sums(changes: Floats) -> Floats:
    sums = np.zeros((1, changes.shape[1]))
    for change in changes:
        sums = np.concatenate([sums, sums + change])
    return sums


def _drawn_patterns(changes: Floats, discordant: npt.NDArray[np.bool_], resamples: int, seed: int) -> Iterator[Floats]:
    """Sums of random subsets; a swap is drawn for every unit, so that the draws do not depend on the predictions."""
    generator = generator_of(seed)
    step = max(1, CELLS_AT_ONCE // len(changes))
    for start in range(0, resamples, step):
        swapped = generator.integers(0, 2, size=(min(step, resamples - start), len(changes)))
        yield swapped[:, discordant].astype(np.float64) @ changes[discordant]
