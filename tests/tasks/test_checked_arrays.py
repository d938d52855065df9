"""What a user gives to the measures: lists are fine, and a mistake is told in a sentence that names the array."""

from __future__ import annotations

import numpy as np
import pytest

from asmil.errors import AsmilError
from asmil.evaluation import (
    balanced_accuracy,
    choose_threshold,
    concordance,
    expected_calibration_error,
    fit_bins,
    fit_temperature,
    macro_auc,
    macro_f1,
    mean_survival_time,
    reliability,
    scale_probabilities,
)
from asmil.tasks.metrics import accuracy, one_vs_one_auc, one_vs_rest_f1, weighted_mean_auc

NAN = float("nan")
ROWS = [[0.7, 0.3], [0.4, 0.6], [0.2, 0.8]]

MISTAKES = [
    (macro_f1, ([0, 1], [0], 2), "target has 2, predicted has 1"),
    (macro_f1, ([0, 1], [0, -1], 2), "predicted: -1 .* 1"),
    (macro_f1, ([0, 2], [0, 1], 2), "target: 2 .* 1"),
    (macro_f1, (["a", "b"], [0, 1], 2), "target: .*0 to 1"),
    (macro_f1, ([], [], 2), "at least one"),
    (macro_f1, ([0, 1], [0, 1], 2.5), "n_classes is 2.5"),
    (macro_f1, ([[0], [1, 1]], [0, 1], 2), "target: .*different lengths"),
    (accuracy, ([0, 1], [0]), "target has 2, predicted has 1"),
    (balanced_accuracy, ([0, 5], [0, 1], 2), "target: 5 .* 1"),
    (macro_auc, ([0, 1, 1, 0], ROWS), "target has 4, probabilities has 3"),
    (macro_auc, ([0, 1, 4], ROWS), "target: 4 .* 2"),
    (macro_auc, ([0, 1], [0.1, 0.9]), "slide .*class"),
    (macro_auc, ([0, 1], [[0.1, NAN], [0.5, 0.5]]), "probabilities: .* 0, 1"),
    (macro_auc, ([0, 1], [["low", "high"], [0.5, 0.5]]), "probabilities: "),
    (concordance, ([1, "late"], [1, 0], [1, 2]), "time: "),
    (concordance, ([1, 2], ["dead", "alive"], [1, 2]), "event: "),
    (fit_bins, ([1, 2], [1, 1], 2.5), "time bins .*2.5"),
    (fit_bins, ([1, 2], [1, 1], "quantile"), "time bins .*'quantile'"),
    (mean_survival_time, ([[0.5, NAN]], [0, 1, 2]), "survival: .* 0, 1"),
    (mean_survival_time, ([[0.5, 0.2]], [5, 1, 9]), "edges .* increase"),
    (reliability, ([0, 1], ROWS), "target has 2, probabilities has 3"),
    (reliability, ([0, 1, 1], np.array(ROWS) * 3), "probabilities: "),
    (reliability, ([0, 1, 1], ROWS, 0), "bins .*0"),
    (fit_temperature, ([0, 7, 1], ROWS), "target: 7 .* 1"),
    (scale_probabilities, (ROWS, 0.0), "temperature 0.0"),
    (choose_threshold, ([1, 0], [0.2]), "positive has 2, score has 1"),
    (choose_threshold, ([1, 0], [0.2, NAN]), "score: .* 1"),
]


@pytest.mark.parametrize(("function", "arguments", "told"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_mistakes_are_told_in_a_sentence(function, arguments, told):
    with pytest.raises(AsmilError, match=told) as error:
        function(*arguments)
    assert "\n" not in str(error.value)


def test_lists_are_as_good_as_arrays():
    target, rows = [0, 1, 1], np.array(ROWS)
    for measure in (macro_auc, weighted_mean_auc, one_vs_one_auc, expected_calibration_error, fit_temperature):
        assert measure(target, ROWS) == measure(np.array(target), rows)
    assert one_vs_rest_f1(target, ROWS).macro == 1
    assert macro_f1([0.0, 1.0], [False, True], 2) == 1
    np.testing.assert_array_equal(scale_probabilities(ROWS, 2.0), scale_probabilities(rows, 2.0))


def test_a_threshold_is_the_same_for_booleans_and_numbers():
    score = [0.2, 0.3, 0.7]
    assert choose_threshold([0, 1, 1], score) == choose_threshold(np.array([False, True, True]), score) == 0.25
