"""A column that is the label is found, whatever the file; honest columns are not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asmil.classic import column_scores, read_set, refuse_leaks
from asmil.classic.leak import best_threshold
from asmil.errors import AsmilError
from shared_data import SHARED_DATA, shared_file


def with_column(one, column):
    return replace(one, features=np.column_stack([one.features, column]).astype(np.float32))


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=1, max_size=12))
def test_the_best_threshold_is_that_of_trying_all(pairs):
    values, label = np.array([[value] for value, _ in pairs], dtype=float), np.array([label for _, label in pairs])
    cuts = [-10.0, *(value + 0.5 for value in np.unique(values))]
    accuracies = [np.mean((values[:, 0] > cut) == label) for cut in cuts]
    assert best_threshold(values, label) == pytest.approx(max(accuracies + [1 - a for a in accuracies]))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_label_among_the_features_is_refused_with_its_place(toy, sign):
    one = toy(n_bags=60)
    leaked = with_column(one, sign * one.label[one.bag])
    with pytest.raises(AsmilError) as caught:
        refuse_leaks(leaked)
    told = str(caught.value)
    assert "toy.npz" in told
    assert "column 5 of 5: 1.000" in told
    assert "--drop-last-column" in told
    assert refuse_leaks(leaked.without_last_column()).suspects == ()


def test_a_column_that_tells_only_by_its_mean_is_refused(toy):
    one = toy(n_bags=60)
    sizes = np.bincount(one.bag)[one.bag]
    noise = np.random.default_rng(0).normal(scale=50, size=len(one.bag))
    mean = (np.bincount(one.bag, noise) / np.bincount(one.bag))[one.bag]
    scores = column_scores(with_column(one, np.where(sizes > 1, noise - mean, 0) + one.label[one.bag]))
    assert scores.per_instance[-1] < 0.9
    assert scores.per_bag[-1] == 1
    assert scores.suspects == (4,)


def test_two_wrong_bags_of_two_hundred_do_not_hide_a_label(toy):
    one = toy(n_bags=200)
    copied = one.label[one.bag] * (one.bag != 1) * (one.bag != 3)
    assert column_scores(with_column(one, copied)).suspects == (4,)


def test_a_rare_class_alone_is_no_leak(toy):
    one = toy(n_bags=200, shift=0)
    rare = replace(one, label=(np.arange(200) < 3).astype(np.int64))
    assert column_scores(rare).per_instance.max() >= 0.98
    assert refuse_leaks(rare).suspects == ()
    assert column_scores(with_column(rare, rare.label[rare.bag])).suspects == (4,)


@pytest.mark.parametrize("name", ["classic/musk1", "classic/musk2", "classic/fox", "classic/tiger", "classic/elephant"])
def test_real_sets_have_no_leak_until_the_label_is_put_in(name):
    one = read_set(shared_file(SHARED_DATA / f"{name}.npz"))
    scores = refuse_leaks(one)
    assert 0.6 < scores.per_instance.max() < 0.9
    with pytest.raises(AsmilError, match=f"column {one.n_features + 1} of {one.n_features + 1}"):
        refuse_leaks(with_column(one, one.label[one.bag]))
