"""Knowledge-aware attention over the chosen neighbors of every tile (WiKG), without an N x k x d tensor of all tiles.

    p_ij = softmax_j(e_i . t_j / sqrt(d))                       over the k neighbors j of tile i
    g_ij = tanh(e_i + p_ij t_j + (1 - p_ij) e_i)
    u_ij = sum(t_j) sum(g_ij)    or    t_j . g_ij               sums over channels
    m_i  = sum_j softmax_j(u_ij) t_j

Tiles are processed in blocks; the backward pass gathers the neighbors and computes g again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from asmil.models.blocks.exporting import is_exporting
from asmil.models.blocks.layers import floating
from asmil.models.blocks.randomness import draws_batched

BLOCK_VALUES = {"cpu": 2**20, "cuda": 2**26}
"""How many values of neighbors are gathered at once."""


class Mixed(NamedTuple):
    """m (N x d), and without gradient p, u and softmax(u) (N x k each)."""

    tails: Tensor
    probabilities: Tensor
    scores: Tensor
    attention: Tensor


def mix(heads: Tensor, tails: Tensor, neighbors: Tensor, dot: bool) -> Mixed:
    """e and t (N x d) and the neighbors (N x k) -> what the module's text defines, in float32 at least.

    dot: u is a dot product, else a product of sums
    """
    heads, tails = floating(heads), floating(tails)
    if is_exporting() or draws_batched():
        return Mixed(*mix_at_once(heads, tails, neighbors, dot))
    return Mixed(*_Mix.apply(heads, tails, neighbors, dot))  # type: ignore[no-untyped-call]


def mix_at_once(heads: Tensor, tails: Tensor, neighbors: Tensor, dot: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same for all tiles at once, with the gradients of autograd; a neighbor of -1 is none."""
    near = tails[neighbors.clamp(min=0)]
    missing = neighbors < 0
    products = torch.einsum("nd,nkd->nk", heads, near) * heads.shape[1] ** -0.5
    probabilities = torch.softmax(products.masked_fill(missing, -torch.inf), dim=1)
    gate = torch.tanh(2 * heads.unsqueeze(1) + probabilities.unsqueeze(2) * (near - heads.unsqueeze(1)))
    scores = (near * gate).sum(dim=2) if dot else near.sum(dim=2) * gate.sum(dim=2)
    attention = torch.softmax(scores.masked_fill(missing, -torch.inf), dim=1)
    mixed = torch.einsum("nk,nkd->nd", attention, near)
    return mixed, probabilities.detach(), scores.detach(), attention.detach()


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, heads: Tensor, tails: Tensor, neighbors: Tensor, dot: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        size, scale = _block_rows(heads, neighbors), heads.shape[1] ** -0.5
        sums, parts = tails.sum(dim=1), []
        for rows, places in zip(heads.split(size), neighbors.split(size), strict=True):
            near = tails[places]
            probabilities = torch.softmax(torch.bmm(near, rows.unsqueeze(2)).squeeze(2) * scale, dim=1)
            gate = _gate(rows, near, probabilities)
            scores = gate.mul_(near).sum(dim=2) if dot else sums[places] * gate.sum(dim=2)
            attention = torch.softmax(scores, dim=1)
            mixed = torch.bmm(attention.unsqueeze(1), near).squeeze(1)
            parts.append((mixed, probabilities, scores, attention))
        mixed, probabilities, scores, attention = (torch.cat(blocks) for blocks in zip(*parts, strict=True))
        ctx.save_for_backward(heads, tails, neighbors, probabilities, attention)
        ctx.mark_non_differentiable(probabilities, scores, attention)
        ctx.dot = dot
        return mixed, probabilities, scores, attention

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        heads, tails, neighbors, probabilities, attention = ctx.saved_tensors
        size, scale = _block_rows(heads, neighbors), heads.shape[1] ** -0.5
        sums, d_sums = tails.sum(dim=1), tails.new_zeros(len(tails))
        d_tails, d_heads = torch.zeros_like(tails), []
        d_mixed = upstream[0].to(tails.dtype)  # bf16 under autocast
        split = (part.split(size) for part in (heads, neighbors, probabilities, attention, d_mixed))
        for rows, places, p, q, gradient in zip(*split, strict=True):
            near = tails[places]
            d_scores = _through_softmax(q, torch.bmm(near, gradient.unsqueeze(2)).squeeze(2))
            gate = _gate(rows, near, p)
            d_near = q.unsqueeze(2) * gradient.unsqueeze(1)
            if ctx.dot:
                d_near.addcmul_(gate, d_scores.unsqueeze(2))
                d_inner = gate.square_().neg_().add_(1).mul_(near).mul_(d_scores.unsqueeze(2))
            else:
                d_sums.index_add_(0, places.flatten(), (d_scores * gate.sum(dim=2)).flatten())
                d_inner = gate.square_().neg_().add_(1).mul_((d_scores * sums[places]).unsqueeze(2))
            d_near.addcmul_(d_inner, p.unsqueeze(2))
            d_p = torch.einsum("nkd,nkd->nk", d_inner, near) - torch.einsum("nkd,nd->nk", d_inner, rows)
            d_products = _through_softmax(p, d_p) * scale
            d_near.addcmul_(d_products.unsqueeze(2), rows.unsqueeze(1))
            weights = torch.stack([2 - p, d_products], dim=1)
            d_rows = torch.bmm(weights[:, :1], d_inner) + torch.bmm(weights[:, 1:], near)
            d_heads.append(d_rows.squeeze(1))
            d_tails.index_add_(0, places.flatten(), d_near.flatten(0, 1))
        return torch.cat(d_heads), d_tails.add_(d_sums.unsqueeze(1)), None, None


def _gate(rows: Tensor, near: Tensor, probabilities: Tensor) -> Tensor:
    """g of the module's text, n x k x d, from e, t of the neighbors and p."""
    rows = rows.unsqueeze(1)
    return (near - rows).mul_(probabilities.unsqueeze(2)).add_(rows, alpha=2).tanh_()


def _through_softmax(weights: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the inputs of a softmax over dim 1, from that of its result."""
    return weights * (gradient - (weights * gradient).sum(dim=1, keepdim=True))


def _block_rows(heads: Tensor, neighbors: Tensor) -> int:
    values = BLOCK_VALUES.get(heads.device.type, BLOCK_VALUES["cuda"])
    return max(1, values // (heads.shape[1] * neighbors.shape[1]))
