"""Distances to the training slides: uniform p-values for slides like them, small ones for others."""

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

from asmil.errors import AsmilError
from asmil.evaluation.uncertainty import fit_similarity, read_similarity
from asmil.evaluation.uncertainty.similarity import FEWEST_PATIENTS, FILE, MOST_PATIENTS, Similarity


def slides(draw, patients, width=96, shift=0.0):
    """Summaries of slides, one to three per patient, that vary in few directions; and the patient of each."""
    names = np.repeat(np.arange(patients), draw.integers(1, 4, patients))
    mixing = np.random.default_rng(9).standard_normal((10, width))
    of_patients = draw.standard_normal((patients, 10))
    x = (of_patients[names] + 0.4 * draw.standard_normal((len(names), 10))) @ mixing
    return x + 0.5 * draw.standard_normal(x.shape) + shift, names


def test_p_values_are_uniform_for_new_patients_and_small_for_others(tmp_path):
    draw = np.random.default_rng(0)
    shares, whole = [], []
    for _ in range(12):
        similarity = fit_similarity(*slides(draw, 79))
        new, names = slides(draw, 60)
        first = np.unique(names, return_index=True)[1]
        shares.append([(similarity.p_values(new[first]) <= level).mean() for level in (0.1, 0.5)])
        whole.append(similarity.cohort_p_value(new, names))
    assert np.mean(shares, axis=0) == pytest.approx([0.1, 0.5], abs=0.05)
    assert min(whole) > 0.001
    shifted, names = slides(draw, 60, shift=1.0)
    assert np.median(similarity.p_values(shifted)) < 0.05
    assert similarity.cohort_p_value(shifted, names) < 1e-4
    assert similarity.p_value_of_joined(shifted[:3]) == pytest.approx(3 * similarity.p_values(shifted[:3]).min())
    similarity.save(tmp_path)
    read = read_similarity(tmp_path)
    assert (read.p_values(shifted) == similarity.p_values(shifted)).all()
    assert (read.p_values(new) == similarity.p_values(new)).all()


def test_the_covariance_is_shrunk_as_by_ledoit_and_wolf():
    x = np.random.default_rng(1).standard_normal((60, 40)) * np.linspace(3, 0.1, 40)
    similarity = fit_similarity(x, range(60))
    new = np.random.default_rng(2).standard_normal((5, 40))
    gaussian = similarity.gaussians[0]
    fold = np.random.default_rng(0).permutation(60) % 5
    # patients are numbered in the order of their names
    fitted = x[sorted(range(60), key=str)][fold != 0]
    covariance, _ = ledoit_wolf(fitted)
    centered = new - fitted.mean(axis=0)
    expected = np.sqrt(np.einsum("ni,ij,nj->n", centered, np.linalg.inv(covariance), centered))
    assert gaussian.distances(new) == pytest.approx(expected, rel=1e-3)


def test_few_many_constant_and_damaged_slides(tmp_path):
    draw = np.random.default_rng(3)
    assert fit_similarity(draw.standard_normal((50, 4)), [0] * 31 + list(range(1, 20))) is not None
    assert fit_similarity(draw.standard_normal((50, 4)), [0] * 32 + list(range(1, FEWEST_PATIENTS - 1))) is None
    x = draw.standard_normal((30, 4))
    x[3, 1] = np.nan
    assert len(fit_similarity(x, range(30)).distances) == 29
    constant = fit_similarity(np.ones((30, 4)), range(30))
    assert constant.p_values(np.array([[1, 1, 1, 1], [1, 1, 1, 2]])) == pytest.approx([1, 1 / 31])
    many = fit_similarity(draw.standard_normal((MOST_PATIENTS + 500, 3)), range(MOST_PATIENTS + 500))
    assert isinstance(many, Similarity)
    assert len(np.unique(many.patients)) == MOST_PATIENTS
    assert many.p_values(draw.standard_normal((200, 3))).mean() == pytest.approx(0.5, abs=0.1)
    assert read_similarity(tmp_path) is None
    (tmp_path / FILE).write_bytes(b"damaged")
    with pytest.raises(AsmilError, match=FILE):
        read_similarity(tmp_path)
