"""Folds are stratified and scaling sees training bags only; rules read the epoch that they say."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asmil.classic import Fold, make_folds
from asmil.classic.folds import scaled, scaling
from asmil.classic.rules import choose_epoch, read_rules
from asmil.errors import AsmilError


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_folds_are_stratified_and_complete(toy, seed):
    one = toy(n_bags=64)
    folds = make_folds(one, 10, seed)
    assert sorted(np.concatenate([fold.test for fold in folds])) == list(range(64))
    for fold in folds:
        assert sorted([*fold.test, *fold.train]) == list(range(64))
        assert sorted([*fold.fit, *fold.val]) == sorted(fold.train)
        assert abs(one.label[fold.test].mean() - 0.5) <= 0.1
        assert len(fold.val) == round(len(fold.train) / 9)
        assert set(one.label[fold.val]) == set(one.label[fold.fit]) == {0, 1}


def test_a_seed_means_its_folds(toy):
    one = toy()
    tests = [[fold.test.tolist() for fold in make_folds(one, 4, seed)] for seed in (3, 3, 4)]
    assert tests[0] == tests[1] != tests[2]


def test_too_few_bags_are_told(toy):
    with pytest.raises(AsmilError, match=r"12 bags.*13 folds.*--folds 12"):
        make_folds(toy(), 13, 0)
    with pytest.raises(AsmilError, match="3 bags"):
        make_folds(toy(n_bags=4), 2, 0)


@given(st.integers(0, 10**6))
def test_scaling_never_sees_other_bags(seed):
    draw = np.random.default_rng(seed)
    from asmil.classic.bag_set import BagSet

    bag, label = np.repeat(np.arange(6), 2), np.arange(6) % 2
    one = BagSet("x", None, draw.normal(size=(12, 3)).astype(np.float32), bag, label)  # type: ignore[arg-type]
    train = np.array([0, 2, 5])
    changed = one.features.copy()
    changed[~np.isin(bag, train)] = draw.normal(scale=100, size=(6, 3))
    for before, after in zip(scaling(one, train), scaling(replace(one, features=changed), train), strict=True):
        assert np.array_equal(before, after)
    inside = scaled(one, train)[np.isin(bag, train)]
    assert np.allclose(inside.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(inside.std(axis=0), 1, atol=1e-4)


def test_a_column_that_is_constant_in_training_is_zero_everywhere(toy):
    one = toy()
    features = one.features.copy()
    features[:, 1] = np.where(np.isin(one.bag, [0, 1]), 3.0, 2.0)
    seen = scaled(replace(one, features=features), np.arange(2, one.n_bags))
    assert not seen[:, 1].any()
    assert np.isfinite(seen).all()


def probabilities_of(positive):
    positive = np.asarray(positive, dtype=float)
    return np.stack([1 - positive, positive], axis=-1)


def test_validation_chooses_by_accuracy_then_loss_then_time():
    label, bags = np.array([0, 1, 1]), np.array([0, 1])
    wrong, sure, unsure = [0.9, 0.1, 0], [0.1, 0.9, 0], [0.4, 0.6, 0]
    assert choose_epoch(probabilities_of([wrong, unsure, sure, sure]), label, bags) == 2
    assert choose_epoch(probabilities_of([unsure, wrong, unsure]), label, bags) == 0


def test_rules_read_the_epochs_and_trainings_that_they_say():
    label = np.array([0, 1, 0, 1, 0, 1])
    folds = [
        Fold(test=np.array([0, 1]), train=np.arange(2, 6), fit=np.array([2, 3]), val=np.array([4, 5])),
        Fold(test=np.array([2, 3, 4, 5]), train=np.array([0, 1]), fit=np.array([0]), val=np.array([1])),
    ]
    right, wrong = label.astype(float), 1.0 - label
    # epochs x (all of fold 1, all of fold 2, part of fold 1, part of fold 2) x bags
    course = [[right, wrong, right, wrong], [wrong, wrong, wrong, right], [wrong, right, wrong, right]]
    rules = read_rules(probabilities_of(course), label, folds)
    assert rules["last"].folds == [0.0, 1.0]
    assert rules["last"].epochs == [3, 3]
    assert rules["val"].folds == [1.0, 1.0]
    assert rules["val"].epochs == [1, 2]
    assert rules["val"].auc == 1.0
    assert rules["optimistic"].folds == [1.0, 1.0]
    assert rules["optimistic"].epochs == [1, 3]
