"""Divergences of two attentions, row by row, from their logarithms (natural logarithm: nats).

`log_target` and `log_attention` are ... x N log-probabilities; a result has one number per row. A tile whose target
weight is 0 (log weight minus infinity: masked, or outside a sparse target) contributes nothing. NaN in either makes the
row NaN, and a tile that has weight in the target but none in the attention makes it infinite.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from asmil.attention.normalizers import Normalizer, Softmax


def kl(log_target: Tensor, log_attention: Tensor) -> Tensor:
    """`KL(t || p) = sum_i t_i (log t_i - log p_i)`."""
    return _weighted(log_target, log_target - log_attention)


def cross_entropy(log_target: Tensor, log_attention: Tensor) -> Tensor:
    """`-sum_i t_i log p_i`: the KL plus the entropy of the target, so with a fixed target the same gradient."""
    return _weighted(log_target, -log_attention)


def jsd(log_p: Tensor, log_q: Tensor) -> Tensor:
    """The Jensen-Shannon divergence `KL(p || m)/2 + KL(q || m)/2`, m = (p + q)/2; between 0 and ln 2."""
    log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
    return (kl(log_p, log_m) + kl(log_q, log_m)).clamp_min(0) / 2


def kl_to_softmax(target_scores: Tensor, normalizer: Normalizer, scores: Tensor) -> Tensor:
    """`KL(t || softmax(z))` of A x N scores, with the target `t = normalizer(z')` taken as fixed.

    The gradient with respect to z is `softmax(z) - t`. It is formed in the forward pass, a few rows at a time so that
    all intermediate values stay in the processor's cache; the backward pass is one product.
    """
    return _KLToSoftmax.apply(target_scores, normalizer, scores)  # type: ignore[no-untyped-call]


def negative_entropy(log_attention: Tensor) -> Tensor:
    """`sum_i a_i log a_i` of every row: A x N -> A, between -log N (uniform) and 0 (one tile)."""
    return _weighted(log_attention, log_attention)


def _weighted(log_weights: Tensor, values: Tensor) -> Tensor:
    # Where the weight is 0 the value may not be finite; the fill also cuts off its gradient.
    return (log_weights.exp() * values.masked_fill(log_weights == -torch.inf, 0.0)).sum(dim=-1)


_ONLINE = Softmax()
_CACHE_ELEMENTS = 1 << 17


class _KLToSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, target_scores: Tensor, normalizer: Normalizer, scores: Tensor) -> Tensor:
        difference = torch.empty_like(scores)
        per_row = []
        n_rows, n_tiles = scores.shape
        step = n_rows if scores.is_cuda else max(1, _CACHE_ELEMENTS // max(1, n_tiles))
        for start in range(0, n_rows, step):
            rows = slice(start, start + step)
            logs, target = normalizer.unscaled(target_scores[rows])
            online_logs, attention = _ONLINE.unscaled(scores[rows])
            sums, online_sums = target.sum(dim=-1, keepdim=True), attention.sum(dim=-1, keepdim=True)
            terms = (logs - online_logs).add_(online_sums.log() - sums.log()).mul_(target.div_(sums))
            if scores.is_cuda or not bool(target.amin() > 0):
                terms.masked_fill_(target == 0, 0.0)
            per_row.append(terms.sum(dim=-1))
            difference[rows] = attention.div_(online_sums).sub_(target)
        ctx.save_for_backward(difference)
        return torch.cat(per_row)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, None, Tensor]:
        (difference,) = ctx.saved_tensors
        return None, None, upstream[0].unsqueeze(-1).to(difference.dtype) * difference
