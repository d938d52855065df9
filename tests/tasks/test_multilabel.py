"""Several labels a slide, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from asmil.errors import AsmilError
from asmil.files import write_json
from asmil.runs.task import read_task
from asmil.tasks.multilabel import MultiLabel, label_words, measure_labels


def of_labels(name: str, targets: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    return measure_labels(targets, probabilities, np.ones((1, len(targets))))[name][0]


@settings(max_examples=30)
@given(st.integers(1, 25), st.integers(1, 4), st.integers(0, 99))
def test_measures_equal_those_of_scikit_learn(n, k, seed):
    draw = np.random.default_rng(seed)
    targets = np.concatenate([np.zeros((1, k)), np.ones((1, k)), draw.integers(0, 2, (n, k))]).astype(int)
    logits = torch.from_numpy(draw.integers(-3, 4, (n + 2, k)) / 2.0)
    task = MultiLabel([f"label {i}" for i in range(k)])
    probabilities = task.probabilities(logits).numpy()
    measures = task.measure(targets, logits)
    assert of_labels("f1", targets, probabilities) == pytest.approx(
        sk.f1_score(targets, probabilities >= 0.5, average=None if k > 1 else "binary", zero_division=0)
    )
    each = [sk.roc_auc_score(targets[:, i], probabilities[:, i]) for i in range(k)]
    assert of_labels("auc", targets, probabilities) == pytest.approx(each)
    assert measures["macro_auc"] == pytest.approx(np.mean(each))
    losses = [sk.log_loss(targets[:, i], probabilities[:, i]) for i in range(k)]
    assert measures["loss"] == pytest.approx(np.mean(losses))
    assert task.selection_score(measures) == pytest.approx(measures["macro_f1"] + measures["macro_auc"])


def test_labels_that_all_or_none_have_count_only_where_they_can():
    targets = np.array([[1, 0, 1], [1, 0, 0]])
    logits = torch.tensor([[2.0, -2.0, 1.0], [1.0, -1.0, -1.0]])
    task = MultiLabel(["always", "never", "sometimes"])
    probabilities = task.probabilities(logits).numpy()
    assert np.isnan(of_labels("auc", targets, probabilities)).tolist() == [True, True, False]
    assert of_labels("f1", targets, probabilities).tolist() == [1, 0, 1]
    measures = task.measure(targets, logits)
    assert measures["macro_auc"] == 1
    assert task.selection_score({"macro_f1": 0.5, "macro_auc": None}) == 0.5


def test_columns_are_probabilities_that_need_not_sum_to_one():
    columns = MultiLabel(["a", "b"]).columns(torch.tensor([[0.0, 3.0]]))
    assert list(columns) == ["prob_a", "prob_b"]
    assert columns["prob_a"][0] == 0.5
    assert columns["prob_a"][0] + columns["prob_b"][0] > 1


def test_a_task_is_made_again_from_its_file(tmp_path):
    task = MultiLabel(["a", "b"])
    write_json(tmp_path / "task.json", task.to_dict())
    again = read_task(tmp_path / "task.json")
    assert isinstance(again, MultiLabel)
    assert again.labels == task.labels
    assert again.n_outputs == 2
    assert again.class_index(torch.zeros(1, 2)) is None
    with pytest.raises(AsmilError, match="label"):
        MultiLabel([])
    write_json(tmp_path / "task.json", {"kind": "ranking"})
    with pytest.raises(AsmilError, match="ranking"):
        read_task(tmp_path / "task.json")


@settings(max_examples=20)
@given(st.integers(1, 25), st.integers(1, 4), st.integers(0, 99))
def test_unknown_labels_count_nowhere(n, k, seed):
    draw = np.random.default_rng(seed)
    targets = np.concatenate([np.zeros((1, k)), np.ones((1, k)), draw.integers(0, 2, (n, k))]).astype(np.float32)
    targets[2:][draw.random((n, k)) < 0.4] = np.nan
    logits = torch.from_numpy(draw.normal(size=(n + 2, k))).requires_grad_()
    task = MultiLabel([f"label {i}" for i in range(k)])
    loss = task.loss(logits, torch.from_numpy(targets))
    loss.backward()
    known = ~np.isnan(targets)
    assert (logits.grad.numpy() != 0).tolist() == known.tolist()
    probabilities = task.probabilities(logits.detach()).numpy()
    assert loss.item() == pytest.approx(sk.log_loss(targets[known], probabilities[known], labels=[0, 1]))
    each = [sk.roc_auc_score(targets[known[:, i], i], probabilities[known[:, i], i]) for i in range(k)]
    f1 = [
        sk.f1_score(targets[rows, i], probabilities[rows, i] >= 0.5, zero_division=0) for i, rows in enumerate(known.T)
    ]
    measures = task.measure(targets, logits.detach())
    assert measures["macro_auc"] == pytest.approx(np.mean(each))
    assert measures["macro_f1"] == pytest.approx(np.mean(f1))
    # predictions of unknown labels change nothing, neither here nor in resamples, and complete targets are as before
    weights = draw.integers(0, 3, (5, n + 2)).astype(np.float64)
    found = measure_labels(targets, probabilities, weights)
    other = measure_labels(targets, np.where(known, probabilities, 1 - probabilities), weights)
    assert all(np.array_equal(found[name], other[name], equal_nan=True) for name in found)
    complete = np.nan_to_num(targets)
    assert task.loss(logits, torch.from_numpy(complete)).item() == pytest.approx(
        task.loss(logits, torch.from_numpy(complete.astype(np.int64))).item()
    )


def test_a_label_that_is_unknown_everywhere_is_undefined():
    targets = np.array([[1, np.nan], [0, np.nan]])
    probabilities = np.array([[0.9, 0.9], [0.1, 0.2]])
    assert np.isnan(of_labels("auc", targets, probabilities)).tolist() == [False, True]
    assert np.isnan(of_labels("f1", targets, probabilities)).tolist() == [False, True]
    assert "1 of 1" not in label_words(targets, probabilities)
    assert label_words(targets, probabilities) == label_words(targets[:, :1], probabilities[:, :1])
