"""Normalizers besides softmax and the plain normalized sigmoid."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asmil.attention import (
    Entmax,
    Mixture,
    Sparsemax,
    StandardizedNSF,
    build_normalizer,
    entmax,
    log_mixture,
    mixture,
    nsf,
    softmax,
    sparsemax,
    standardized_nsf,
)
from asmil.attention.normalizers import NORMALIZERS
from asmil.errors import AsmilError

MODULES = {
    "softmax": lambda: build_normalizer("softmax", temperature=2.0),
    "nsf": lambda: build_normalizer("nsf"),
    "standardized_nsf": lambda: build_normalizer("standardized_nsf", kappa=3.0, offset=0.5),
    "standardized_softmax": lambda: build_normalizer("standardized_softmax", kappa=3.0),
    "sparsemax": lambda: build_normalizer("sparsemax"),
    "entmax": lambda: build_normalizer("entmax", alpha=1.3),
    "mixture": lambda: build_normalizer("mixture"),
}
every_rule = pytest.mark.parametrize("name", sorted(MODULES))
scores_lists = st.lists(st.floats(-50, 50), min_size=1, max_size=40)


def test_every_registered_rule_is_tested():
    assert MODULES.keys() == NORMALIZERS.keys()


@every_rule
@given(values=scores_lists)
def test_a_distribution_that_keeps_the_order_and_whose_logarithm_agrees(name, values):
    rule, scores = MODULES[name](), torch.tensor([values], dtype=torch.float64)
    attention = rule(scores)
    torch.testing.assert_close(attention.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert attention.min() >= 0
    torch.testing.assert_close(rule.log(scores).exp(), attention)
    order = scores[0].argsort()
    assert (attention[0, order].diff() > -1e-12).all()


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_masked_tiles_get_no_weight_and_enter_no_sum(name, dtype):
    rule = MODULES[name]()
    scores = torch.tensor([[0.3, -math.inf, 1.2, -math.inf, 0.9]], dtype=dtype, requires_grad=True)
    attention = rule(scores)
    assert attention.dtype == (dtype if dtype == torch.float64 else torch.float32)
    assert attention[0, 1] == attention[0, 3] == 0
    torch.testing.assert_close(attention[0, [0, 2, 4]], rule(scores[:, [0, 2, 4]])[0])
    finite = rule.log(scores)[0, [0, 2, 4]]
    (attention.square().sum() + finite[finite > -math.inf].sum()).backward()
    assert torch.isfinite(scores.grad).all()


@every_rule
def test_one_tile_ties_and_scores_of_any_size(name):
    rule = MODULES[name]()
    assert rule(torch.tensor([[-7.0]])) == 1
    for level in (-1e4, -60.0, 0.0, 0.3, 1e4):
        torch.testing.assert_close(rule(torch.full((2, 5), level)), torch.full((2, 5), 0.2))
    wide = torch.tensor([[-1e4, 0.0, 1e4, 1e4]], requires_grad=True)
    attention = rule(wide)
    torch.testing.assert_close(attention.sum(), torch.tensor(1.0))
    attention.square().sum().backward()
    assert torch.isfinite(wide.grad).all()


@every_rule
def test_gradients_are_those_of_the_function(name):
    rule = MODULES[name]().double()
    scores = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    assert torch.autograd.gradcheck(rule, (scores,))
    if not rule.sparse:
        assert torch.autograd.gradcheck(rule.log, (scores,))


@given(values=scores_lists, shift=st.floats(-20, 20))
def test_who_is_invariant_to_a_shift(values, shift):
    scores = torch.tensor(values, dtype=torch.float64)
    for rule in (softmax, sparsemax, entmax, standardized_nsf):
        torch.testing.assert_close(rule(scores + shift), rule(scores), atol=1e-9, rtol=1e-6)


def test_standardized_nsf_is_its_formula_and_does_not_see_the_scale():
    scores = torch.randn(3, 50, dtype=torch.float64)
    mean, sd = scores.mean(-1, keepdim=True), scores.std(-1, keepdim=True, unbiased=False)
    torch.testing.assert_close(standardized_nsf(scores, 3.0, 1.5), nsf(3.0 * ((scores - mean) / sd - 1.5)))
    torch.testing.assert_close(standardized_nsf(1e3 * scores + 7), standardized_nsf(scores))
    # a plain normalized sigmoid of the same scores, far above 0, would be uniform
    assert standardized_nsf(scores + 60).max() > 1.5 / 50


@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 1.75, 2.0])
def test_entmax_solves_its_equation(alpha):
    scores = 2 * torch.randn(4, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    attention = entmax(scores, alpha)
    # on the support (alpha - 1) z - p^(alpha - 1) is the same tau for all, and no other score lies above it
    for row, weights in zip((alpha - 1) * scores, attention, strict=True):
        threshold = row[weights > 0] - weights[weights > 0] ** (alpha - 1)
        torch.testing.assert_close(threshold, threshold[:1].expand_as(threshold), atol=1e-7, rtol=0)
        assert (row[weights == 0] <= threshold.max() + 1e-9).all()


def test_entmax_lies_between_softmax_and_sparsemax():
    scores = torch.tensor([1.0, 0.2, -1.0], dtype=torch.float64)
    torch.testing.assert_close(entmax(scores, 2.0), torch.tensor([0.9, 0.1, 0.0], dtype=torch.float64))
    torch.testing.assert_close(entmax(scores, 1.0), softmax(scores))
    torch.testing.assert_close(entmax(scores, 1.0001), softmax(scores), atol=1e-3, rtol=0)
    many = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    support = [(entmax(many, alpha) > 0).sum() for alpha in (1.1, 1.5, 2.0)]
    assert support[0] > support[1] > support[2]
    for alpha in (0.9, 2.1):
        with pytest.raises(AsmilError, match=r"1.*2"):
            entmax(scores, alpha)
        with pytest.raises(AsmilError, match="above 1"):
            Entmax(alpha)


@pytest.mark.parametrize("alpha", [1.02, 1.5, 1.7, 2.0])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 100.0])
def test_sparse_attention_of_200_000_tiles_is_exact_in_float32(alpha, scale):
    scores = scale * torch.randn(1, 200_000, generator=torch.Generator().manual_seed(0))
    found, exact = entmax(scores, alpha), entmax(scores.double(), alpha)
    assert ((found - exact).abs().max() / exact.max()) < 1e-5
    assert abs(found.sum() - 1) < 1e-4


def test_the_mixture_trains_its_share():
    scores = torch.randn(1, 20, dtype=torch.float64)
    for xi in (-3.0, 0.0, 2.0):
        zeta = 1 / (1 + math.exp(-xi))
        torch.testing.assert_close(mixture(scores, xi), zeta * softmax(scores) + (1 - zeta) * nsf(scores))
        torch.testing.assert_close(log_mixture(scores, xi).exp(), mixture(scores, xi))
    rule = Mixture().double()
    assert rule.zeta == 0.5
    weights = torch.randn(20, dtype=torch.float64)
    (rule(scores) @ weights).backward()
    torch.testing.assert_close(rule.xi.grad, 0.25 * ((softmax(scores) - nsf(scores)) @ weights)[0])


def test_options_that_a_rule_does_not_take_are_refused():
    with pytest.raises(AsmilError, match=r"'entmax'.*'temperature'"):
        build_normalizer("entmax", temperature=2.0)
    with pytest.raises(AsmilError, match=r"'sparsemax'.*'alpha'"):
        build_normalizer("sparsemax", alpha=1.5)
    with pytest.raises(AsmilError, match="'sparsemax'"):
        build_normalizer("sparsmax")
    with pytest.raises(AsmilError, match="kappa = 0"):
        StandardizedNSF(kappa=0)
    for rule in (Sparsemax(), StandardizedNSF(), Mixture()):
        with pytest.raises(AsmilError, match="cannot be streamed"):
            rule.log_weights(torch.zeros(1, 3))
