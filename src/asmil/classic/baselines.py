"""Baselines without a network: a support vector machine over instances and a forest over statistics of bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.svm import SVC

from asmil.classic.bag_set import BagSet
from asmil.classic.folds import scaled
from asmil.tables.arrays import Floats, Integers

Scores = Floats
"""n x 2: the larger value of a row is the class; the second column ranks bags."""

SVM: dict[str, Any] = {"kernel": "rbf", "C": 1.0, "gamma": "scale", "class_weight": "balanced"}
FOREST: dict[str, Any] = {"n_estimators": 500, "max_features": "sqrt"}
MOST_ROUNDS = 20


@dataclass(frozen=True)
class Baseline:
    """predict: from a set, its training bags, the bags to score and a seed to scores."""

    summary: str
    settings: Mapping[str, Any]
    predict: Callable[[BagSet, Integers, Integers, int], Scores]


def mi_svm(bag_set: BagSet, train: Integers, test: Integers, seed: int) -> Scores:
    """Like MI-SVM (Andrews et al., 2002): a positive bag is represented by its highest-scoring instance.

    It starts with the mean of each positive bag, and stops when the choice of instances no longer changes, or after 20
    rounds. All instances of negative bags are negative. A bag scores as its highest instance; above 0 it is positive.
    Features are scaled by the training bags. Nothing is random.
    """
    features = scaled(bag_set, train)
    positive = [np.flatnonzero(bag_set.bag == bag) for bag in train if bag_set.label[bag] == 1]
    negative = features[np.isin(bag_set.bag, train) & (bag_set.label[bag_set.bag] == 0)]
    chosen = np.stack([features[instances].mean(axis=0) for instances in positive])
    label = np.repeat([0, 1], [len(negative), len(positive)])
    before: list[int] | None = None
    machine = SVC(**SVM)
    for _ in range(MOST_ROUNDS):
        machine.fit(np.concatenate([negative, chosen]), label)
        values = machine.decision_function(features)
        best = [int(instances[np.argmax(values[instances])]) for instances in positive]
        if best == before:
            break
        before, chosen = best, features[best]
    score = np.array([values[bag_set.bag == bag].max() for bag in test])
    return np.stack([-score, score], axis=1)


def bag_forest(bag_set: BagSet, train: Integers, test: Integers, seed: int) -> Scores:
    """A random forest on mean, minimum, maximum and standard deviation of every feature over a bag."""
    statistics = np.stack(
        [
            np.concatenate([bag.mean(axis=0), bag.min(axis=0), bag.max(axis=0), bag.std(axis=0)])
            for bag in bag_set.bags()
        ]
    )
    forest = RandomForestClassifier(**FOREST, random_state=seed)
    forest.fit(statistics[train], bag_set.label[train])
    return np.asarray(forest.predict_proba(statistics[test]), dtype=np.float64)


BASELINES: dict[str, Baseline] = {
    "mi_svm": Baseline("support vector machine, one instance per positive bag", SVM, mi_svm),
    "bag_forest": Baseline("random forest on statistics of bags", FOREST, bag_forest),
}
