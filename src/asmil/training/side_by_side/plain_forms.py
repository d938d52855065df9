"""Plain forms of operations that `torch.vmap` cannot batch, or batches into more operations than they need.

`torch.vmap` derives the batched form of an operation from its elementary operations. It cannot do so for custom
backward passes (written for large bags, which these trainings do not have), for the fused attention on the CPU and,
over two axes on a GPU, for `logsigmoid`, whose second result has no axes there. Of a linear layer it makes 7
operations, forward and backward, and of cross-entropy 17, where 5 and 9 suffice.
Within `plain_forms()` such operations are replaced by the equivalent form in their documentation.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from asmil.attention import divergences
from asmil.attention.normalizers import Normalizer
from asmil.models.blocks import folded, landmark_attention, nystrom


def plain_kl_to_softmax(target_scores: Tensor, normalizer: Normalizer, scores: Tensor) -> Tensor:
    """`divergences.kl_to_softmax`."""
    return divergences.kl(normalizer.log(target_scores).detach(), torch.log_softmax(scores, dim=-1))


def _embed_and_attend(features: Tensor, embedding: Tensor, vectors: Tensor, constants: Tensor) -> tuple[Tensor, Tensor]:
    embedded = functional.relu(features @ embedding.t())
    scores = torch.addmm(constants, vectors, embedded.t())
    return scores, torch.softmax(scores, dim=-1) @ embedded


def _gather(queries: Tensor, keys: Tensor, values: Tensor, run: int, block: int) -> Tensor:
    del run, block
    return torch.softmax(queries @ keys.mT, dim=-1) @ values


def _iterate(kernel: Tensor, start: Tensor, iterations: int) -> Tensor:
    inverse = start
    for _ in range(iterations):
        product = kernel @ inverse
        inner = torch.baddbmm(product, product, product, beta=7, alpha=-1)
        outer = torch.baddbmm(product, product, inner, beta=15, alpha=-1)
        inverse = torch.baddbmm(inverse, inverse, outer, beta=3.25, alpha=-0.25)
    return inverse


def _convolve(module: nystrom.TokenConvolution, values: Tensor) -> Tensor:
    # As one convolution: when batched, it is several times faster than the banded products used for one large bag.
    grid = functional.conv2d(values.unsqueeze(0), module.weight, padding=(module.reach, 0), groups=len(values))
    return grid.squeeze(0)


def _log_sigmoid(values: Tensor) -> Tensor:
    return -functional.softplus(-values, threshold=50)


def plain_linear(layer: nn.Linear, rows: Tensor) -> Tensor:
    """A linear layer with the fewest operations."""
    product = rows @ layer.weight.t()
    return product if layer.bias is None else product + layer.bias.to(product.dtype)


_any_cross_entropy = functional.cross_entropy


def plain_cross_entropy(logits: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """Cross-entropy with the fewest operations."""
    if options != {"reduction": "none"} or logits.ndim != 2 or targets.is_floating_point():
        return _any_cross_entropy(logits, targets, **options)
    is_own = targets.unsqueeze(-1) == torch.arange(logits.shape[-1], device=logits.device)
    return (torch.log_softmax(logits, dim=-1) * (is_own * -1.0)).sum(dim=-1)


Replacement = tuple[Any, str, Any]
"""The class or module of an operation, its name there, and its other form."""
PLAIN: list[Replacement] = [
    (nn.Linear, "forward", plain_linear),
    (functional, "cross_entropy", plain_cross_entropy),
    (divergences._KLToSoftmax, "apply", staticmethod(plain_kl_to_softmax)),
    (folded._EmbedAndAttend, "apply", staticmethod(_embed_and_attend)),
    (landmark_attention._Gather, "apply", staticmethod(_gather)),
    (nystrom._Iterate, "apply", staticmethod(_iterate)),
    (nystrom.TokenConvolution, "forward", _convolve),
    (functional, "logsigmoid", _log_sigmoid),
]


@contextmanager
def replaced(operations: Iterable[Replacement]) -> Iterator[None]:
    """Within this block, operations have other forms."""
    with ExitStack() as undo:
        for owner, name, other in operations:
            if name in vars(owner):
                undo.callback(setattr, owner, name, vars(owner)[name])
            else:
                undo.callback(delattr, owner, name)
            setattr(owner, name, other)
        yield


@contextmanager
def plain_forms() -> Iterator[None]:
    """Within this block, the operations are replaced by their plain forms."""
    with replaced(PLAIN), ExitStack() as undo:
        undo.enter_context(sdpa_kernel(SDPBackend.MATH))
        undo.enter_context(warnings.catch_warnings())
        # for a few small operations torch loops over the replicas and warns
        warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")
        yield
