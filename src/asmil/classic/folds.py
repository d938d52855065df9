"""Folds of bags, and scaling by the training bags of a fold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit

from asmil.classic.bag_set import BagSet
from asmil.errors import AsmilError
from asmil.tables.arrays import Floats32, Integers

INNER_SHARE = 1 / 9


@dataclass(frozen=True)
class Fold:
    """One fold, as indices of bags.

    train: all bags that are not tested
    fit, val: `train` in two parts; the second part selects an epoch
    """

    test: Integers
    train: Integers
    fit: Integers
    val: Integers


def make_folds(bag_set: BagSet, n_folds: int, seed: int) -> list[Fold]:
    """Stratified folds, shuffled by the seed; every bag is tested once."""
    rarest = int(np.bincount(bag_set.label).min())
    if n_folds > rarest:
        raise AsmilError(
            f"{bag_set.path}: its rarer class has {rarest} bags, too few for {n_folds} folds; give --folds {rarest} or "
            "fewer"
        )
    outer = StratifiedKFold(n_folds, shuffle=True, random_state=seed)
    return [_with_inner_split(bag_set, train, test, seed) for train, test in outer.split(bag_set.label, bag_set.label)]


def scaling(bag_set: BagSet, bags: Integers) -> tuple[Floats32, Floats32]:
    """Mean and standard deviation of the instances of some bags, D each; infinite for a constant column.

    (x - mean) / sd is then 0 in such a column, in all other bags as well.
    """
    features = bag_set.features[np.isin(bag_set.bag, bags)].astype(np.float64)
    constant = features.max(axis=0) == features.min(axis=0)
    center = features.mean(axis=0).astype(np.float32)
    return center, np.where(constant, np.inf, features.std(axis=0)).astype(np.float32)


def scaled(bag_set: BagSet, bags: Integers) -> Floats32:
    """All instances, scaled by those of some bags."""
    center, scale = scaling(bag_set, bags)
    return np.asarray((bag_set.features - center) / scale)


def _with_inner_split(bag_set: BagSet, train: Integers, test: Integers, seed: int) -> Fold:
    n_val = max(2, round(len(train) * INNER_SHARE))
    label = bag_set.label[train]
    if np.bincount(label).min() < 2:
        raise AsmilError(
            f"{bag_set.path}: a fold leaves one bag of a class for training, which cannot be split again; a "
            "set needs at least 3 bags of each class"
        )
    inner = StratifiedShuffleSplit(1, test_size=n_val, random_state=seed)
    fit, val = next(inner.split(label, label))
    return Fold(np.sort(test), train, np.sort(train[fit]), np.sort(train[val]))
