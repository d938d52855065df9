from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from scipy.spatial.distance import jensenshannon

from asmil.attention import measures


@st.composite
def pairs(draw):
    """2 x N attentions; zeros and equal weights are frequent."""
    n_tiles = draw(st.integers(1, 30))
    weight = st.floats(1e-9, 1.0) | st.sampled_from([0.0, 0.25, 0.5])
    weights = draw(hnp.arrays(np.float64, (2, n_tiles), elements=weight))
    weights[:, draw(st.integers(0, n_tiles - 1))] += 0.1
    return weights / weights.sum(axis=1, keepdims=True)


@given(pairs())
def test_against_scipy(pair):
    p, q = pair
    assert measures.kl_divergence(p, q) == pytest.approx(stats.entropy(p, q), abs=1e-12)
    assert math.sqrt(measures.jsd(p, q)) == pytest.approx(jensenshannon(p, q), abs=1e-7)
    assert measures.bits(float(measures.entropy(p))) == pytest.approx(stats.entropy(p, base=2), abs=1e-12)
    if len(set(p)) > 1 and len(set(q)) > 1:
        assert measures.kendall_tau_b(p, q) == pytest.approx(stats.kendalltau(p, q).statistic, abs=1e-12)
    else:
        assert math.isnan(measures.kendall_tau_b(p, q))


@given(pairs(), st.integers(1, 12))
def test_the_heaviest_tiles(pair, k):
    p, q = pair
    tops = [set(np.argsort(-row, kind="stable")[:k]) for row in pair]
    assert measures.top_k_mass(p, k) == pytest.approx(sum(sorted(p)[-k:]))
    assert measures.top_k_jaccard(p, q, k) == pytest.approx(len(tops[0] & tops[1]) / len(tops[0] | tops[1]))
    count = measures.tiles_for_share(p)
    assert measures.top_k_mass(p, count) >= 0.9 - 1e-9
    assert count == 1 or measures.top_k_mass(p, count - 1) < 0.9


@given(pairs())
def test_bounds(pair):
    p, q = pair
    assert measures.inverse_simpson(p) <= float(measures.effective_tiles(p)) + 1e-9
    assert 0 <= measures.total_variation(p, q) <= 1 + 1e-12
    assert 2 * measures.total_variation(p, q) ** 2 <= measures.kl_divergence(p, q) + 1e-12


def test_by_hand():
    p = np.array([0.1, 0.2, 0.3, 0.4])
    assert measures.tiles_for_share(p) == 3  # 0.4 + 0.3 + 0.2 is 0.8999999999999999 in floating point
    assert measures.inverse_simpson(p) == pytest.approx(10 / 3)
    assert measures.normalized_entropy(np.full(7, 1 / 7)) == pytest.approx(1)
    assert math.isnan(measures.normalized_entropy(np.ones(1)))
    assert measures.kl_divergence(p, np.array([0.0, 0.3, 0.3, 0.4])) == math.inf
    assert measures.kl_divergence(np.array([0.0, 1.0]), np.array([0.5, 0.5])) == pytest.approx(math.log(2))
    assert measures.bits(math.log(2)) == 1
