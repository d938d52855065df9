from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.tasks import weighted
from asmil.tasks.intervals import (
    draw_patients,
    number_patients,
    percentile_interval,
)
from shared_data import read_oracle


def test_patient_bootstrap_oracle() -> None:
    block = read_oracle("statistics")["bootstrap"]
    target, score = np.array(block["y"]), np.array(block["score"])
    patient = number_patients(block["patient"])
    counts = draw_patients(patient.max() + 1, block["R"], block["seed"])
    weights = counts[:, patient].astype(float)
    kept = weighted.has_two_classes(target, 2, weights)
    auc = weighted.weighted_auc(target, np.stack([1 - score, score], axis=1), weights)[kept, 1]
    assert int((~kept).sum()) == block["skipped_single_class"]
    assert percentile_interval(auc) == pytest.approx(block["percentile_ci95_patient"], abs=1e-9)
    assert auc.mean() == pytest.approx(block["bootstrap_mean"], abs=1e-9)
    assert auc.std(ddof=1) == pytest.approx(block["bootstrap_sd"], abs=1e-9)


@given(st.integers(1, 30), st.integers(1, 50), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_every_resample_draws_as_many_patients_as_there_are(patients: int, resamples: int, seed: int) -> None:
    counts = draw_patients(patients, resamples, seed)
    assert counts.shape == (resamples, patients)
    assert (counts.sum(axis=1) == patients).all()
    np.testing.assert_array_equal(counts, draw_patients(patients, resamples, seed))


def test_patients_are_numbered_by_name() -> None:
    assert number_patients(["b", "a", "b", "c"]).tolist() == [1, 0, 1, 2]


def test_a_resample_with_one_class_is_found() -> None:
    weights = np.array([[1.0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 2, 2]])
    assert weighted.has_two_classes(np.array([0, 0, 1, 1]), 2, weights).tolist() == [False, True, False]


def test_percentiles_leave_out_what_is_undefined() -> None:
    samples = np.r_[np.linspace(0, 1, 101), np.nan]
    assert percentile_interval(samples) == pytest.approx((0.025, 0.975))
    assert np.isnan(percentile_interval(np.array([np.nan]))).all()
