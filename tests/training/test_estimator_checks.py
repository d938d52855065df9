"""scikit-learn's own checks of estimators, run on tables of one-tile bags."""

import numpy as np
from sklearn.utils.estimator_checks import parametrize_with_checks

from asmil import MILClassifier, MILRegressor, MILSurvival


class SurvivalOfNumbers(MILSurvival):
    """The checks give numbers as targets: they become times, all of them observed."""

    def fit(self, bags, y=None, sample_weight=None):
        return super().fit(bags, _observed(y), sample_weight)

    def score(self, bags, y):
        return super().score(bags, _observed(y))


def _observed(y):
    if y is None:
        return None
    times = np.asarray(y, dtype=float).ravel()
    return np.array([(True, time) for time in times - times.min() + 1], dtype=[("event", bool), ("time", float)])


SMALL = {"training.batch": 32, "model.inner": 16, "model.attention": 8}
QUICK = [
    MILClassifier("abmil", epochs=3, lr=0.1, device="cpu", settings=SMALL),
    MILRegressor("abmil", epochs=3, lr=0.1, device="cpu", settings=SMALL),
    SurvivalOfNumbers("abmil", epochs=1, lr=0.05, device="cpu", settings={**SMALL, "task.bins": 4}),
]

DO_NOT_APPLY = {
    "check_sample_weight_equivalence_on_dense_data": "a bag of weight 2 takes one step twice as long, two bags take "
    "two steps in another order: equal in the mean over many trainings, not in a single one",
}


def do_not_apply(estimator):
    del estimator
    return DO_NOT_APPLY


@parametrize_with_checks(QUICK, expected_failed_checks=do_not_apply)
def test_passes_the_check(estimator, check):
    check(estimator)
