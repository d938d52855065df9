"""The linear model of a task agrees with scikit-learn and lifelines."""

import numpy as np
import pandas as pd
import pytest
import torch
from lifelines import CoxPHFitter
from sklearn.linear_model import LogisticRegression, Ridge

from asmil.tasks.classification import Classification
from asmil.tasks.linear import fit_linear
from asmil.tasks.multilabel import MultiLabel
from asmil.tasks.regression import Regression
from asmil.tasks.survival import Survival

N = 120


@pytest.fixture(scope="module")
def inputs():
    return np.random.default_rng(0).normal(size=(N, 3))


def test_classes(inputs):
    noise = np.random.default_rng(1).normal(size=N)
    classes = np.digitize(inputs[:, 0] + noise, [-0.5, 0.7])
    model = fit_linear(Classification(("a", "b", "c")), inputs, classes)
    theirs = LogisticRegression(tol=1e-8, max_iter=1000).fit(inputs, classes)
    np.testing.assert_allclose(model.weight, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(np.diff(model.bias), np.diff(theirs.intercept_), atol=1e-4)


def test_labels_are_fitted_like_one_model_each(inputs):
    draw = np.random.default_rng(1)
    labels = (inputs[:, :2] + draw.normal(size=(N, 2)) > 0).astype(float)
    labels[draw.random((N, 2)) < 0.2] = np.nan
    model = fit_linear(MultiLabel(("a", "b")), inputs, labels)
    for row, column in zip(model.weight, labels.T, strict=True):
        known = ~np.isnan(column)
        theirs = LogisticRegression(tol=1e-8, max_iter=1000).fit(inputs[known], column[known])
        np.testing.assert_allclose(row, theirs.coef_[0], atol=1e-4)


def test_values(inputs):
    values = inputs @ [1.0, 2.0, 0.0] + np.random.default_rng(1).normal(size=N) + 5
    task = Regression.of_training(values, "squared")
    model = fit_linear(task, inputs, values)
    theirs = Ridge(0.5).fit(inputs, values)
    np.testing.assert_allclose(model.weight[0] * task.sd, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(model.logits(inputs)[:, 0] * task.sd + task.mean, theirs.predict(inputs), atol=1e-4)


def test_cox(inputs):
    draw = np.random.default_rng(1)
    time, event = draw.exponential(np.exp(-inputs[:, 0])), (draw.random(N) < 0.7).astype(float)
    model = fit_linear(Survival(None, "cox"), inputs, np.stack([time, event], axis=1))
    table = pd.DataFrame(inputs, columns=list("xyz")).assign(time=time, event=event)
    theirs = CoxPHFitter(penalizer=1 / N).fit(table, "time", "event").params_
    np.testing.assert_allclose(model.weight[0], theirs, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("loss", ["incidence", "hazard"])
def test_time_bins_move_together(inputs, loss):
    time = np.random.default_rng(1).exponential(np.exp(-inputs[:, 0]))
    task = Survival([0.0, 0.3, 1.0, 2.0, 50.0], loss)
    targets = np.stack([time.clip(max=50.0), np.ones(N)], axis=1)
    model = fit_linear(task, inputs, targets)
    assert np.linalg.matrix_rank(model.weight) == 1
    logits = model.logits(inputs)
    risk = np.asarray(task.columns(torch.from_numpy(logits))["risk"])
    assert np.corrcoef(risk, inputs[:, 0])[0, 1] > 0.9
