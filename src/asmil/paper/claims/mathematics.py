"""Claims that mathematics decides: seeded property tests in double precision, and counterexamples."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from asmil.attention import theorem
from asmil.attention.divergences import kl
from asmil.attention.normalizers import entmax, log_nsf, log_softmax, nsf, softmax, sparsemax
from asmil.paper.claims.ruling import Ruling, ruled

DRAWS = 2000
_ruled = partial(ruled, "mathematics")


def _gapped(draw: np.random.Generator) -> tuple[torch.Tensor, float, float, int]:
    """Scores that fulfil the premise of the theorem: h highs in [tau, tau + gamma], lows at most -tau."""
    tau, gamma = float(draw.uniform(0.01, 6)), float(draw.uniform(0, 4))
    highs, lows = int(draw.integers(1, 20)), int(draw.integers(1, 200))
    scores = np.r_[tau + gamma * draw.random(highs), -tau - draw.exponential(3, lows)]
    return torch.from_numpy(scores)[None], tau, gamma, highs


def nsf_equalizes() -> Ruling:
    """NSF weights of two highs differ by a factor of at most 1 + exp(-tau)."""
    draw = np.random.default_rng(0)
    worst = -math.inf
    for _ in range(DRAWS):
        scores, tau, _, highs = _gapped(draw)
        weights = nsf(scores)[0, :highs]
        worst = max(worst, float(weights.max() / weights.min()) - (1 + math.exp(-tau)))
    return _ruled(worst <= 1e-12, f"largest ratio minus its bound in {DRAWS} drawn score vectors: {worst:.1e}")


def nsf_suppresses() -> Ruling:
    """Each low gets at most exp(-tau) / h under NSF."""
    draw = np.random.default_rng(1)
    worst = -math.inf
    for _ in range(DRAWS):
        scores, tau, _, highs = _gapped(draw)
        worst = max(worst, float(nsf(scores)[0, highs:].max()) - theorem.nsf_low_bound(tau, highs))
    example = nsf(torch.tensor([[4.0] * 50 + [-4.0] * 5000], dtype=torch.float64))[0, :50].sum()
    why = (
        f"largest weight of a low minus its bound in {DRAWS} drawn score vectors: {worst:.1e}; the bound is for one "
        f"low: 50 highs among 5,050 tokens together hold {example:.3f}"
    )
    return _ruled(worst <= 1e-12, why)


def softmax_needs_high_temperature() -> Ruling:
    """Softmax keeps highs within a factor kappa only if T >= gamma / log kappa."""
    draw = np.random.default_rng(2)
    wrong = 0
    for _ in range(DRAWS):
        gamma, kappa = float(draw.uniform(0.05, 4)), float(draw.uniform(1.01, 20))
        limit = theorem.lowest_temperature(gamma, kappa)
        for factor, holds in ((0.999, False), (1.001, True)):
            ratio = math.exp(gamma / (factor * limit))
            wrong += (ratio <= kappa) != holds
    return _ruled(wrong == 0, f"the limit of T is exact in {DRAWS - wrong} of {DRAWS} draws with two highs or more")


def softmax_needs_low_temperature() -> Ruling:
    """The upper limit on T as the theorem states it."""
    tau, highs, epsilon, temperature = 1.0, 10, 0.01, 0.5
    scores = torch.tensor([[tau] * highs + [-tau]], dtype=torch.float64) / temperature
    low = float(softmax(scores)[0, -1])
    printed = theorem.highest_temperature_as_printed(tau, highs, epsilon)
    refuted = low <= epsilon and temperature > printed
    why = (
        f"the stated limit is T = {printed:.3f}; at T = {temperature} the low weight is {low:.4f}, eps is {epsilon}; "
        "the limit of the proof is exact"
    )
    return _ruled(not refuted, why)


def no_single_temperature() -> Ruling:
    """For large tau no one temperature reaches both bounds of NSF."""
    cases = [
        (tau, gamma, highs) for tau in np.linspace(1, 10, 19) for gamma in (0.1, 0.5, 1, 2, 3) for highs in (2, 10, 100)
    ]
    both = 0
    for tau, gamma, highs in cases:
        lowest = theorem.lowest_temperature(gamma, theorem.nsf_ratio_bound(tau, gamma), highs)
        epsilon = theorem.nsf_low_bound(tau, highs)
        both += lowest <= theorem.highest_temperature(tau, highs, epsilon)
    return _ruled(
        both == 0, f"no such T in {len(cases) - both} of {len(cases)} cases with tau from 1 to 10 and two highs or more"
    )


def middle_scores() -> Ruling:
    """Extra scores between -tau and tau leave both limits necessary."""
    tau, highs, epsilon, temperature = 1.0, 10, 0.01, 1.5
    scores = torch.tensor([[tau] * highs + [-tau] + [-tau + 1e-6] * 100], dtype=torch.float64) / temperature
    low = float(softmax(scores)[0, highs])
    limit = theorem.highest_temperature(tau, highs, epsilon)
    refuted = low <= epsilon and temperature > limit
    return _ruled(
        not refuted, f"at T = {temperature}, above the limit {limit:.3f}, the low weight is {low:.4f}; eps is {epsilon}"
    )


def kl_gradient() -> Ruling:
    """The gradient of KL(anchor || softmax(z)) in z is softmax(z) minus the anchor."""
    draw = torch.Generator().manual_seed(0)
    worst = 0.0
    for _ in range(200):
        online, anchor = (torch.randn(3, 50, generator=draw, dtype=torch.float64) for _ in range(2))
        online.requires_grad_()
        kl(log_nsf(anchor), log_softmax(online)).sum().backward()
        assert online.grad is not None
        worst = max(worst, float((online.grad - (softmax(online.detach()) - nsf(anchor))).abs().max()))
    return _ruled(worst < 1e-12, f"largest difference of 200 automatic gradients from the formula: {worst:.1e}")


def bag_feature_not_injective() -> Ruling:
    """With affinely dependent instances two attention vectors give the same bag feature."""
    draw = np.random.default_rng(3)
    worst, least = 0.0, math.inf
    for _ in range(50):
        d = int(draw.integers(2, 40))
        features = draw.standard_normal((d + 2 + int(draw.integers(0, 30)), d))
        attention = draw.dirichlet(np.full(len(features), 5.0))
        null = np.linalg.svd(np.c_[features, np.ones(len(features))].T)[2][-1]
        step = 0.99 * min(a / -n for a, n in zip(attention, null, strict=True) if n < 0)
        other = attention + step * null
        worst = max(worst, float(np.abs(other @ features - attention @ features).max()))
        least = min(least, float(np.abs(other - attention).sum() / 2))
    return _ruled(
        worst < 1e-9 and least > 0,
        f"in 50 bags, attention differs by {least:.2f} or more and bag features by {worst:.1e} or less",
    )


def entmax_family() -> Ruling:
    """The printed formula of entmax at alpha = 2 is sparsemax."""
    scores = torch.tensor([[1.0, 0.2, -1.0]], dtype=torch.float64)
    as_printed = entmax(scores * (2 - 1) / 2, 2.0)  # the printed factor is (alpha - 1) / alpha, the library's alpha - 1
    right = sparsemax(scores)
    why = f"with the printed factor, alpha = 2 gives {_list(as_printed)} where sparsemax is {_list(right)}"
    return _ruled(bool(torch.allclose(as_printed, right)), why)


def temperature_flattens() -> Ruling:
    """A larger temperature drives softmax to uniform."""
    draw = torch.Generator().manual_seed(1)
    scores = 5 * torch.randn(200, 300, generator=draw, dtype=torch.float64)
    shares = []
    for temperature in (1, 2, 4, 8):
        log = log_softmax(scores / temperature)
        shares.append((-(log.exp() * log).sum(dim=1)).exp() / 300)
    rising = all(bool((b > a).all()) for a, b in pairwise(shares))
    return _ruled(rising, "effective share at T = 1, 2, 4, 8: " + ", ".join(f"{float(s.mean()):.2f}" for s in shares))


def mixture_reaches_softmax() -> Ruling:
    """zeta of 0.9894 to 0.9963 after 50 epochs with Adam at 1e-4 and cosine decay."""
    steps = 50 * 395
    rates = 0.5e-4 * (1 + np.cos(np.pi * np.arange(steps) / steps))
    xi = float(rates.sum())  # Adam's step is at most the learning rate while gradients keep their sign
    zeta = 1 / (1 + math.exp(-xi))
    return _ruled(zeta >= 0.9894, f"the optimizer can move xi by {xi:.2f} at most: zeta {zeta:.2f}, printed 0.9894")


def instance_dropout() -> Ruling:
    """Tile dropout does not fit an anchor, because both must see the same tiles."""
    draw = torch.Generator().manual_seed(2)
    online, anchor = (torch.randn(2, 40, generator=draw, dtype=torch.float64) for _ in range(2))
    dropped = torch.rand(40, generator=draw) < 0.3
    online, anchor = (scores.masked_fill(dropped, -torch.inf) for scores in (online, anchor))
    online.requires_grad_()
    loss = kl(log_nsf(anchor), log_softmax(online)).sum()
    loss.backward()
    assert online.grad is not None
    fits = bool(torch.isfinite(loss)) and bool(torch.isfinite(online.grad).all())
    return _ruled(
        not fits,
        f"if both sides drop the same tiles, the divergence is defined ({float(loss.detach()):.3f} in the example)",
    )


def online_nsf_gradient() -> Ruling:
    """The gradient of the sigmoid vanishes where scores are large and positive, which softmax's does not."""
    draw = torch.Generator().manual_seed(3)
    values = torch.randn(100, generator=draw, dtype=torch.float64)
    norms = {}
    for shift in (0.0, 6.0):
        for name, rule in (("nsf", nsf), ("softmax", softmax)):
            scores = (torch.randn(1, 100, generator=draw, dtype=torch.float64) + shift).requires_grad_()
            (rule(scores) @ values).sum().backward()
            assert scores.grad is not None
            norms[name, shift] = float(scores.grad.norm())
    falls = norms["nsf", 6.0] < 0.05 * norms["nsf", 0.0] and norms["softmax", 6.0] > 0.2 * norms["softmax", 0.0]
    why = (
        f"gradient at scores around 6 over that at 0: nsf {norms['nsf', 6.0] / norms['nsf', 0.0]:.3f}, softmax "
        f"{norms['softmax', 6.0] / norms['softmax', 0.0]:.2f}; that it is the cause of lower scores is not shown"
    )
    return Ruling("undecided", "mathematics", why) if falls else _ruled(False, why)


def _list(values: torch.Tensor) -> str:
    return "[" + ", ".join(f"{float(value):.2f}" for value in values.flatten()) + "]"


RULES: dict[str, Callable[[], Ruling]] = {
    "thm-nsf-equalise": nsf_equalizes,
    "thm-nsf-suppress": nsf_suppresses,
    "thm-smx-temperature-low": softmax_needs_high_temperature,
    "thm-smx-temperature-high": softmax_needs_low_temperature,
    "thm-no-single-T": no_single_temperature,
    "remark-middle-scores": middle_scores,
    "kl-gradient": kl_gradient,
    "bag-feature-non-injective": bag_feature_not_injective,
    "entmax-family": entmax_family,
    "temperature-flattens": temperature_flattens,
    "mixture-prefers-softmax": mixture_reaches_softmax,
    "instance-dropout-incompatible": instance_dropout,
    "online-nsf-vanishing": online_nsf_gradient,
}
