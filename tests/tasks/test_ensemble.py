"""What several models say together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asmil.tasks.classification import Classification
from asmil.tasks.ensemble import average, predictions_of
from asmil.tasks.multilabel import MultiLabel
from asmil.tasks.regression import Regression
from asmil.tasks.survival import Survival


def test_one_model_speaks_for_itself():
    task = Survival([0.0, 10.0, 20.0])
    logits = torch.tensor([1.0, 2.0])
    found = average(predictions_of([task], [logits]))
    expected = task.columns(logits[None])
    assert found == {name: values[0] for name, values in expected.items()}


def test_probabilities_and_values_are_averaged_as_they_are():
    tasks = [Classification(["a", "b"])] * 2
    found = average(predictions_of(tasks, [torch.tensor([0.0, 0.0]), torch.tensor([0.0, np.log(3)])]))
    assert found == pytest.approx({"prob_a": 0.375, "prob_b": 0.625})
    found = average(predictions_of([MultiLabel(["x"])] * 2, [torch.tensor([0.0]), torch.tensor([np.log(3)])]))
    assert found == pytest.approx({"prob_x": 0.625})
    # every fold has a scale of its own
    found = average(predictions_of([Regression(10, 2), Regression(20, 4)], [torch.tensor([1.0]), torch.tensor([-1.0])]))
    assert found == {"value": 14.0}


def test_survival_curves_with_other_bins_are_averaged_as_step_curves():
    """Halves of the events in each of two bins: 1 until 10, 0.5 until 20; and 1 until 5, 0.5 until 15, then 0."""
    equal = torch.zeros(2)
    found = average(predictions_of([Survival([0.0, 10.0, 20.0]), Survival([0.0, 5.0, 15.0])], [equal, equal]))
    assert found["survival_times"] == [5, 10, 15, 20]
    assert found["survival"] == pytest.approx([0.75, 0.5, 0.25, 0])
    # the area under 1, 0.75, 0.5, 0.25 over its length
    assert found["risk"] == pytest.approx(-(5 + 3.75 + 2.5 + 1.25) / 20)


def test_the_common_risk_ranks_curves_and_does_not_depend_on_the_unit_of_time():
    edges = np.array([0.0, 12.0, 24.0, 48.0])
    early, late = torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 3.0])
    risks = []
    for unit in (1.0, 30.4):
        tasks = [Survival(edges * unit), Survival(edges[:3] * unit * 1.5)]
        risks.append([average(predictions_of(tasks, [logits, logits[:2]]))["risk"] for logits in (early, late)])
    assert risks[0][0] > risks[0][1]
    assert risks[0] == pytest.approx(risks[1])


def test_cox_models_are_averaged_by_their_curves():
    time, event = np.array([2.0, 5.0, 9.0]), np.array([1, 0, 1])
    tasks = [Survival(None, "cox").fit_baseline(risks, time, event) for risks in ([0.0, 0, 0], [1.0, 0, -1])]
    logits = [torch.tensor([0.3]), torch.tensor([0.8])]
    found = average(predictions_of(tasks, logits))
    curves = [task.survival(one[None])[0] for task, one in zip(tasks, logits, strict=True)]
    assert found["survival_times"] == [2, 9]
    assert found["survival"] == pytest.approx(np.mean(curves, axis=0))
    assert -1 <= found["risk"] <= 0
