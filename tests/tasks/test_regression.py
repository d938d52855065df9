"""Regression against scikit-learn and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from asmil.errors import AsmilError
from asmil.files import write_json
from asmil.runs.task import read_task
from asmil.tasks.regression import Regression, r_squared, spearman


def test_values_are_told_in_the_units_of_the_labels():
    task = Regression.of_training(np.array([2.0, 4.0, 6.0, 8.0]))
    assert (task.mean, task.sd) == (5.0, math.sqrt(5))
    logits = torch.tensor([[0.0], [1.0], [-2.0]])
    expected = [5, 5 + math.sqrt(5), 5 - 2 * math.sqrt(5)]
    assert task.columns(logits)["value"] == pytest.approx(expected)


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_the_loss_is_in_standard_deviations(loss):
    task = Regression(mean=10.0, sd=4.0, loss=loss)
    found = task.loss(torch.tensor([[0.0], [1.0]]), torch.tensor([12.0, 30.0], dtype=torch.float64))
    errors = np.array([0.5, 4.0])
    parts = errors**2 if loss == "squared" else np.where(errors < 1, errors**2 / 2, errors - 0.5)
    assert float(found) == pytest.approx(parts.mean())
    assert task.loss_name == loss


def test_the_loss_does_not_depend_on_the_unit():
    values, logits = np.array([1.0, 4.0, 2.0, 7.0]), torch.randn(4, 1, generator=torch.Generator().manual_seed(0))
    losses = [
        float(Regression.of_training(values * factor + shift).loss(logits, torch.tensor(values * factor + shift)))
        for factor, shift in ((1, 0), (1e6, 0), (1e-6, 3))
    ]
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-5)


@given(st.integers(3, 30), st.integers(0, 99))
def test_measures_equal_those_of_scikit_learn_and_scipy(n, seed):
    draw = np.random.default_rng(seed)
    targets = np.r_[0.0, 1.0, draw.integers(0, 6, n - 2)]
    logits = torch.from_numpy(draw.normal(size=(n, 1)))
    task = Regression(2.0, 3.0)
    values = task.values(logits)
    measures = task.measure(targets, logits)
    assert measures["mae"] == pytest.approx(sk.mean_absolute_error(targets, values))
    assert measures["r2"] == pytest.approx(sk.r2_score(targets, values))
    assert measures["spearman"] == pytest.approx(stats.spearmanr(targets, values).statistic)
    assert measures["loss"] == pytest.approx(sk.mean_squared_error(targets, values) / 9)
    assert task.selection_score(measures) == measures["r2"]


def test_where_nothing_varies_measures_are_undefined_and_the_error_decides():
    task = Regression()
    measures = task.measure(np.array([2.0, 2.0]), torch.tensor([[1.0], [0.0]]))
    assert math.isnan(measures["r2"])
    assert math.isnan(measures["spearman"])
    assert task.selection_score({**measures, "r2": None}) == -1.5
    assert math.isnan(spearman(np.array([1.0]), np.array([1.0])))
    assert math.isnan(spearman(np.array([1.0, 2.0]), np.array([1.0, 1.0])))
    assert r_squared(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 1


def test_equal_training_values_are_refused():
    with pytest.raises(AsmilError, match="values are 3"):
        Regression.of_training(np.full(4, 3.0))


def test_a_task_is_made_again_from_its_file(tmp_path):
    task = Regression(2.5, 0.5, "huber")
    write_json(tmp_path / "task.json", task.to_dict())
    again = read_task(tmp_path / "task.json")
    assert isinstance(again, Regression)
    assert again.to_dict() == task.to_dict()
    assert again.class_index(torch.zeros(2)) is None
