"""The pseudo-inverse of a softmax kernel by six or so matrix products, as Nystrom attention has it.

    Z = P^T / (largest column sum);      Y = P Z,   Z = Z (13 I - Y (15 I - Y (7 I - Y))) / 4,   several times

The official start divides by the largest row sum too; rows of a softmax sum to 1. The backward pass is written out: the
products alone, without the scaling and adding between them that automatic differentiation makes separate steps of.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def pseudo_inverse(kernel: Tensor, counts: Tensor, iterations: int) -> Tensor:
    """The inverse of H kernels (H x M x M, rows sum to 1), all started with one number for all heads.

    Landmark j of the M represents counts[j] equal ones, and its column holds their weights added up; the result then
    acts on one row for each landmark as the inverse of the whole kernel acts on all rows.
    """
    columns = (counts @ kernel / counts).amax()
    start = kernel.mT * (counts / counts.unsqueeze(1) / columns)
    inverse: Tensor = _Iterate.apply(kernel, start, iterations)  # type: ignore[no-untyped-call]
    return inverse


class _Iterate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Tensor, start: Tensor, iterations: int) -> Tensor:
        kept = [kernel]
        inverse = start
        for _ in range(iterations):
            product = torch.bmm(kernel, inverse)
            inner = torch.baddbmm(product, product, product, beta=7, alpha=-1)
            outer = torch.baddbmm(product, product, inner, beta=15, alpha=-1)
            kept += [inverse, product, inner, outer]
            inverse = torch.baddbmm(inverse, inverse, outer, beta=3.25, alpha=-0.25)
        ctx.save_for_backward(*kept)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        kernel, *kept = ctx.saved_tensors
        (d_inverse,) = upstream
        d_kernel = torch.zeros_like(kernel)
        with torch.autocast(kernel.device.type, enabled=False):
            for first in reversed(range(0, len(kept), 4)):
                inverse, product, inner, outer = kept[first : first + 4]
                d_outer = torch.baddbmm(d_inverse, inverse.mT, d_inverse, beta=0, alpha=-0.25)
                d_inner = torch.baddbmm(d_outer, product.mT, d_outer, beta=0, alpha=-1)
                d_product = torch.baddbmm(d_outer, d_outer, inner.mT, beta=15, alpha=-1)
                d_product.add_(d_inner, alpha=7)
                d_product.baddbmm_(d_inner, product.mT, alpha=-1).baddbmm_(product.mT, d_inner, alpha=-1)
                d_kernel.baddbmm_(d_product, inverse.mT)
                d_inverse = torch.baddbmm(d_inverse, d_inverse, outer.mT, beta=3.25, alpha=-0.25)
                d_inverse.baddbmm_(kernel.mT, d_product)
        return d_kernel, d_inverse, None
