import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asmil.attention import NSF, Softmax, cross_entropy, jsd, kl, kl_to_softmax, log_nsf, log_softmax


def random_logs(seed: int, rows: int = 3, tiles: int = 17) -> torch.Tensor:
    return log_softmax(3 * torch.randn(rows, tiles, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_divergences_agree_with_their_definitions(a, b):
    log_p, log_q = random_logs(a), random_logs(b)
    p, q = log_p.exp(), log_q.exp()
    m = (p + q) / 2
    torch.testing.assert_close(kl(log_p, log_q), (p * (p / q).log()).sum(-1))
    torch.testing.assert_close(cross_entropy(log_p, log_q), -(p * log_q).sum(-1))
    expected = ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)) / 2
    torch.testing.assert_close(jsd(log_p, log_q), expected, atol=1e-12, rtol=1e-7)
    torch.testing.assert_close(jsd(log_p, log_q), jsd(log_q, log_p))


def test_equal_distributions_are_at_zero_and_disjoint_ones_at_ln_2():
    log_p = random_logs(0)
    assert kl(log_p, log_p).abs().max() == 0
    assert jsd(log_p, log_p).max() < 1e-12
    one_hot = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]])
    torch.testing.assert_close(jsd(one_hot[0], one_hot[1]), torch.tensor(math.log(2)))


def test_tiles_without_target_weight_contribute_nothing():
    log_target = torch.tensor([math.log(0.5), math.log(0.5), -math.inf])
    log_attention = log_softmax(torch.tensor([1.0, 2.0, -math.inf]))
    value = kl(log_target, log_attention)
    torch.testing.assert_close(value, kl(log_target[:2], log_attention[:2]))


@pytest.mark.parametrize("normalizer", [NSF(), NSF(0.5), Softmax(2.0)])
@pytest.mark.parametrize("tiles", [1, 13, 3000])
def test_gradient_on_the_online_scores_is_attention_minus_target(normalizer, tiles):
    draw = torch.Generator().manual_seed(tiles)
    target_scores = 4 * torch.randn(64, tiles, dtype=torch.float64, generator=draw)
    scores = (4 * torch.randn(64, tiles, dtype=torch.float64, generator=draw)).requires_grad_()
    fast = kl_to_softmax(target_scores, normalizer, scores)
    plain = kl(normalizer.log(target_scores), torch.log_softmax(scores, -1))
    torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-12)
    identity = torch.softmax(scores, -1).detach() - normalizer(target_scores)
    for value in (fast, plain):
        (gradient,) = torch.autograd.grad(value.sum(), scores, retain_graph=True)
        assert (gradient - identity).abs().max() < 1e-12


def test_extreme_opposite_scores_give_a_large_finite_divergence():
    up = torch.tensor([[60.0, -60.0, 0.0]])
    value = kl_to_softmax(-up, NSF(), up)
    assert torch.isfinite(value).all()
    assert value.item() == pytest.approx(kl(log_nsf(-up), log_softmax(up)).item())
    assert value.item() > 50


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("side", ["target", "online"])
def test_broken_scores_are_not_hidden(broken, side):
    scores = {"target": torch.randn(2, 5), "online": torch.randn(2, 5)}
    scores[side][1, 3] = broken
    value = kl_to_softmax(scores["target"], Softmax(), scores["online"])
    assert torch.isfinite(value[0])
    assert torch.isnan(value[1])


def test_a_tile_that_only_the_target_weighs_makes_the_divergence_infinite():
    online = torch.tensor([[0.0, -math.inf, 1.0]])
    assert kl_to_softmax(torch.zeros(1, 3), NSF(), online).item() == math.inf
    assert kl(log_nsf(torch.zeros(1, 3)), log_softmax(online)).item() == math.inf


def test_tiles_masked_on_both_sides_are_as_if_left_out():
    draw = torch.Generator().manual_seed(0)
    target, online = torch.randn(3, 8, generator=draw), torch.randn(3, 8, generator=draw)
    kept = torch.tensor([0, 1, 4, 5, 7])
    masked = torch.ones(8, dtype=torch.bool).index_fill(0, kept, False)
    full = online.masked_fill(masked, -math.inf).requires_grad_()
    value = kl_to_softmax(target.masked_fill(masked, -math.inf), NSF(), full)
    torch.testing.assert_close(value, kl_to_softmax(target[:, kept], NSF(), online[:, kept]))
    value.sum().backward()
    assert torch.isfinite(full.grad).all()
    assert full.grad[:, masked].abs().max() == 0
