from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import spearmanr

from asmil import attention as tensor_attention
from asmil.attention import measures

LN2 = math.log(2)


@st.composite
def attentions(draw, rows: int = 1) -> np.ndarray:
    """rows x N attentions of the same tiles; zeros and equal weights are frequent."""
    n_tiles = draw(st.integers(1, 40))
    weight = st.floats(1e-12, 1.0) | st.sampled_from([0.0, 0.25, 0.5])
    weights = draw(hnp.arrays(np.float64, (rows, n_tiles), elements=weight))
    weights[:, draw(st.integers(0, n_tiles - 1))] += 0.1
    return weights / weights.sum(axis=1, keepdims=True)


@given(attentions(rows=2))
def test_jsd_is_symmetric_bounded_and_zero_only_for_equal_attentions(pair):
    p, q = pair
    there, back = measures.jsd(p, q), measures.jsd(q, p)
    assert there == back
    assert 0 <= there <= LN2
    assert measures.jsd(p, p) == 0
    if np.abs(p - q).max() > 1e-7:
        assert there > 0


@given(attentions(rows=2))
def test_jsd_bounds_how_much_weight_changed_its_place(pair):
    moved = float(np.abs(pair[0] - pair[1]).sum() / 2)
    jsd = float(measures.jsd(*pair))
    assert jsd / LN2 - 1e-12 <= moved <= math.sqrt(2 * jsd) + 1e-7


@given(attentions(rows=2))
def test_jsd_agrees_with_the_one_of_the_training(pair):
    log_p, log_q = torch.from_numpy(pair).log()
    assert float(measures.jsd(*pair)) == pytest.approx(float(tensor_attention.jsd(log_p, log_q)), abs=1e-12)


def test_jsd_of_disjoint_attentions_is_ln_2_and_of_near_ones_keeps_its_digits():
    assert float(measures.jsd(np.array([1.0, 0, 0]), np.array([0, 0.5, 0.5]))) == pytest.approx(LN2, rel=1e-13)
    step = 1e-9
    near = float(measures.jsd(np.array([0.5, 0.5]), np.array([0.5 + step, 0.5 - step])))
    assert near == pytest.approx(step**2 / 2, rel=1e-6)


@given(attentions(rows=3))
def test_concentration_lies_between_uniform_and_one_tile(rows):
    n_tiles = rows.shape[1]
    entropy = measures.entropy(rows)
    expected = [-sum(a * math.log(a) for a in row if a > 0) for row in rows]
    assert entropy == pytest.approx(expected, abs=1e-12)
    assert ((measures.effective_tiles(rows) >= 1) & (measures.effective_tiles(rows) <= n_tiles)).all()
    assert ((measures.gini(rows) >= 0) & (measures.gini(rows) <= 1 - 1 / n_tiles)).all()
    assert (measures.top_mass(rows) <= 1).all()
    assert (measures.top_mass(rows) >= measures.top_count(n_tiles) / n_tiles - 1e-12).all()
    assert (measures.peak_times_n(rows) >= 1 - 1e-12).all()


@given(attentions())
def test_gini_is_the_mean_difference_of_two_tiles(rows):
    (row,) = rows
    differences = np.abs(row[:, None] - row[None, :]).mean()
    assert float(measures.gini(row)) == pytest.approx(differences / (2 * row.mean()), abs=1e-12)


@pytest.mark.parametrize("n_tiles", [1, 2, 99, 100, 101, 1234])
def test_uniform_and_one_tile(n_tiles):
    uniform = np.full(n_tiles, 1 / n_tiles)
    one = np.zeros(n_tiles)
    one[n_tiles // 2] = 1.0
    count = -(-n_tiles // 100)
    both = np.stack([uniform, one])
    assert measures.entropy(both) == pytest.approx([math.log(n_tiles), 0], abs=1e-12)
    assert measures.effective_tiles(both) == pytest.approx([n_tiles, 1])
    assert measures.peak_times_n(both) == pytest.approx([1, n_tiles])
    assert measures.gini(both) == pytest.approx([0, (n_tiles - 1) / n_tiles], abs=1e-12)
    assert measures.top_mass(both) == pytest.approx([count / n_tiles, 1])


def test_the_heaviest_per_cent_is_rounded_up_without_rounding_errors():
    for n_tiles in (*range(1, 1500), 57_000, 200_001):
        assert measures.top_count(n_tiles) == -(-n_tiles // 100)
    assert measures.top_count(100, 0.07) == 7  # 100 * 0.07 is slightly above 7


@given(attentions(rows=2))
def test_rank_correlation_is_spearmans(pair):
    found = float(measures.rank_correlation(*pair))
    if len(set(pair[0])) == 1 or len(set(pair[1])) == 1:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(float(spearmanr(pair[0], pair[1])[0]), abs=1e-9)


@given(attentions(rows=2), st.sampled_from([0.01, 0.1, 0.5]))
def test_the_heaviest_tiles_are_the_first_of_a_stable_sort(pair, share):
    count = measures.top_count(pair.shape[1], share)
    first, second = (set(np.argsort(-row, kind="stable")[:count]) for row in pair)
    assert set(np.flatnonzero(measures.heaviest(pair[0], count))) == first
    assert float(measures.top_overlap(*pair, share=share)) == pytest.approx(len(first & second) / count)


@given(hnp.arrays(np.float32, (3, 4), elements=st.floats(-50, 50, width=32)), st.integers(0, 3))
def test_cross_entropy_is_torchs(logits, target):
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits).double(), torch.full((3,), target), reduction="none"
    )
    assert measures.cross_entropy(logits, target) == pytest.approx(expected.numpy(), abs=1e-12)


def test_blocks_give_what_the_whole_gives(monkeypatch):
    rows = np.random.default_rng(0).dirichlet(np.ones(30), size=11)
    monkeypatch.setattr(measures, "CELLS_AT_ONCE", 95)
    for measure in (measures.entropy, measures.gini, measures.top_mass, measures.peak_times_n):
        assert measures.in_blocks(measure, rows) == pytest.approx(measure(rows))
    assert measures.in_blocks(measures.jsd, rows[1:], rows[:-1]) == pytest.approx(measures.jsd(rows[1:], rows[:-1]))
    assert measures.in_blocks(measures.jsd, rows[:0], rows[:0]).shape == (0,)


def test_a_long_course_of_a_large_slide_takes_little_memory():
    rows = np.random.default_rng(1).gamma(0.3, size=(20, 50_000))
    rows /= rows.sum(axis=1, keepdims=True)
    tracemalloc.start()
    measures.in_blocks(measures.jsd, rows[1:], rows[:-1])
    measures.in_blocks(measures.gini, rows)
    measures.in_blocks(measures.entropy, rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * rows.nbytes, "the whole course at once takes six times its size"
