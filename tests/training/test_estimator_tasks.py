"""Regression, survival and weights of the scikit-learn estimators."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from asmil import AsmilError, MILClassifier, MILRegressor, MILSurvival
from asmil.evaluation import concordance

SMALL = {"model.inner": 16, "model.attention": 8}


@pytest.fixture(scope="module")
def data():
    draw = np.random.default_rng(0)
    signal = draw.normal(size=24)
    bags = [
        (draw.normal(size=(int(draw.integers(4, 9)), 6)) * 0.3 + value * np.eye(6)[0]).astype(np.float32)
        for value in signal
    ]
    return bags, signal


def outcomes_of(signal, censored=5):
    time = 20 - 5 * signal
    event = np.arange(len(time)) % censored > 0
    return np.array(list(zip(event, time, strict=True)), dtype=[("event", bool), ("time", float)])


def small(kind, **parameters):
    return kind("abmil", epochs=8, lr=0.02, device="cpu", settings=SMALL, **parameters)


def halved(bags):
    return [bag / 2 for bag in bags]


def test_regression_in_units_of_the_targets(data):
    bags, signal = data
    values = 1000 + 50 * signal
    regressor = small(MILRegressor).fit(bags, values)
    assert is_regressor(regressor)
    assert regressor.score(bags, values) > 0.6
    assert 900 < regressor.predict(bags).mean() < 1100
    assert regressor.attention(bags[0]).shape == (len(bags[0]),)
    huber = small(MILRegressor, loss="huber").fit(bags, values)
    assert not np.array_equal(huber.predict(bags), regressor.predict(bags))
    with pytest.warns(DataConversionWarning):
        column = small(MILRegressor).fit(bags, values.reshape(-1, 1))
    assert np.array_equal(column.predict(bags), regressor.predict(bags))


@pytest.mark.parametrize("wrong", [["a"] * 24, [np.nan] + [1.0] * 23, [np.inf] + [1.0] * 23, [3.0] * 24, [1.0] * 3])
def test_wrong_values_are_refused(data, wrong):
    with pytest.raises(AsmilError):
        small(MILRegressor).fit(data[0], wrong)


@pytest.mark.parametrize("loss", ["incidence", "hazard", "cox"])
def test_survival_in_the_conventions_of_scikit_survival(data, loss):
    bags, signal = data
    y = outcomes_of(signal)
    settings = {**SMALL, "training.accumulate": 8}
    model = MILSurvival("abmil", epochs=12, lr=0.02, device="cpu", settings=settings, loss=loss)
    with pytest.raises(NotFittedError):
        model.predict(bags)
    model.fit(bags, y)
    risk = model.predict(bags)
    assert model.score(bags, y) == pytest.approx(concordance(y["time"], y["event"], risk))
    assert model.score(bags, y) > 0.75
    survival = model.predict_survival_function(bags, return_array=True)
    assert survival.shape == (24, len(model.unique_times_))
    assert (np.diff(survival, axis=1) <= 1e-9).all()
    functions = model.predict_survival_function(bags)
    assert functions.dtype == object
    assert np.array_equal(functions[3].x, model.unique_times_)
    assert np.array_equal(functions[3](model.unique_times_), survival[3])
    assert functions[3](0.0) == 1
    hazard = model.predict_cumulative_hazard_function(bags)[3]
    positive = survival[3] > 1e-6
    np.testing.assert_allclose(np.exp(-hazard(model.unique_times_))[positive], survival[3][positive], rtol=1e-9)
    assert np.isfinite(hazard.y).all()
    worst, best = risk.argmax(), risk.argmin()
    assert survival[worst].mean() < survival[best].mean()


def test_survival_outcomes_are_checked(data):
    bags, signal = data
    y = outcomes_of(signal)
    model = small(MILSurvival)
    table = pd.DataFrame({"time": y["time"], "event": y["event"], "site": "a"})
    assert np.array_equal(model.fit(bags, table).predict(bags), clone(model).fit(bags, y).predict(bags))
    swapped = np.array(list(zip(y["time"], y["event"], strict=True)), dtype=[("time", float), ("event", bool)])
    missing = y.copy()
    missing["time"][3] = np.nan
    censored = y.copy()
    censored["event"] = False
    for wrong in (y["time"], swapped, missing, censored, y[:3], np.column_stack([y["event"], y["time"]])):
        with pytest.raises(AsmilError):
            model.fit(bags, wrong)


ESTIMATORS = [MILClassifier, MILRegressor, MILSurvival]


def target_for(kind, signal):
    return {
        MILClassifier: np.where(signal > 0, "high", "low"),
        MILRegressor: signal,
        MILSurvival: outcomes_of(signal),
    }[kind]


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_pickle_pipeline_and_grid_search(data, kind):
    bags, signal = data
    y = target_for(kind, signal)
    pipeline = make_pipeline(FunctionTransformer(halved), small(kind, validation_share=0.25).set_params(epochs=2))
    name = pipeline.steps[-1][0]
    pipeline.fit(bags, y)
    again = pickle.loads(pickle.dumps(pipeline))
    assert np.array_equal(again.predict(bags), pipeline.predict(bags))
    search = GridSearchCV(pipeline, {f"{name}__lr": [1e-6, 0.05]}, cv=2, error_score="raise").fit(bags, y)
    assert len(search.cv_results_["mean_test_score"]) == 2
    assert search.best_estimator_.predict(bags).shape == (24,)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_weights_of_bags(data, kind):
    bags, signal = data
    y = target_for(kind, signal)

    def fitted(weights, some=slice(None)):
        estimator = small(kind).set_params(epochs=2).fit(bags[some], y[some], sample_weight=weights)
        return (estimator.predict_proba if kind is MILClassifier else estimator.predict)(bags)

    plain = fitted(None)
    assert np.array_equal(fitted(np.full(24, 7.0)), plain)
    weights = np.where(np.arange(24) < 20, 1.0, 0.0)
    assert np.array_equal(fitted(weights), fitted(None, slice(20)))
    assert not np.allclose(fitted(np.linspace(0.1, 2, 24)), plain)
    for wrong in (np.ones(3), -np.ones(24), np.zeros(24), np.full(24, np.nan)):
        with pytest.raises(AsmilError, match="sample_weight"):
            small(kind).fit(bags, y, sample_weight=wrong)


def test_a_loss_that_compares_bags_takes_no_weights(data):
    bags, signal = data
    model = MILSurvival("abmil", epochs=1, settings={"training.accumulate": 4}, loss="cox")
    with pytest.raises(AsmilError, match="sample_weight"):
        model.fit(bags, outcomes_of(signal), sample_weight=np.linspace(1, 2, 24))


def test_class_weights(data):
    bags, signal = data
    labels = np.where(signal > 1, "rare", "common")

    def rare(**parameters):
        return small(MILClassifier, **parameters).fit(bags, labels).predict_proba(bags)[:, 1]

    plain, balanced = rare(), rare(class_weight="balanced")
    assert balanced.mean() > plain.mean() + 0.02
    counts = {name: (labels == name).sum() for name in ("rare", "common")}
    by_hand = rare(class_weight={name: 24 / (2 * count) for name, count in counts.items()})
    assert np.array_equal(by_hand, balanced)
    by_setting = MILClassifier(
        "abmil", epochs=8, lr=0.02, device="cpu", settings={**SMALL, "training.class_weights": "balanced"}
    )
    assert np.array_equal(by_setting.fit(bags, labels).predict_proba(bags)[:, 1], balanced)
    with pytest.raises(AsmilError, match="class_weight"):
        by_setting.set_params(class_weight="balanced").fit(bags, labels)
    for wrong in ({"absent": 2.0}, "even"):
        with pytest.raises(AsmilError, match="class_weight"):
            rare(class_weight=wrong)


def test_kinds_of_bags(data):
    bags, signal = data
    block = np.stack([bag[:4] for bag in bags])
    y = signal > 0
    classifier = small(MILClassifier).set_params(epochs=1)
    expected = classifier.fit(list(block), y).predict_proba(list(block))
    as_objects = np.empty(24, dtype=object)
    as_objects[:] = list(block)
    for given in (block, torch.from_numpy(block), as_objects, pd.Series(list(block)), block.tolist()):
        assert np.array_equal(clone(classifier).fit(given, y).predict_proba(given), expected)
    table = block[:, 0]
    rows = clone(classifier).fit(table, y)
    tiles = clone(classifier).fit([row[None] for row in table], y)
    assert np.array_equal(rows.predict_proba(table), tiles.predict_proba([row[None] for row in table]))
    with pytest.raises(AsmilError, match="bag 1"):
        rows.predict([block[0], block[1][:, :5]])
    frame = pd.DataFrame(table, columns=list("abcdef"))
    named = clone(classifier).fit(frame, y)
    assert list(named.feature_names_in_) == list("abcdef")
    assert not hasattr(named.fit(list(block), y), "feature_names_in_")


def test_the_former_name_of_the_labels_still_works(data):
    bags, signal = data
    with pytest.warns(DeprecationWarning, match="labels"):
        former = small(MILClassifier).set_params(epochs=1).fit(bags, labels=signal > 0)
    now = small(MILClassifier).set_params(epochs=1).fit(bags, y=signal > 0)
    assert np.array_equal(former.predict_proba(bags), now.predict_proba(bags))


def test_what_the_estimator_decides_is_not_a_setting(data):
    bags, signal = data
    with pytest.raises(AsmilError, match=r"task\.kind"):
        MILRegressor(settings={"task.kind": "classification"}).fit(bags, signal)


def test_calibration(data):
    bags, signal = data
    y = target_for(MILClassifier, signal)
    classifier = small(MILClassifier)
    for given in (CalibratedClassifierCV(classifier, cv=3), CalibratedClassifierCV(classifier, cv=2, ensemble=False)):
        calibrated = given.fit(bags, y)
        assert calibrated.predict_proba(bags).shape == (24, 2)
        assert calibrated.score(bags, y) > 0.8
    frozen = CalibratedClassifierCV(FrozenEstimator(classifier.fit(bags, y)), method="isotonic").fit(bags, y)
    assert frozen.score(bags, y) > 0.8


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_predictions_of_patients_that_were_left_out(data, kind):
    bags, signal = data
    y, patients = target_for(kind, signal), np.repeat(np.arange(8), 3)
    method = "predict_proba" if kind is MILClassifier else "predict"
    found = cross_val_predict(small(kind), bags, y, cv=GroupKFold(4), groups=patients, method=method)
    train, test = next(GroupKFold(4).split(bags, y, patients))
    by_hand = small(kind).fit([bags[place] for place in train], y[train])
    assert np.array_equal(found[test], getattr(by_hand, method)([bags[place] for place in test]))
    search = GridSearchCV(small(kind), {"lr": [1e-6, 0.05]}, cv=GroupKFold(2), error_score="raise")
    assert search.fit(bags, y, groups=patients).best_params_ == {"lr": 0.05}
