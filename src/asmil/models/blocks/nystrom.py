"""Nystrom attention: softmax attention between all tokens of a bag through a few landmarks.

For S tokens x (rows) the attention has H heads of width h, m landmarks and six iterations of a pseudo-inverse:

    x is padded with zero rows in front to n = m g rows; q, k, v = x W_q, x W_k, x W_v      no bias, so pads stay zero
    q' , k' = means of runs of g consecutive rows                                           m x h
    F1 = softmax(q k'^T / sqrt(h))   F2 = softmax(q' k'^T / sqrt(h))   F3 = softmax(q' k^T / sqrt(h))
    Z  ~ F2^-1:  Z = F2^T / (r c),  then  Y = F2 Z,  Z = Z (13 I - Y (15 I - Y (7 I - Y))) / 4
    out = F1 (Z (F3 v)) + residual(v),  heads side by side, then a linear layer and dropout; the last S rows

r and c are the largest row and column sums of F2 over all heads together. Nothing masks the pads: they are landmarks
and they take their share of every softmax. Computed differently here, with the same result:

- F1 and F3 are never stored: both products are attention between tokens and landmarks, done in blocks
  (`landmark_attention.py`).
- Landmarks are means of x, projected; if only one output row is needed, q is projected for that row alone.
- The backward pass of the pseudo-inverse is written out: the products alone, without the scaling and adding between
  them that automatic differentiation makes separate steps of. Rows of a softmax sum to 1, so r is 1.
- Runs made of pads alone all give the landmark zero. They are kept once, with their count: with P = F2 D on the kept
  rows (D the counts), Z' = D^-1 P^T D / (r c) goes through the same iteration and Z' acts on kept rows as Z on all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from asmil.errors import AsmilError
from asmil.models.blocks.exporting import warn_of_fixed_size
from asmil.models.blocks.landmark_attention import gather, spread
from asmil.models.blocks.layers import floating, full_precision
from asmil.models.blocks.randomness import Dropout


class ValueResidual(nn.Module):
    """A module on the values of the real tokens (H x S x h, same shape out) that is added to the attention's output.

    reach: how many tokens before and after a token its output depends on
    """

    reach: int


class TokenConvolution(ValueResidual):
    """A depth-wise convolution along the tokens: one kernel per head, shared by the head's channels.

    As matrix products, which are several times faster than a convolution of this odd shape: a block of tokens is a
    banded matrix, made of the kernel, times the tokens of that block and of the next one.
    """

    def __init__(self, heads: int, kernel: int) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise AsmilError(f"residual_kernel = {kernel}: it must be odd, to be centered on a token")
        self.reach = kernel // 2
        self.weight = nn.Parameter(nn.Conv2d(heads, heads, (kernel, 1), groups=heads, bias=False).weight.detach())

    def forward(self, values: Tensor) -> Tensor:
        heads, n_tokens, width = values.shape
        overlap = 2 * self.reach
        block = max(32, overlap)
        blocks = -(-n_tokens // block)
        # Token i of a block has the kernel in columns i .. i + overlap: rows of the kernel and `block` zeros, laid end
        # to end and cut one shorter than they are, so that each starts one column later.
        span = block + overlap
        rows = functional.pad(self.weight.to(values.dtype).view(heads, 1, -1), (0, block)).expand(-1, block, -1)
        band = rows.reshape(heads, -1)[:, : block * span].view(heads, block, span)
        ends = (0, 0, self.reach, (blocks + 1) * block - n_tokens - self.reach)
        columns = functional.pad(values, ends).view(heads, blocks + 1, block, width).transpose(1, 2)
        columns = columns.reshape(heads, block, -1)
        # In place, for the memory: a product does not need its result again in the backward pass.
        mixed = band[:, :, :block] @ columns[:, :, :-width]
        mixed.baddbmm_(band[:, :, block:], columns[:, :overlap, width:])
        del columns
        return mixed.view(heads, block, blocks, width).transpose(1, 2).reshape(heads, -1, width)[:, :n_tokens]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the products are made of, all in float32 (or float64).

    queries: H x n x h, or H x 1 x h for one token; keys, values: H x n x h, pads included; pads: how many
    landmark_queries, landmark_keys: H x M x h, M kept landmarks; counts: M, how often each occurs
    inverse: H x M x M, Z' of the module's text
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    pads: int
    landmark_queries: Tensor
    landmark_keys: Tensor
    counts: Tensor
    inverse: Tensor


class NystromAttention(nn.Module):
    """Nystrom attention on the tokens of one bag, S x width; see the module's text.

    residual: used instead of the convolution along tokens with `residual_kernel` (None: no residual)
    out_projection: the linear layer on the joined heads
    dropout: its rate, or the module
    """

    def __init__(
        self,
        width: int,
        heads: int,
        landmarks: int,
        head_width: int | None = None,
        iterations: int = 6,
        residual_kernel: int | None = 33,
        out_projection: bool = True,
        dropout: float | Dropout = 0.1,
        residual: ValueResidual | None = None,
    ) -> None:
        super().__init__()
        if head_width is None and width % heads:
            raise AsmilError(f"a width of {width} cannot be split into {heads} heads; choose a multiple of {heads}")
        if landmarks < 1:
            raise AsmilError(f"landmarks = {landmarks}: Nystrom attention needs at least one")
        self.heads = heads
        self.head_width = width // heads if head_width is None else head_width
        self.landmarks = landmarks
        self.iterations = iterations
        inner = heads * self.head_width
        self.to_qkv = nn.Linear(width, 3 * inner, bias=False)
        if residual is None and residual_kernel is not None:
            residual = TokenConvolution(heads, residual_kernel)
        self.residual = residual
        self.to_out = nn.Linear(inner, width) if out_projection else nn.Identity()
        self.dropout = dropout if isinstance(dropout, Dropout) else Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """S x width -> S x width."""
        return self._output(self._parts(tokens), None, tokens.dtype)

    def with_row_weights(self, tokens: Tensor, row: int) -> tuple[Tensor, Tensor]:
        """`forward` and `row_weights` of one token, sharing their work: S x width and H x S."""
        parts = self._parts(tokens)
        return self._output(parts, None, tokens.dtype), _row_weights(parts, parts.pads + row)[:, parts.pads :]

    def row(self, tokens: Tensor, row: int) -> Tensor:
        """Row `row` (from 0) of `forward` alone (width), for less than half its work."""
        return self._output(self._parts(tokens, row), row, tokens.dtype).squeeze(0)

    def row_and_weights(self, tokens: Tensor, row: int) -> tuple[Tensor, Tensor]:
        """`row` and `row_weights` of the same token, sharing their work: width and H x S."""
        parts = self._parts(tokens, row)
        weights = _row_weights(parts, 0)
        mixed = weights.unsqueeze(1) @ parts.values
        return self._finish(mixed.transpose(0, 1), parts, row, tokens.dtype).squeeze(0), weights[:, parts.pads :]

    def row_weights(self, tokens: Tensor, row: int) -> Tensor:
        """Row `row` of `F1 Z F3` at the real tokens, H x S: it may be negative, and the pads keep a share of it."""
        parts = self._parts(tokens, row)
        return _row_weights(parts, 0)[:, parts.pads :]

    def row_scores(self, tokens: Tensor, row: int) -> Tensor:
        """The exact scores `q_row . k_j / sqrt(h)` of one token against all, H x S, without projecting all keys."""
        to_query, to_key, _ = self._projections()
        with full_precision(tokens):
            tokens = floating(tokens)
            query = self._split(functional.linear(tokens[row : row + 1], to_query))
            folded = query @ to_key.view(self.heads, self.head_width, -1)
            return folded.squeeze(1) @ tokens.t() * self.head_width**-0.5

    def _projections(self) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = floating(self.to_qkv.weight).chunk(3)
        return query, key, value

    def _split(self, projected: Tensor) -> Tensor:
        """rows x (H h) -> H x rows x h."""
        return floating(projected).view(-1, self.heads, self.head_width).transpose(0, 1)

    def _parts(self, tokens: Tensor, row: int | None = None) -> _Parts:
        to_query, to_key, _ = self._projections()
        warn_of_fixed_size("its landmarks are means of runs of tiles, as long as their number demands")
        n_tokens = int(tokens.shape[0])  # in an export, the number of the example
        run = -(-n_tokens // self.landmarks)
        pads = run * self.landmarks - n_tokens
        padded = functional.pad(tokens, (0, 0, pads, 0))
        if row is None:
            queries, keys, values = (self._split(part) for part in self.to_qkv(padded).chunk(3, dim=1))
        else:
            to_key_value = self.to_qkv.weight[self.heads * self.head_width :]
            keys, values = (self._split(part) for part in functional.linear(padded, to_key_value).chunk(2, dim=1))
        with full_precision(tokens):
            if row is not None:
                queries = self._split(functional.linear(floating(tokens[row : row + 1]), to_query))
            # The first pads // run landmarks are zero; one of them stays.
            dropped = max(0, pads // run - 1)
            kept = floating(padded[dropped * run :]).view(-1, run, padded.shape[1]).mean(dim=1)
            counts = torch.ones_like(kept[:, 0])
            counts[0] += dropped
            landmark_queries = self._split(functional.linear(kept, to_query))
            landmark_keys = self._split(functional.linear(kept, to_key))
            kernel = _weighted_softmax(landmark_queries, landmark_keys, counts)
            inverse = pseudo_inverse(kernel, counts, self.iterations)
        return _Parts(queries, keys, values, pads, landmark_queries, landmark_keys, counts, inverse)

    def _output(self, parts: _Parts, row: int | None, dtype: torch.dtype) -> Tensor:
        with full_precision(parts.values):
            pooled = parts.inverse @ gather(parts.landmark_queries, parts.keys, parts.values, self.landmarks)
            keys, pooled = (_repeated(kept, self.landmarks) for kept in (parts.landmark_keys, pooled))
            if row is None:
                mixed = spread(parts.queries, keys, pooled, self.landmarks)[parts.pads :]
            else:
                mixed = spread(parts.queries, keys, pooled, 1)
        return self._finish(mixed, parts, row, dtype)

    def _finish(self, mixed: Tensor, parts: _Parts, row: int | None, dtype: torch.dtype) -> Tensor:
        """Residual, joined heads, output layer: R x H x h -> R x width."""
        if self.residual is not None:
            values = parts.values[:, parts.pads :]
            with full_precision(values):
                if row is None:
                    residual = self.residual(values)
                else:
                    first = max(0, row - self.residual.reach)
                    near = self.residual(values[:, first : row + self.residual.reach + 1])
                    residual = near[:, row - first : row - first + 1]
            mixed = mixed + residual.transpose(0, 1)
        return self.dropout(self.to_out(mixed.flatten(1).to(dtype)))


class NystromLayer(nn.Module):
    """A transformer layer without feed-forward part: x + attention(LayerNorm(x)).

    landmarks: None: half the width; options: of `NystromAttention`
    """

    def __init__(self, width: int, heads: int, landmarks: int | None, **options: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = NystromAttention(width, heads, width // 2 if landmarks is None else landmarks, **options)

    def forward(self, tokens: Tensor) -> Tensor:
        update: Tensor = self.attention(self.norm(tokens))
        return tokens + update


def _row_weights(parts: _Parts, row: int) -> Tensor:
    """`(F1[row] Z) F3`, H x n, one head at a time, so that only one M x n matrix is in memory."""
    with full_precision(parts.keys):
        query = parts.queries[:, row : row + 1]
        through = _weighted_softmax(query, parts.landmark_keys, parts.counts) @ parts.inverse
        weights = []
        for landmarks, keys, weight in zip(parts.landmark_queries, parts.keys, through, strict=True):
            scores = (landmarks * keys.shape[-1] ** -0.5) @ keys.t()
            weights.append(weight @ torch.softmax(scores, dim=-1))
        return torch.cat(weights)


def _weighted_softmax(queries: Tensor, keys: Tensor, counts: Tensor) -> Tensor:
    """softmax of the scores when key j occurs counts[j] times; the weights of equal keys are added up."""
    return torch.softmax(queries @ keys.transpose(1, 2) * keys.shape[-1] ** -0.5 + counts.log(), dim=-1)


def _repeated(kept: Tensor, landmarks: int) -> Tensor:
    """H x M x h -> H x m x h: the first landmark as often as it occurs."""
    missing = landmarks - kept.shape[1]
    return kept if missing == 0 else torch.cat([kept[:, :1].expand(-1, missing, -1), kept], dim=1)


def as_distribution(weights: Tensor, otherwise: Tensor) -> Tensor:
    """A row of attention as a map: negative values set to 0, the rest scaled to the sum 1.

    otherwise: the map if nothing is positive
    """
    clipped = weights.clamp(min=0)
    total = clipped.sum()
    return clipped / total if total > 0 else otherwise


def pseudo_inverse(kernel: Tensor, counts: Tensor, iterations: int) -> Tensor:
    """The inverse of H kernels (H x M x M, rows sum to 1), all started with one number for all heads.

    Landmark j of the M represents counts[j] equal ones, and its column holds their weights added up; the result then
    acts on one row for each landmark as the inverse of the whole kernel acts on all rows.
    """
    columns = (counts @ kernel / counts).amax()
    start = kernel.mT * (counts / counts.unsqueeze(1) / columns)
    return _Iterate.apply(kernel, start, iterations)  # type: ignore[no-untyped-call]


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
