"""Softmax attention of all tiles over all tiles whose values are one number per tile.

    o_i = sum_j P_ij v_j,    P = softmax over j of q_i . k_j / sqrt(d)          for every head

Fused attention kernels never keep the N x N weights. They expect values as wide as the keys, so the values get zeros
beside them. Batches of padded bags, which these kernels do not take, are computed for some rows at a time; there the
backward pass computes the weights again, from the logarithm l_i of each row's sum of exponentials:

    P_ij = exp(q_i . k_j / sqrt(d) - l_i)
    dv_j = sum_i P_ij g_i,    d(q_i . k_j / sqrt(d)) = g_i P_ij (v_j - o_i)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from asmil.models.blocks.layers import floating, full_precision
from asmil.models.blocks.randomness import draws_batched

BLOCK_VALUES = 2**22
"""How many of the H x N x N weights are computed at once."""


def attend_to_scores(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """H x N x d, H x N x d, H x N -> H x N; mask: N, false for padding, to which no tile attends."""
    if mask is None and not draws_batched():
        padded = functional.pad(values.to(queries.dtype).unsqueeze(2), (0, queries.shape[-1] - 1))
        return functional.scaled_dot_product_attention(queries[None], keys[None], padded[None])[0, :, :, 0]
    shift = queries.new_zeros(1, 1, queries.shape[1])
    if mask is not None:
        shift = shift.masked_fill(~mask, -torch.inf)
    return _AttendToScores.apply(queries, keys, floating(values), shift)[0]  # type: ignore[no-untyped-call]


class _AttendToScores(torch.autograd.Function):
    """The sums o and the logarithms l of the module's text, in float32 at least.

    shift: 1 x 1 x N, added to the products
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(queries: Tensor, keys: Tensor, values: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        sums, logarithms = [], []
        with full_precision(queries):
            for rows in queries.split(_block_rows(queries), dim=1):
                products = _products(rows, keys, shift)
                highest = products.amax(dim=2, keepdim=True)
                weights = products.sub_(highest).exp_()
                total = weights.sum(dim=2)
                sums.append(torch.matmul(weights, values.unsqueeze(2)).squeeze(2) / total)
                logarithms.append(highest.squeeze(2) + total.log())
        return torch.cat(sums, dim=1), torch.cat(logarithms, dim=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        queries, keys, values, shift, sums, logarithms = ctx.saved_tensors
        size, scale = _block_rows(queries), queries.shape[-1] ** -0.5
        parts = zip(*(part.split(size, dim=1) for part in (queries, sums, logarithms, upstream[0])), strict=True)
        d_queries = []
        d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
        with full_precision(queries):
            for rows, means, logarithm, gradient in parts:
                weights = _products(rows, keys, shift).sub_(logarithm.unsqueeze(2)).exp_()
                d_values = d_values + torch.matmul(gradient.unsqueeze(1), weights).squeeze(1)
                d_products = (values.unsqueeze(1) - means.unsqueeze(2)).mul_(weights).mul_(gradient.unsqueeze(2))
                d_products = d_products.to(keys.dtype)
                d_queries.append(torch.matmul(d_products, keys))
                d_keys = d_keys + torch.matmul(d_products.mT, rows)
        return torch.cat(d_queries, dim=1) * scale, d_keys * scale, d_values, None


def _products(rows: Tensor, keys: Tensor, shift: Tensor) -> Tensor:
    """q_i . k_j / sqrt(d) + shift, H x n x N for n rows."""
    return floating(torch.baddbmm(shift, rows * rows.shape[-1] ** -0.5, keys.mT))


def _block_rows(queries: Tensor) -> int:
    heads, tiles, _ = queries.shape
    return max(1, BLOCK_VALUES // (heads * tiles))
