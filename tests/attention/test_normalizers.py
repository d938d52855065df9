import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.attention import NSF, Softmax, build_normalizer, log_nsf, log_softmax, nsf, softmax
from asmil.errors import AsmilError

scores_lists = st.lists(st.floats(-200, 200), min_size=1, max_size=40)


@given(scores_lists, st.sampled_from([0.2, 1.0, 8.0]))
def test_attention_is_a_distribution_and_its_logarithm_agrees(values, temperature):
    scores = torch.tensor([values], dtype=torch.float64)
    for plain, log in ((softmax, log_softmax), (nsf, log_nsf)):
        attention = plain(scores, temperature)
        assert torch.isfinite(log(scores, temperature)).all()
        torch.testing.assert_close(attention.sum(-1), torch.ones(1, dtype=torch.float64))
        torch.testing.assert_close(log(scores, temperature).exp(), attention)


@given(scores_lists)
def test_nsf_equals_the_plain_quotient_where_that_is_defined(values):
    scores = torch.tensor(values, dtype=torch.float64).clamp(-30, 30)
    plain = torch.sigmoid(scores) / torch.sigmoid(scores).sum()
    torch.testing.assert_close(nsf(scores), plain)


@pytest.mark.parametrize("level", [-1e4, -120.0, -60.0, 60.0, 1e4])
def test_extreme_scores_stay_exact_in_float32(level):
    scores = torch.full((2, 5), level)
    torch.testing.assert_close(nsf(scores), torch.full((2, 5), 0.2))
    torch.testing.assert_close(log_nsf(scores), torch.full((2, 5), math.log(0.2)))


def test_far_below_zero_nsf_is_softmax_and_far_above_it_is_uniform():
    scores = torch.randn(3, 20, dtype=torch.float64)
    torch.testing.assert_close(nsf(scores - 60), softmax(scores))
    torch.testing.assert_close(nsf(scores + 60), torch.full_like(scores, 1 / 20))


def test_masked_tiles_get_no_weight_and_do_not_enter_the_sum():
    scores = torch.tensor([0.3, -math.inf, 1.2, -math.inf])
    for normalizer in (softmax, nsf):
        attention = normalizer(scores)
        assert attention[1] == attention[3] == 0
        torch.testing.assert_close(attention[[0, 2]], normalizer(scores[[0, 2]]))


def test_half_precision_scores_are_normalized_in_float32():
    scores = torch.randn(1, 1000).to(torch.bfloat16)
    assert nsf(scores).dtype == softmax(scores).dtype == torch.float32


@pytest.mark.parametrize("name", ["softmax", "nsf"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_modules_equal_their_functions(name, temperature):
    functions = {"softmax": (softmax, log_softmax), "nsf": (nsf, log_nsf)}
    scores = torch.randn(4, 30)
    module = build_normalizer(name, temperature=temperature)
    torch.testing.assert_close(module(scores), functions[name][0](scores, temperature))
    torch.testing.assert_close(module.log(scores), functions[name][1](scores, temperature))


def test_unknown_names_and_temperatures_are_refused():
    with pytest.raises(AsmilError, match="'softmax'"):
        build_normalizer("sofmax")
    for kind in (Softmax, NSF):
        with pytest.raises(AsmilError, match="above 0"):
            kind(0)


@settings(max_examples=200)
@given(st.floats(0.1, 8), st.floats(0, 4), st.integers(2, 6), st.integers(1, 30), st.integers(0, 2**31))
def test_theorem_on_high_and_low_scores(tau, gamma, n_high, n_low, seed):
    """High scores in [tau, tau + gamma], low ones <= -tau: nearly equal highs, lows at most exp(-tau) / h."""
    draw = torch.Generator().manual_seed(seed)
    high = tau + gamma * torch.rand(n_high, generator=draw, dtype=torch.float64)
    low = -tau - 5 * torch.rand(n_low, generator=draw, dtype=torch.float64)
    attention = nsf(torch.cat([high, low]))
    highs, lows = attention[:n_high], attention[n_high:]
    bound = (1 + math.exp(-tau)) / (1 + math.exp(-(tau + gamma)))
    assert highs.max() / highs.min() <= bound * (1 + 1e-12)
    assert lows.max() <= math.exp(-tau) / n_high * (1 + 1e-12)
