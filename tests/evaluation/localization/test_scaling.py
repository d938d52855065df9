"""Scalings of attention, what each one does to flat maps and normal slides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import rankdata

from asmil.errors import AsmilError
from asmil.evaluation.localization import THRESHOLDS, cohort_limits, scale_scores

attentions = hnp.arrays(np.float64, st.integers(2, 30), elements=st.integers(0, 9).map(float)).filter(
    lambda values: values.min() < values.max()
)


@given(attentions)
def test_scalings_by_their_definition(values) -> None:
    scaled = (values - values.min()) / (values.max() - values.min())
    np.testing.assert_allclose(scale_scores(values), scaled)
    np.testing.assert_allclose(scale_scores(values, "gated", probability=0.25), scaled / 4)
    np.testing.assert_allclose(scale_scores(values, "rank"), rankdata(values) / len(values))
    np.testing.assert_allclose(scale_scores(values / values.sum(), "times_n"), len(values) * values / values.sum())
    np.testing.assert_allclose(scale_scores(values, "cohort", limits=(2, 6)), np.clip((values - 2) / 4, 0, 1))


def test_equal_tiles() -> None:
    flat = np.full(49, 1 / 49)
    assert not scale_scores(flat).any()
    assert not scale_scores(flat, "rank").any()
    assert not scale_scores(flat, "gated", probability=1.0).any()
    assert not scale_scores(flat, "cohort", limits=(0.5, 0.5)).any()
    assert (scale_scores(flat, "times_n") == 1).all()
    assert not scale_scores(np.zeros(3), "times_n").any()


def test_no_tiles_and_one_tile() -> None:
    for scaling in ("minmax", "rank", "times_n"):
        assert scale_scores([], scaling).shape == (0,)
    assert scale_scores([0.3]).tolist() == [0.0]


def test_only_min_max_and_rank_force_a_hot_tile_onto_a_normal_slide() -> None:
    calm = np.random.default_rng(0).uniform(0.9, 1.1, 200)
    attention = calm / calm.sum()
    positive = {
        "minmax": scale_scores(attention),
        "rank": scale_scores(attention, "rank"),
        "cohort": scale_scores(attention, "cohort", limits=(0, 0.2)),
        "gated": scale_scores(attention, "gated", probability=0.1),
    }
    hot = {scaling: bool((scores >= THRESHOLDS[scaling]).any()) for scaling, scores in positive.items()}
    assert hot == {"minmax": True, "rank": True, "cohort": False, "gated": False}
    assert scale_scores(attention, "times_n").max() < 1.2


def test_limits_of_a_cohort() -> None:
    assert cohort_limits([np.array([0.2, 0.4]), np.array([]), np.array([0.1])]) == (0.1, 0.4)
    with pytest.raises(AsmilError, match="slide"):
        cohort_limits([])


@pytest.mark.parametrize(
    ("values", "scaling", "told"),
    [
        ([0.1, 0.9], "min-max", "'minmax'"),
        ([0.1, np.inf], "minmax", "1 of 2 tile values"),
        ([0.1, -0.9], "times_n", "negative value"),
        ([0.1, 0.9], "cohort", "cohort_limits"),
        ([0.1, 0.9], "gated", "probability"),
    ],
)
def test_mistakes_are_told(values, scaling, told) -> None:
    with pytest.raises(AsmilError, match=told):
        scale_scores(values, scaling)
