"""Our survival metrics and estimator beside those of scikit-survival and lifelines."""

from types import SimpleNamespace

import numpy as np
import pytest
from lifelines.utils import concordance_index
from sklearn.model_selection import GridSearchCV

from asmil import MILSurvival
from asmil.tasks.concordance import concordance, concordance_pairs
from asmil.tasks.survival_metrics import (
    brier_score,
    censoring_curves,
    integrated_brier_score,
    survival_curves,
    time_dependent_auc,
)
from peer_software import module

pytestmark = pytest.mark.peers

SEEDS = range(6)
SMALL = {"model.inner": 16, "model.attention": 8}


@pytest.fixture(scope="module")
def metrics():
    return module("sksurv.metrics", "scikit-survival")


def patients(seed, n=80, rounded=False):
    """Times, events and risks, and the first two as scikit-survival takes them."""
    util = module("sksurv.util", "scikit-survival")
    draw = np.random.default_rng(seed)
    risk = draw.normal(size=n)
    died = draw.exponential(20 * np.exp(-0.7 * risk)) + 0.1
    censored = draw.exponential(30, size=n) + 0.1
    time, event = np.minimum(died, censored), died <= censored
    if rounded:
        time, risk = np.ceil(time), np.round(risk, 1)
    return SimpleNamespace(time=time, event=event, risk=risk, y=util.Surv.from_arrays(event, time))


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_concordance(metrics, seed, rounded):
    of = patients(seed, rounded=rounded)
    theirs, concordant, discordant, tied_risk, _ = metrics.concordance_index_censored(of.event, of.time, of.risk)
    pairs = concordance_pairs(of.time, of.event, of.risk)
    assert concordance(of.time, of.event, of.risk) == pytest.approx(theirs, abs=1e-12)
    counts = np.concatenate([pairs.concordant, pairs.discordant, pairs.tied_risk])
    assert counts.tolist() == [concordant, discordant, tied_risk]
    if not rounded:  # at equal times lifelines has rules of its own
        assert concordance_index(of.time, -of.risk, of.event) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_scores_over_time(metrics, seed):
    """Without equal times: there we weight by G just before an event, as published, and scikit-survival by G at it."""
    of = patients(seed)
    times = np.unique(np.quantile(of.time, np.linspace(0.1, 0.8, 15)))
    survival = np.exp(-np.outer(np.exp(0.7 * of.risk), times) / np.median(of.time))
    _, theirs = metrics.brier_score(of.y, of.y, survival, times)
    ours = [brier_score(of.time, of.event, survival[:, place], t) for place, t in enumerate(times)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    integrated = metrics.integrated_brier_score(of.y, of.y, survival, times)
    assert integrated_brier_score(of.time, of.event, survival, times) == pytest.approx(integrated, rel=1e-10)
    areas, _ = metrics.cumulative_dynamic_auc(of.y, of.y, of.risk, times)
    np.testing.assert_allclose(time_dependent_auc(of.time, of.event, of.risk, times), areas, rtol=1e-10)


@pytest.mark.parametrize("rounded", [False, True])
def test_curves(rounded):
    nonparametric = module("sksurv.nonparametric", "scikit-survival")
    of = patients(1, rounded=rounded)
    times, survival = nonparametric.kaplan_meier_estimator(of.event, of.time)
    np.testing.assert_allclose(survival_curves(of.time, of.event).at(times)[0], survival, rtol=1e-12)
    censoring = nonparametric.CensoringDistributionEstimator().fit(of.y)
    before_last = times[:-1]
    np.testing.assert_allclose(
        censoring_curves(of.time, of.event).at(before_last)[0], censoring.predict_proba(before_last), rtol=1e-12
    )


def test_the_estimator_under_the_scorers_of_scikit_survival(metrics):
    of = patients(3, n=40)
    draw = np.random.default_rng(0)
    bags = [draw.normal(risk, 0.3, size=(6, 5)).astype(np.float32) for risk in of.risk]
    model = MILSurvival("abmil", epochs=6, lr=0.02, device="cpu", settings=SMALL).fit(bags, of.y)
    ranked = metrics.concordance_index_censored(of.event, of.time, model.predict(bags))[0]
    assert model.score(bags, of.y) == pytest.approx(ranked)
    assert ranked > 0.6
    times = np.quantile(of.time, [0.2, 0.4, 0.6])
    functions = model.predict_survival_function(bags)
    at_times = np.vstack([function(times) for function in functions])
    scored = metrics.as_integrated_brier_score_scorer(model, times=times).fit(bags, of.y)
    assert scored.score(bags, of.y) == pytest.approx(-metrics.integrated_brier_score(of.y, of.y, at_times, times))
    search = GridSearchCV(
        metrics.as_concordance_index_ipcw_scorer(MILSurvival("abmil", epochs=4, device="cpu", settings=SMALL)),
        {"estimator__lr": [1e-6, 0.02]},
        cv=2,
        error_score="raise",
    ).fit(bags, of.y)
    assert search.best_params_ == {"estimator__lr": 0.02}
