from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from asmil.errors import AsmilError
from asmil.evaluation.statistics import bootstrap_seeds_and_patients


def auc(positive, score):
    """Over all pairs."""
    x, y = score[positive][:, None], score[~positive]
    return np.mean((x > y) + 0.5 * (x == y))


def macro_auc(target, probabilities):
    present = np.unique(target)
    return np.mean([auc(target == k, probabilities[:, k]) for k in present])


def macro_f1(target, probabilities):
    k = probabilities.shape[1]
    return f1_score(target, probabilities.argmax(axis=1), labels=range(k), average="macro", zero_division=0)


def slide_by_slide(metric, target, a, b, patients, resamples, seed):
    """The same draws, every resample copied out."""
    rng = np.random.Generator(np.random.PCG64(seed))
    names = np.unique(patients)
    found, skipped = [], 0
    for _ in range(resamples):
        seeds_a, seeds_b = rng.integers(0, len(a), len(a)), rng.integers(0, len(b), len(b))
        drawn = names[rng.integers(0, len(names), len(names))]
        rows = np.concatenate([np.flatnonzero(patients == name) for name in drawn])
        if len(set(target[rows])) < 2:
            skipped += 1
            continue
        means = [
            np.mean([metric(target[rows], of[s][rows]) for s in drawn_seeds])
            for of, drawn_seeds in ((a, seeds_a), (b, seeds_b))
        ]
        found.append(means[0] - means[1])
    return np.array(found), skipped


def cohort(n, k, n_seeds, seed=0):
    rng = np.random.default_rng(seed)
    target = rng.integers(0, k, n)
    logits = rng.normal(size=(n_seeds, n, k)) + 1.2 * np.eye(k)[target]
    return target, np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)


@pytest.mark.parametrize(
    ("name", "k"), [("auc", 2), ("macro_auc", 2), ("macro_auc", 3), ("macro_f1", 2), ("macro_f1", 3)]
)
@pytest.mark.parametrize("n_patients", [5, None])
def test_equal_to_drawing_slide_by_slide(name, k, n_patients, monkeypatch):
    monkeypatch.setattr("asmil.tasks.intervals.CELLS_AT_ONCE", 100)
    target, a = cohort(14, k, 4)
    _, b = cohort(14, k, 3, seed=1)
    patients = None if n_patients is None else np.random.default_rng(2).integers(0, n_patients, 14)
    metric = {"auc": lambda y, p: auc(y == 1, p[:, 1]), "macro_auc": macro_auc, "macro_f1": macro_f1}[name]
    units = np.arange(14) if patients is None else patients
    expected, skipped = slide_by_slide(metric, target, a, b, units, 20, seed=9)
    found = bootstrap_seeds_and_patients(name, target, a, b, patients, resamples=20, seed=9)
    assert found.difference == pytest.approx(
        np.mean([metric(target, p) for p in a]) - np.mean([metric(target, p) for p in b])
    )
    assert found.interval == pytest.approx(np.percentile(expected, [2.5, 97.5]), abs=1e-12)
    assert found.sd == pytest.approx(expected.std(ddof=1))
    assert (found.resamples, found.skipped) == (20, skipped)


def test_scores_of_class_one_are_enough_for_two_classes():
    target, probabilities = cohort(20, 2, 3)
    _, others = cohort(20, 2, 3, seed=4)
    for name in ("auc", "macro_auc", "macro_f1"):
        whole = bootstrap_seeds_and_patients(name, target, probabilities, others, resamples=50)
        scores = bootstrap_seeds_and_patients(name, target, probabilities[..., 1], others[..., 1], resamples=50)
        assert scores.interval == pytest.approx(whole.interval)
        assert scores.difference == pytest.approx(whole.difference)


def test_a_single_class_is_skipped_and_counted():
    target = np.array([0, 0, 0, 1])
    found = bootstrap_seeds_and_patients("auc", target, [[0.1, 0.2, 0.3, 0.4]], [[0.4, 0.3, 0.2, 0.1]], resamples=400)
    # without the positive (3/4)^4, without a negative (1/4)^4 of the draws
    assert found.skipped / 400 == pytest.approx(0.32, abs=0.06)
    assert (found.difference, found.interval, found.sd) == (1.0, (1.0, 1.0), 0.0)


def test_seeds_that_differ_make_the_interval_wider():
    target, steady = cohort(200, 2, 1)
    reference = np.repeat(steady[..., 1], 3, axis=0)
    better = reference + np.array([[0.0], [0.3], [0.9]]) * target
    same_seeds = np.repeat(reference[:1] + 0.3 * target, 3, axis=0)
    of_better, of_same = (bootstrap_seeds_and_patients("auc", target, of, reference) for of in (better, same_seeds))
    assert of_better.sd > 1.5 * of_same.sd > 0
    nothing = bootstrap_seeds_and_patients("auc", target, reference, reference)
    assert (nothing.difference, *nothing.interval, nothing.sd) == pytest.approx((0, 0, 0, 0), abs=1e-12)


def test_the_order_of_slides_does_not_matter_when_patients_are_named():
    target, a = cohort(30, 3, 2)
    _, b = cohort(30, 3, 2, seed=5)
    patients = np.array([f"patient {place % 11}" for place in range(30)])
    order = np.random.default_rng(6).permutation(30)
    one = bootstrap_seeds_and_patients("macro_auc", target, a, b, patients, resamples=100)
    other = bootstrap_seeds_and_patients(
        "macro_auc", target[order], a[:, order], b[:, order], patients[order], resamples=100
    )
    assert one.interval == pytest.approx(other.interval)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "macro_aux"}, "'macro_aux'.*'macro_auc'"),
        ({"target": [0, 0, 0]}, "class"),
        ({"target": [0, 1, 2]}, "target: 2 .* 2 "),
        ({"predictions_a": [[0.1, 0.2]]}, "predictions_a has 2"),
        ({"predictions_a": [0.1, 0.2, 0.3]}, r"predictions_a: give S x n scores.*\(3,\)"),
        ({"metric": "macro_auc", "predictions_b": np.ones((1, 3, 3)) / 3}, "2 and 3 classes"),
        ({"metric": "auc", "predictions_a": np.ones((1, 3, 3)) / 3}, " 3; .*macro_auc"),
        ({"metric": "macro_f1", "predictions_a": [[2.0, 0.1, 0.3]]}, "from 0 to 1"),
        ({"predictions_b": [[0.1, np.nan, 0.3]]}, "predictions_b: .* 0, 1 "),
        ({"patients": ["x"]}, "patients has 1"),
        ({"resamples": 0}, "0 resamples"),
    ],
)
def test_mistakes_are_named(changes, message):
    given = {"metric": "auc", "target": [0, 1, 1], "predictions_a": [[0.1, 0.2, 0.3]], "predictions_b": [[0.3, 0, 1]]}
    with pytest.raises(AsmilError, match=message):
        bootstrap_seeds_and_patients(**(given | changes))
