"""Parts of a pass as single kernels give the numbers of the operations they replace; interpreted if there is no GPU."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from asmil import Bag
from asmil.attention.normalizers import NSF, Softmax
from asmil.models.blocks.instance_loss import labels_stacked
from asmil.models.blocks.randomness import RandomModule, batched_draws
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.side_by_side.plain_forms import plain_forms, plain_kl_to_softmax, replaced

WIDTH, ROWS, LENGTHS = 9, 37, (37, 5, 21)


pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton")


@pytest.fixture(autouse=True)
def on_the_gpu_if_there_is_one():
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        yield


def drawn(*shape):
    """Normal numbers, the same on all devices."""
    generator = torch.Generator("cpu").manual_seed(len(shape))
    return torch.randn(shape, generator=generator, device="cpu").to(torch.get_default_device())


def built(config, classes, seed):
    device = torch.get_default_device()
    with torch.device("cpu"):
        return build_model(config, WIDTH, classes, seed).train().to(device)


def draws_for(model=None):
    from asmil.training.side_by_side.counted_draws import CountedDraws

    draws = object.__new__(CountedDraws)
    for part in model.modules() if model is not None else ():
        if isinstance(part, RandomModule):
            object.__setattr__(part, "uniform", draws._uniform)
            object.__setattr__(part, "drop", draws._drop)
    return draws


def losses_and_gradients(method, settings, classes, padded, *, single):
    """Of three models on a bag each."""
    from asmil.training.side_by_side.passes import single_passes

    config = resolve(method, changes={"model": settings})
    models = [built(config, classes, seed) for seed in range(3)]
    form, task = models[0], Classification([str(label) for label in range(classes)])
    draws = draws_for(form)
    tensors = [torch.stack(own).detach() for own in zip(*(model.parameters() for model in models), strict=True)]
    parameters = dict(zip(dict(form.named_parameters()), tensors, strict=True))
    for name, value in parameters.items():  # biases start at 0, and scores near 0
        parameters[name] = (value + 0.3 * drawn(*value.shape)).requires_grad_()
    features = drawn(3, ROWS, WIDTH)
    mask = torch.arange(ROWS) < torch.tensor(LENGTHS).unsqueeze(1)
    features[~mask] = 0.0

    def loss(seed, own, features, mask, target):
        bag = Bag(features, mask=mask if padded else None, validated=True)
        with draws.handing_out([seed]):
            output = functional_call(form, own, (bag,))
            return form.loss([output], target, task).total

    seeds, targets = torch.tensor([5 << 32, 7, 9]), torch.tensor([[0], [1], [classes - 1]])
    passes = replaced(single_passes(draws)) if single else nullcontext()
    with plain_forms(), batched_draws(), labels_stacked(), passes:
        losses = torch.vmap(loss, randomness="same")(seeds, parameters, features, mask, targets)
        found = torch.autograd.grad(losses.sum(), list(parameters.values()), materialize_grads=True)
    return losses.detach(), dict(zip(parameters, found, strict=True))


@pytest.mark.parametrize("padded", [True, pytest.param(False, marks=pytest.mark.heavy)])
@pytest.mark.parametrize(
    ("method", "settings", "classes"),
    [
        ("clam_sb", {"inner": 70, "attention": 33}, 2),
        *(
            pytest.param(*row, marks=pytest.mark.heavy)
            for row in [
                ("clam_sb", {"inner": 20, "attention": 6, "dropout": 0.0, "k_rule": "half", "subtyping": True}, 2),
                ("clam_sb", {"inner": 20, "attention": 6, "instance_loss": "svm", "bag_loss": "svm"}, 2),
                ("clam_mb", {"inner": 20, "attention": 6, "k_sample": 3}, 3),
                ("abmil", {"inner": 20, "attention": 6, "branches": 3, "dropout": 0.4, "attention_dropout": 0.3}, 4),
                ("abmil", {"inner": 20, "attention": 6, "gated": False, "bias": True}, 2),
                (
                    "abmil",
                    {"inner": 20, "attention": 6, "activation": "gelu", "embedding_layers": 2, "dropout": 0.2},
                    2,
                ),
                ("acmil", {"inner": 20, "attention": 6, "mask_drop": 0.0}, 2),
            ]
        ),
    ],
)
def test_losses_and_gradients_are_those_of_plain_operations(method, settings, classes, padded):
    losses, gradients = losses_and_gradients(method, settings, classes, padded, single=True)
    expected, expected_gradients = losses_and_gradients(method, settings, classes, padded, single=False)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_penalty_on_the_scores_reaches_the_network_through_pooling():
    from asmil.training.side_by_side.passes import single_passes

    model = built(resolve("abmil", changes={"model": {"inner": 20, "attention": 6}}), 2, 0)
    rows = drawn(2, ROWS, 20).requires_grad_()
    parameters = list(model.attention.parameters())
    draws, found = draws_for(), []
    draws._seed, draws._used = torch.tensor(0), 0
    for passes in (nullcontext(), replaced(single_passes(draws))):
        with plain_forms(), batched_draws(), passes:
            scores, pooled = torch.vmap(lambda own: model.pool_bag(own, Bag(own, validated=True)))(rows)
        total = scores.sigmoid().sum() + pooled.square().sum()
        found.append([scores, pooled, *torch.autograd.grad(total, [rows, *parameters])])
    for plain, single in zip(*found, strict=True):
        torch.testing.assert_close(single, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 5])
def test_cross_entropy(classes):
    from asmil.training.side_by_side.passes import _cross_entropy

    logits = (30 * drawn(50, 1, classes)).requires_grad_()
    targets = torch.arange(50).unsqueeze(1) % classes
    losses = torch.vmap(lambda own, target: _cross_entropy(own, target, reduction="none"))(logits, targets)
    expected = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").unsqueeze(1)
    torch.testing.assert_close(losses, expected)
    weights = torch.arange(50.0).unsqueeze(1)
    for found, wanted in zip(
        *(torch.autograd.grad((one * weights).sum(), logits) for one in (losses, expected)), strict=True
    ):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("normalizer", [Softmax(0.7), NSF(), NSF(2.0)])
def test_divergence_from_the_anchor(normalizer):
    from asmil.training.side_by_side.passes import _kl_to_softmax

    targets, scores = 5 * drawn(2, 3, ROWS), (10 * drawn(3, 2, ROWS).transpose(0, 1)).requires_grad_()
    padding = torch.arange(ROWS) >= 20
    weights = torch.arange(6.0).view(2, 3)
    found = []
    for function in (_kl_to_softmax, plain_kl_to_softmax):
        masked = scores.masked_fill(padding, -torch.inf)
        per_row = torch.vmap(lambda *own, function=function: function(own[0], normalizer, own[1]))(
            targets.masked_fill(padding, -torch.inf), masked
        )
        found.append([per_row, *torch.autograd.grad((per_row * weights).sum(), scores)])
    for single, plain in zip(*found, strict=True):
        torch.testing.assert_close(single, plain, rtol=1e-5, atol=1e-5)


def test_dropout_draws_the_same_factors_forward_and_backward():
    draws, seeds = draws_for(), torch.tensor([1, 2])
    x = drawn(2, 3, 11, 7).requires_grad_()

    def dropped(seed, own):
        with draws.handing_out([seed]):
            return draws._drop(own, 0.25)

    together = torch.vmap(dropped)(seeds, x)
    (factors,) = torch.autograd.grad(together.sum(), x)
    assert set(factors.unique().tolist()) == {0.0, factors.max().item()}
    torch.testing.assert_close(together, x * factors, rtol=0, atol=0)
    torch.testing.assert_close(dropped(seeds[1], x[1]), together[1], rtol=0, atol=0)
