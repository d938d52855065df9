import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

from asmil import AsmilError, Bag, MILClassifier


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


def test_settings_validation_and_kinds_of_bags(data):
    bags, labels = data
    mixed = [torch.from_numpy(bags[0]), Bag(bags[1]), *bags[2:]]
    classifier = MILClassifier(epochs=2, settings={"model.tokens": 3, "anchor.weight": 0.1}, validation_share=0.25)
    classifier.fit(mixed, labels)
    assert classifier.model_.config.tokens == 3
    assert 1 <= classifier.selected_epoch_ <= 2
    same = MILClassifier(epochs=2, settings={"model.tokens": 3, "anchor.weight": 0.1}, validation_share=0.25)
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
    with pytest.raises(AsmilError, match="at least two classes"):
        MILClassifier().fit(bags, ["a"] * 24)
    with pytest.raises(AsmilError, match="bag 2: the bag has no tiles"):
        MILClassifier().fit([*bags[:2], np.zeros((0, 32)), *bags[3:]], labels)
    with pytest.raises(AsmilError, match=r"unknown setting 'model\.tokenz'"):
        MILClassifier(settings={"model.tokenz": 1}).fit(bags, labels)


def test_second_heat_maps_and_methods_without_attention(data):
    bags, labels = data
    clam = MILClassifier(method="clam_sb", epochs=1).fit(bags, labels)
    ranks = clam.heatmap(bags[0], "percentile")
    assert sorted(np.argsort(ranks)) == list(range(len(bags[0])))
    assert ranks.max() == pytest.approx(100)
    assert np.array_equal(np.argsort(ranks), np.argsort(clam.attention(bags[0])))
    pooling = MILClassifier(method="mean_pooling", epochs=1).fit(bags, labels)
    with pytest.raises(AsmilError, match=r"mean_pooling has no attention; .*'probability'"):
        pooling.attention(bags[0])
    assert pooling.heatmap(bags[0]).shape == (len(bags[0]),)


@pytest.mark.parametrize("method", ["ibmil", "mhim"])
def test_stages_train_here_too(data, method):
    bags, labels = data
    classifier = MILClassifier(method=method, epochs=4, lr=2e-3).fit(bags, labels)
    assert 5 <= classifier.selected_epoch_ <= 8
    assert classifier.predict(bags).shape == labels.shape
