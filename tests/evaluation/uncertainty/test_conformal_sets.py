"""Conformal sets and rule-outs: exact on paper, as in other software, and covering in simulations."""

import numpy as np
import pytest
from scipy.stats import binom

from asmil.errors import AsmilError
from asmil.evaluation.uncertainty import (
    ConformalCalibration,
    HeldOutScores,
    coverage_table,
    fewest_patients,
    missed_bound,
    pooled_p_values,
    prediction_sets,
    rule_out_level,
    ruled_out,
    single_classes,
)

CLASSES = ("a", "b", "c")


SHARES = (0.6, 0.3, 0.1)


def predicted(draw, n):
    """Classes and probabilities of n cases."""
    targets = draw.choice(3, n, p=SHARES)
    logits = draw.standard_normal((n, 3)) + 1.5 * np.eye(3)[targets] + np.log(SHARES)
    return targets, np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def calibrated(draw, n, folds=1):
    targets, probabilities = predicted(draw, n)
    return ConformalCalibration.of(CLASSES, np.arange(n) % folds, targets, range(n), probabilities)


def test_p_values_count_patients_once_and_ties_as_larger():
    fold = HeldOutScores.of([1.0, 5.0, 2.0, 2.0, 9.0, 9.0, 9.0, 0.0], ["a", "a", "b", "c", "d", "d", "d", "d"])
    assert fold.n_patients == 4
    # at least 2: half of a, all of b and c, three quarters of d
    assert pooled_p_values([fold], [np.array([2.0])]) == pytest.approx([(1 + 0.5 + 2 + 0.75) / 5])
    other = HeldOutScores.of([1.0], ["e"])
    assert pooled_p_values([fold, other], [np.array([9.5, -1]), np.array([0.5, 2])]) == pytest.approx([2 / 6, 5 / 6])


def test_the_smallest_sufficient_calibration_set_is_used_to_its_last_patient():
    """With 9 patients and a coverage of 0.9 a class is excluded only if it is less probable than all of theirs."""
    targets, probabilities = np.zeros(9, int), np.stack([np.linspace(0.3, 0.9, 9), np.linspace(0.7, 0.1, 9)], axis=1)
    calibration = ConformalCalibration.of(("a", "b"), np.zeros(9), targets, range(9), probabilities)
    calibration.refuse_too_few(0.9)
    sets = prediction_sets(calibration.p_values({0: [[0.3, 0.7], [0.29, 0.71], [0.5, 0.5]]}), 0.9)
    assert sets.tolist() == [[True, True], [False, True], [True, True]]
    assert single_classes(sets, ("a", "b")) == ["abstain", "b", "abstain"]
    assert [fewest_patients(alpha) for alpha in (0.1, 0.05, 0.3)] == [9, 19, 3]
    with pytest.raises(AsmilError, match="19"):
        calibration.refuse_too_few(0.95)
    with pytest.raises(AsmilError, match="'b'"):
        calibration.refuse_too_few(0.9, per_class=True)
    with pytest.raises(AsmilError, match=r"1\.2"):
        calibration.refuse_too_few(1.2)
    with pytest.raises(AsmilError, match="fold 0"):
        calibration.p_values({1: [[0.3, 0.7]]})


def test_sets_are_those_of_other_software():
    crepes, mapie = pytest.importorskip("crepes"), pytest.importorskip("mapie.classification")
    draw = np.random.default_rng(3)
    (known, of_known), (_, of_new) = predicted(draw, 200), predicted(draw, 300)
    calibration = ConformalCalibration.of(CLASSES, np.zeros(200), known, range(200), of_known)
    scores = 1 - of_known[np.arange(200), known]
    theirs = crepes.ConformalClassifier().fit(scores).predict_p(1 - of_new, smoothing=False)
    assert calibration.p_values({0: of_new}) == pytest.approx(theirs)
    per_class = calibration.p_values({0: of_new}, per_class=True)
    for target in range(3):
        alone = crepes.ConformalClassifier().fit(scores[known == target])
        assert per_class[:, [target]] == pytest.approx(alone.predict_p(1 - of_new[:, [target]], smoothing=False))
    peer = mapie.SplitConformalClassifier(_given(), confidence_level=0.9, conformity_score="lac", prefit=True)
    peer.conformalize(of_known, known)
    _, sets = peer.predict_set(of_new)
    assert (prediction_sets(calibration.p_values({0: of_new}), 0.9) == sets[:, :, 0]).all()


def _given():
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):
        """Its features are the probabilities."""

        classes_ = np.arange(3)

        def fit(self, x, y):
            return self

        def predict_proba(self, x):
            return x

        def predict(self, x):
            return x.argmax(axis=1)

        def __sklearn_is_fitted__(self):
            return True

    return Given()


def test_sets_cover_new_patients():
    draw = np.random.default_rng(0)
    covered, by_class = [], []
    for _ in range(100):
        calibration = calibrated(draw, 59)
        targets, probabilities = predicted(draw, 500)
        for per_class, into in ((False, covered), (True, by_class)):
            sets = prediction_sets(calibration.p_values({0: probabilities}, per_class), 0.9)
            right = sets[np.arange(500), targets]
            into.append([right.mean(), *(right[targets == target].mean() for target in range(3))])
    mean, rare = np.mean(covered, axis=0)[[0, 3]]
    assert mean == pytest.approx(0.9, abs=0.01)  # (n + 1) (1 - alpha) is whole
    assert rare < 0.8  # the rare class pays,
    assert np.mean(by_class, axis=0).min() > 0.89  # unless each class is to be covered


def test_coverage_is_counted_by_patient_and_group():
    sets = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], dtype=bool)
    table = coverage_table(sets, [0, 0, 1, 1], ["p", "p", "q", "r"], {"site": ["x", "x", "x", "y"]})
    assert table.set_index(["by", "group"])["coverage"].to_dict() == {
        ("all", "all"): 0.5,
        ("site", "x"): 0.75,
        ("site", "y"): 0,
    }
    assert table["patients"].tolist() == [3, 2, 1]
    assert table["abstained"].tolist() == pytest.approx([2 / 3, 1 / 2, 1])


def test_slides_of_a_patient_do_not_count_as_patients():
    """A patient's slides share an effect, and patients with bad scores have most slides."""
    draw, missed = np.random.default_rng(1), []

    def patients(n):
        effects = draw.standard_normal(n)
        counts = np.where(effects < 0, 20, 1)
        return np.repeat(np.arange(n), counts), np.repeat(effects, counts) + 0.1 * draw.standard_normal(counts.sum())

    for _ in range(200):
        names, scores = patients(39)
        new = draw.standard_normal(100)
        p_values = pooled_p_values([HeldOutScores.of(scores, names)], [new + 0.1 * draw.standard_normal(100)])
        missed.append((p_values <= 0.1).mean())
    assert np.mean(missed) == pytest.approx(0.1, abs=0.012)


def test_folds_of_one_cohort_cover_as_well():
    """Cross-validation: a class mean per fold is the model, and every patient is held out once."""
    draw, covered = np.random.default_rng(2), []
    for _ in range(60):
        centers = draw.standard_normal((2, 8))
        targets, new = draw.integers(0, 2, 60), draw.integers(0, 2, 100)
        x, x_new = (centers[of] * 0.7 + draw.standard_normal((len(of), 8)) for of in (targets, new))
        folds, by_fold, held_out = np.arange(60) % 5, {}, np.zeros((60, 2))
        for fold in range(5):
            fitted = np.stack([x[(folds != fold) & (targets == label)].mean(axis=0) for label in (0, 1)])

            def probability(given, fitted=fitted):
                logit = ((given[:, None] - fitted) ** 2).sum(axis=2) @ np.array([0.5, -0.5])
                return np.stack([1 / (1 + np.exp(logit)), 1 / (1 + np.exp(-logit))], axis=1)

            held_out[folds == fold], by_fold[fold] = probability(x[folds == fold]), probability(x_new)
        calibration = ConformalCalibration.of(("a", "b"), folds, targets, range(60), held_out)
        sets = prediction_sets(calibration.p_values(by_fold), 0.8)
        covered.append(sets[np.arange(100), new].mean())
    assert 0.79 < np.mean(covered) < 0.85  # guaranteed are 1 - 2 * 0.2 - 2 * 4 / 65


def test_rule_outs_miss_no_more_than_asked():
    draw, on_average, confident = np.random.default_rng(4), [], []
    for _ in range(100):
        targets, probabilities = predicted(draw, 300)
        calibration = ConformalCalibration.of(CLASSES, np.zeros(300), targets, range(300), probabilities)
        new, of_new = predicted(draw, 400)
        p_values = calibration.p_values({0: of_new}, per_class=True)[:, 0]
        n = calibration.n_patients(0)
        for confidence, into in ((None, on_average), (0.9, confident)):
            level = rule_out_level(n, 0.1, "a", confidence)
            into.append(ruled_out(p_values, level)[new == 0].mean())
    assert np.mean(on_average) == pytest.approx(0.1, abs=0.01)
    assert np.mean(np.array(confident) > 0.1 + 0.035) < 0.05  # the share of 240 cases varies by 0.02 itself
    assert np.mean(confident) < 0.085
    # exact bounds: k misses of n are allowed if at most so few are improbable for a share of 0.1
    level = rule_out_level(100, 0.1, "a", 0.95)
    k = round(level * 101)
    assert binom.cdf(k - 1, 100, 0.1) <= 0.05 < binom.cdf(k, 100, 0.1)
    assert missed_bound(100, level) <= 0.1 < missed_bound(100, level + 1 / 101)
    with pytest.raises(AsmilError, match="59"):
        rule_out_level(58, 0.05, "a", 0.95)
    assert rule_out_level(59, 0.05, "a", 0.95) == pytest.approx(1 / 60)
    with pytest.raises(AsmilError, match="19"):
        rule_out_level(18, 0.05, "a")
