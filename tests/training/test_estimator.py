import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

from asmil import AsmilError, Bag, MILClassifier, MILRegressor, MILSurvival, load_run

TOKENS = {"model.tokens": 3, "anchor.weight": 0.1}


@pytest.fixture(scope="module")
def data():
    draw = np.random.default_rng(0)
    labels = np.array(["benign", "malignant"] * 12)
    bags = [draw.normal(size=(int(draw.integers(5, 25)), 32)).astype(np.float32) for _ in labels]
    for bag, label in zip(bags, labels, strict=True):
        bag[:3] += 2.5 * (label == "malignant")
    return bags, labels


@pytest.mark.parametrize("method", ["asmil", "abmil"])
def test_follows_the_conventions(data, method):
    bags, labels = data
    classifier = MILClassifier(method=method, epochs=12, lr=2e-3)
    assert is_classifier(classifier)
    assert clone(classifier).get_params() == classifier.get_params()
    with pytest.raises(NotFittedError):
        classifier.predict(bags)
    assert classifier.fit(bags, labels) is classifier
    probabilities = classifier.predict_proba(bags)
    assert probabilities.shape == (24, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert list(classifier.classes_) == ["benign", "malignant"]
    assert np.array_equal(classifier.predict(bags), classifier.classes_[probabilities.argmax(axis=1)])
    assert classifier.score(bags, labels) > 0.9
    attention = classifier.attention(bags[1])
    assert attention.shape == (len(bags[1]),)
    assert attention.sum() == pytest.approx(1, abs=1e-5)
    assert attention[:3].mean() > attention[3:].mean()


def test_cross_validation_and_grid_search(data):
    bags, labels = data
    classifier = MILClassifier(method="abmil", epochs=8, lr=3e-3)
    assert cross_val_score(classifier, bags, labels, cv=3).mean() > 0.7
    search = GridSearchCV(classifier, {"lr": [1e-6, 3e-3]}, cv=2).fit(bags, labels)
    assert search.best_params_ == {"lr": 3e-3}


def test_single_settings_are_parameters(data):
    bags, labels = data
    classifier = MILClassifier(epochs=2, settings={"model.attention": 8})
    assert classifier.get_params()["model__attention"] == 8
    assert "model__attention" not in classifier.get_params(deep=False)
    other = clone(classifier).set_params(model__attention=16, training__weight_decay=0.1, lr=1e-3)
    assert other.settings == {"model.attention": 16, "training.weight_decay": 0.1}
    assert classifier.settings == {"model.attention": 8}
    assert other.fit(bags, labels).model_.config.attention == 16
    search = GridSearchCV(classifier, {"model__attention": [8, 16], "training__epochs": [1]}, cv=2)
    with pytest.raises(ValueError, match=r"training\.epochs"):
        search.fit(bags, labels)  # epochs is given twice
    search = GridSearchCV(classifier, {"model__attention": [8, 16], "training__weight_decay": [0.0, 0.1]}, cv=2)
    search.fit(bags, labels)
    assert len(search.cv_results_["params"]) == 4
    chosen = search.best_params_["model__attention"]
    assert search.best_estimator_.model_.config.attention == chosen


@pytest.mark.parametrize("names", [("benign", "malignant"), (3, 7), (False, True)])
def test_a_saved_classifier_predicts_the_same(data, names, tmp_path):
    bags, labels = data
    y = np.where(labels == "benign", *names)
    weight = dict(zip(names, (1.0, 2.0), strict=True))
    settings = {"model.attention": 8}
    classifier = MILClassifier(epochs=2, settings=settings, class_weight=weight, random_state=None).fit(bags, y)
    folder = classifier.save(tmp_path / "saved")
    loaded = MILClassifier.load(folder)
    np.testing.assert_array_equal(loaded.predict_proba(bags), classifier.predict_proba(bags))
    np.testing.assert_array_equal(loaded.predict(bags), classifier.predict(bags))
    np.testing.assert_array_equal(loaded.attention(bags[0]), classifier.attention(bags[0]))
    assert loaded.classes_.dtype == classifier.classes_.dtype
    assert (loaded.settings, loaded.class_weight) == (settings, weight)
    assert clone(loaded).set_params(epochs=1).fit(bags, y).n_features_in_ == 32
    run = load_run(folder)
    assert run.classes == tuple(map(str, names))
    np.testing.assert_allclose(run.predict(bags[0]).probabilities, classifier.predict_proba(bags[:1])[0], atol=1e-7)
    with pytest.raises(AsmilError, match="saved"):
        classifier.save(folder)
    with pytest.raises(AsmilError, match=r"MILClassifier\.load"):
        MILRegressor.load(folder)
    (folder / "estimator.json").unlink()
    with pytest.raises(AsmilError, match="estimator"):
        MILClassifier.load(folder)


def test_saved_regressors_and_survival_models_predict_the_same(data, tmp_path):
    bags, _ = data
    values = np.array([bag[:3].mean() for bag in bags], dtype=np.float64)
    regressor = MILRegressor(epochs=2, loss="huber").fit(bags, values)
    loaded = MILRegressor.load(regressor.save(tmp_path / "regressor"))
    np.testing.assert_array_equal(loaded.predict(bags), regressor.predict(bags))
    y = np.array([(True, np.exp(value)) for value in values], dtype=[("event", bool), ("time", float)])
    for loss in ("incidence", "cox"):
        settings = {"training.accumulate": 8} if loss == "cox" else None
        survival = MILSurvival(epochs=2, loss=loss, settings=settings).fit(bags, y)
        again = MILSurvival.load(survival.save(tmp_path / loss))
        np.testing.assert_array_equal(again.unique_times_, survival.unique_times_)
        curves = [model.predict_survival_function(bags, return_array=True) for model in (survival, again)]
        np.testing.assert_array_equal(*curves)


def test_the_former_name_of_a_tile_map(data):
    bags, labels = data
    classifier = MILClassifier(epochs=1).fit(bags, labels)
    with pytest.warns(DeprecationWarning, match="tile_map"):
        former = classifier.heatmap(bags[0])
    np.testing.assert_array_equal(former, classifier.tile_map(bags[0]))


def test_settings_validation_and_kinds_of_bags(data):
    bags, labels = data
    mixed = [torch.from_numpy(bags[0]), Bag(bags[1]), *bags[2:]]
    classifier = MILClassifier("asmil", epochs=2, settings=TOKENS, validation_share=0.25)
    classifier.fit(mixed, labels)
    assert classifier.model_.config.tokens == 3
    assert 1 <= classifier.selected_epoch_ <= 2
    same = MILClassifier("asmil", epochs=2, settings=TOKENS, validation_share=0.25)
    assert np.array_equal(same.fit(bags, labels).predict_proba(bags), classifier.predict_proba(bags))


def test_integer_labels_come_back_as_they_were(data):
    bags, labels = data
    numbers = (labels == "malignant").astype(int) * 5
    predicted = MILClassifier("abmil", epochs=1).fit(bags, numbers).predict(bags)
    assert predicted.dtype == numbers.dtype
    assert set(predicted) <= {0, 5}


def test_bad_input_is_named(data):
    bags, labels = data
    with pytest.raises(AsmilError, match="24 bags and 3 labels"):
        MILClassifier().fit(bags, labels[:3])
    with pytest.raises(AsmilError, match="two classes"):
        MILClassifier().fit(bags, ["a"] * 24)
    with pytest.raises(AsmilError, match="bag 2"):
        MILClassifier().fit([*bags[:2], np.zeros((0, 32)), *bags[3:]], labels)
    with pytest.raises(AsmilError, match=r"unknown setting 'model\.tokenz'"):
        MILClassifier(settings={"model.tokenz": 1}).fit(bags, labels)


def test_second_heat_maps_and_methods_without_attention(data):
    bags, labels = data
    clam = MILClassifier(method="clam_sb", epochs=1).fit(bags, labels)
    ranks = clam.tile_map(bags[0], "percentile")
    assert sorted(np.argsort(ranks)) == list(range(len(bags[0])))
    assert ranks.max() == pytest.approx(100)
    assert np.array_equal(np.argsort(ranks), np.argsort(clam.attention(bags[0])))
    pooling = MILClassifier(method="mean_pooling", epochs=1).fit(bags, labels)
    with pytest.raises(AsmilError, match=r"mean_pooling.*'probability'"):
        pooling.attention(bags[0])
    assert pooling.tile_map(bags[0]).shape == (len(bags[0]),)


@pytest.mark.parametrize("method", ["ibmil", "mhim"])
def test_stages_train_here_too(data, method):
    bags, labels = data
    classifier = MILClassifier(method=method, epochs=4, lr=2e-3).fit(bags, labels)
    assert 5 <= classifier.selected_epoch_ <= 8
    assert classifier.predict(bags).shape == labels.shape


@pytest.mark.parametrize(
    "wrong",
    [
        np.linspace(0, 1, 24),
        np.where(np.arange(24) == 5, np.nan, np.arange(24) % 2),
        ["a", None] * 12,
        np.array(["a", np.nan] * 12, dtype=object),
        pd.Series(["a", pd.NA] * 12),
        np.eye(24),
        [["a"], ["a", "b"]] * 12,
    ],
    ids=["continuous", "nan", "none", "nan among strings", "pandas", "a matrix", "ragged"],
)
def test_labels_that_are_no_classes_are_refused(data, wrong):
    bags, _ = data
    with pytest.raises(AsmilError) as refused:
        MILClassifier("abmil", epochs=1).fit(bags, wrong)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("kind", [float, bool, object])
def test_whole_numbers_booleans_and_objects_are_classes(data, kind):
    bags, labels = data
    given = (labels == "malignant").astype(kind) if kind is not object else labels.astype(object)
    classifier = MILClassifier("abmil", epochs=1).fit(bags, given)
    assert list(classifier.classes_) == sorted(set(given.tolist()))


def test_a_column_of_labels_is_flattened_with_a_warning(data):
    bags, labels = data
    with pytest.warns(DataConversionWarning):
        classifier = MILClassifier("abmil", epochs=1).fit(bags, labels.reshape(-1, 1))
    expected = MILClassifier("abmil", epochs=1).fit(bags, labels)
    assert np.array_equal(classifier.predict_proba(bags), expected.predict_proba(bags))


def test_without_bags_there_are_no_predictions(data):
    bags, labels = data
    classifier = MILClassifier("abmil", epochs=1).fit(bags, labels)
    assert classifier.predict_proba([]).shape == (0, 2)
    assert classifier.predict([]).shape == (0,)
    assert classifier.predict([]).dtype == labels.dtype
    with pytest.raises(AsmilError, match="0 bags"):
        classifier.fit([], [])


def test_bags_may_be_data_frames(data):
    bags, labels = data
    frames = [pd.DataFrame(bag) for bag in bags]
    found, expected = (MILClassifier("abmil", epochs=1).fit(some, labels) for some in (frames, bags))
    assert np.array_equal(found.predict_proba(frames), expected.predict_proba(bags))
    with pytest.raises(AsmilError, match="bag 1"):
        found.predict([frames[0], frames[1].assign(name="tile")])
    with pytest.raises(AsmilError, match="bag 0"):
        found.predict([[[1.0, 2.0], [3.0]]])


def test_random_state_as_in_scikit_learn(data):
    bags, labels = data

    def fitted(**parameters):
        return MILClassifier("abmil", epochs=1, **parameters).fit(bags, labels).predict_proba(bags)

    np.random.seed(3)  # noqa: NPY002 - the state that None means
    drawn = [fitted(random_state=None), fitted(random_state=None)]
    assert not np.array_equal(*drawn)
    np.random.seed(3)  # noqa: NPY002
    assert np.array_equal(fitted(random_state=None), drawn[0])
    states = [np.random.RandomState(3) for _ in range(2)]
    assert np.array_equal(*(fitted(random_state=state) for state in states))
    by_setting = fitted(random_state=None, settings={"training.seed": 5})
    assert np.array_equal(by_setting, fitted(random_state=5))
    assert np.array_equal(fitted(random_state=np.int64(5)), by_setting)
    with pytest.raises(AsmilError, match="random_state"):
        fitted(random_state="five")


def test_what_is_not_fitted_says_so(data):
    bags, _ = data
    classifier = MILClassifier()
    for ask in (classifier.predict, classifier.predict_proba):
        with pytest.raises(NotFittedError):
            ask(bags)
    for ask in (classifier.attention, classifier.tile_map):
        with pytest.raises(NotFittedError):
            ask(bags[0])
