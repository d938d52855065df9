from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from lifelines import CoxPHFitter

from asmil.errors import AsmilError
from asmil.tasks.base import Task
from asmil.tasks.concordance import concordance
from asmil.tasks.survival import Survival
from asmil.tasks.survival_bins import bin_of
from asmil.tasks.survival_losses import cox_nll, hazard_nll, incidence_nll

EDGES = [0.0, 10.0, 20.0, 40.0]
TARGETS = torch.tensor([[5.0, 1.0], [20.0, 0.0], [999.0, 1.0], [12.0, 0.0]], dtype=torch.float64)


def logits(width: int = 3) -> torch.Tensor:
    return torch.randn(4, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("loss", "function"), [("incidence", incidence_nll), ("hazard", hazard_nll)])
def test_the_loss_is_that_of_the_bins(loss, function):
    task: Task = Survival(EDGES, loss, alpha=0.2)
    bins = torch.tensor(bin_of(TARGETS[:, 0], EDGES))
    assert bins.tolist() == [0, 2, 2, 1]
    torch.testing.assert_close(task.loss(logits(), TARGETS), function(logits(), bins, TARGETS[:, 1], 0.2))
    assert (task.n_outputs, task.loss_name, task.joint, task.kind) == (3, "nll", False, "survival")
    assert task.class_index(TARGETS) is None


def test_validation_is_measured_without_alpha():
    measured = Survival(EDGES, alpha=0.5).measure(TARGETS.numpy(), logits())
    assert measured["loss"] == pytest.approx(float(Survival(EDGES).loss(logits().double(), TARGETS)))
    assert measured["c_index"] == concordance(*TARGETS.T, Survival(EDGES).risks(logits()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_time_on_an_edge_stays_on_it_in_every_type(dtype):
    edges = [0.0, 24.26, 24.3, 90.0]
    for time, place in ((24.26, 1), (24.3, 2)):
        target = torch.tensor([[time, 1.0]], dtype=dtype)
        certain = torch.full((1, 3), -20.0)
        certain[0, place] = 20.0
        assert float(Survival(edges).loss(certain, target)) < 1e-6


def test_an_undefined_c_index_is_nan_and_counts_nothing():
    task = Survival(EDGES)
    measured = task.measure(np.array([[5.0, 0.0], [6.0, 0.0]]), logits()[:2])
    assert np.isnan(measured["c_index"])
    assert task.selection_score(measured) == 0.0
    assert task.selection_score({"c_index": None}) == 0.0
    assert task.selection_score({"c_index": 0.7}) == 0.7


@pytest.mark.parametrize("loss", ["incidence", "hazard"])
def test_columns_hold_risk_and_curve(loss):
    columns = Survival(EDGES, loss).columns(logits())
    assert list(columns) == ["risk", "survival_times", "survival"]
    np.testing.assert_allclose(columns["risk"], -np.sum(columns["survival"], axis=1))
    assert columns["survival_times"] == [[10.0, 20.0, 40.0]] * 4
    assert (np.diff(columns["survival"], axis=1) <= 0).all()
    assert pd.DataFrame(columns).shape == (4, 3)


def test_the_risk_by_mean_time_ranks_certain_survivors_last():
    task = Survival(EDGES, "hazard", risk="mean_time")
    risks = task.risks(torch.tensor([[-800.0] * 3, [0.0] * 3, [3.0] * 3]))
    assert risks[0] == -np.inf
    assert (np.diff(risks) > 0).all()


def test_cox_compares_the_patients_of_a_step():
    task: Task = Survival(None, "cox")
    assert (task.n_outputs, task.loss_name, task.joint) == (1, "cox", True)
    expected = cox_nll(logits(1)[:, 0], TARGETS[:, 0], TARGETS[:, 1])
    torch.testing.assert_close(task.loss(logits(1), TARGETS), expected)
    assert list(task.columns(logits(1))) == ["risk"]
    np.testing.assert_allclose(task.columns(logits(1))["risk"], logits(1)[:, 0])


def test_the_baseline_of_cox_is_that_of_lifelines():
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"x": draw.normal(size=120)})
    table["time"] = np.ceil(draw.exponential(20 * np.exp(-table["x"])))
    table["event"] = draw.integers(0, 2, 120)
    fitter = CoxPHFitter(baseline_estimation_method="breslow").fit(table, "time", "event")
    log_risk = fitter.params_["x"] * table["x"].to_numpy() + 300
    task = Survival(None, "cox").fit_baseline(log_risk, table["time"], table["event"])
    columns = task.columns(torch.tensor(log_risk)[:5, None])
    times = columns["survival_times"][0]
    expected = fitter.predict_survival_function(table.head(5), times=times)
    np.testing.assert_allclose(np.transpose(columns["survival"]), expected, rtol=1e-6)


def test_a_baseline_has_at_most_fifty_times_and_keeps_the_last():
    time = np.arange(1.0, 301.0)
    task = Survival(None, "cox").fit_baseline(np.zeros(300), time, np.ones(300))
    assert len(task.survival_times) == 50
    assert task.survival_times[-1] == 300
    assert np.isfinite(task.survival(torch.tensor([[1e6], [-1e6]]))).all()


@pytest.mark.parametrize(
    "task",
    [
        Survival(EDGES, "hazard", 0.15, "mean_time"),
        Survival(None, "cox").fit_baseline([0.3, 0.1], [1.0, 2.0], [1, 1]),
        Survival(None, "cox"),
    ],
)
def test_a_task_is_made_again_from_json(task):
    written = json.loads(json.dumps(task.to_dict()))
    again = Survival.from_dict(written)
    assert again.to_dict() == task.to_dict() == written
    given_ = torch.zeros(1, task.n_outputs)
    assert again.columns(given_).keys() == task.columns(given_).keys()


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Survival(None), "fit_bins"),
        (lambda: Survival([0.0, 2.0, 1.0]), "fit_bins"),
        (lambda: Survival([0.0, 2.0]), "1 time bin"),
        (lambda: Survival(EDGES, "cox"), "no time bins"),
        (lambda: Survival(None, "cox", risk="mean_time"), "'log_risk', not 'mean_time'"),
        (lambda: Survival(EDGES, risk="log_risk"), "survival_sum or mean_time"),
        (lambda: Survival(EDGES, "coxs"), "incidence.*hazard.*cox"),
        (lambda: Survival(EDGES, alpha=1.5), "between 0 and 1"),
        (lambda: Survival(EDGES).fit_baseline([0.0], [1.0], [1]), "Cox"),
        (lambda: Survival(None, "cox").fit_baseline([0.0], [1.0], [0]), "event"),
        (lambda: Survival(None, "cox").fit_baseline([np.nan], [1.0], [1]), "finite log-risk"),
    ],
)
def test_misfits_are_refused(make, word):
    with pytest.raises(AsmilError, match=word):
        make()


def test_nan_logits_have_no_c_index():
    with pytest.raises(AsmilError, match="nan"):
        Survival(EDGES).measure(TARGETS.numpy(), torch.full((4, 3), torch.nan))


@pytest.mark.parametrize("times", [["text"], [1.0, [2.0, 3.0]], [2.0, 1.0], [[1.0]]])
def test_what_is_no_curve_is_told_apart(times):
    from asmil.tasks.survival import _is_curve

    assert _is_curve([1.0, 2.0], [0.9, 0.5])
    assert not _is_curve(times, [0.9, 0.5][: len(times)])
