"""Sums over the edges of a graph of tiles, and the graph convolution GENConv built of them.

A graph is stored as a sparse N x N matrix A by rows and by columns (`adjacency`), so that products with A and with its
transpose are sums of gathered rows: no message of a single edge is ever stored.

Softmax aggregation, channel by channel, of the messages m_s that reach tile i (those s with A_is not 0):

    y_i = sum_s p_is m_s,    p_is = exp(t m_s) / sum_r exp(t m_r)

A message is the same for all its receivers, so with e_s = exp(t m_s - c) for one constant c

    y = (A (e m)) / (A e)                      two sparse products instead of a softmax over edges
    dm = e ((1 + t m) G - t H),   dt = sum e m (m G - H),    G = A^T (dy / A e),   H = A^T (dy y / A e)

which is exact as long as no e_s underflows: it is used while t m spreads over less than `_SPREAD`. Beyond that every
tile subtracts its own maximum, edge by edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.blocks.layers import floating
from asmil.models.blocks.randomness import Dropout

Adjacency = Mapping[str, Tensor]

_SPREAD = 40.0
_EDGE_CHANNELS = 32
_MESSAGE_FLOOR = 1e-7


def adjacency(rows: Tensor, columns: Tensor, n_tiles: int, values: Tensor | None = None) -> dict[str, Tensor]:
    """The sparse matrix with `values` (by default 1) at (rows, columns), as tensors that a bag can carry.

    row_starts, columns, values: by rows; column_starts, rows, column_values: the transpose, likewise
    """
    matrix = {}
    for line, across, names in (
        (rows, columns, ("row_starts", "columns", "values")),
        (columns, rows, ("column_starts", "rows", "column_values")),
    ):
        order = torch.argsort(line, stable=True)
        counts = torch.bincount(line, minlength=n_tiles)
        matrix[names[0]] = counts.cumsum(0) - counts
        matrix[names[1]] = across[order]
        if values is not None:
            matrix[names[2]] = values[order]
    return matrix


def _times(matrix: Adjacency, x: Tensor) -> Tensor:
    """A x, for x N x d."""
    values = matrix.get("values")
    return _gathered_sum(x, matrix["columns"], matrix["row_starts"], values)


def _transposed_times(matrix: Adjacency, x: Tensor) -> Tensor:
    """A^T x, for x N x d."""
    return _gathered_sum(x, matrix["rows"], matrix["column_starts"], matrix.get("column_values"))


def _gathered_sum(x: Tensor, indices: Tensor, starts: Tensor, values: Tensor | None) -> Tensor:
    weights = None if values is None else values.to(x.dtype)
    return functional.embedding_bag(indices, x, starts, mode="sum", per_sample_weights=weights)


def weighted_sum(matrix: Adjacency, x: Tensor) -> Tensor:
    """A x, N x d, in float32 at least; with its gradient."""
    return _WeightedSum.apply(floating(x), matrix)  # type: ignore[no-untyped-call]


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Adjacency) -> Tensor:
        ctx.matrix = matrix
        return _times(matrix, x)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return _transposed_times(ctx.matrix, upstream[0].contiguous()), None


def softmax_sum(matrix: Adjacency, messages: Tensor, t: Tensor) -> Tensor:
    """Softmax aggregation (see the module's text): messages N x d, t of shape (1,) -> N x d, in float32 at least.

    A tile that nothing reaches gets 0.
    """
    messages, t = floating(messages), floating(t)
    lowest, highest = torch.aminmax(messages.detach())
    if bool((highest - lowest) * t.detach().abs() < _SPREAD):
        return _SoftmaxSum.apply(messages, t, matrix)  # type: ignore[no-untyped-call]
    return _softmax_sum_by_edges(matrix, messages, t)


class _SoftmaxSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, messages: Tensor, t: Tensor, matrix: Adjacency) -> Tensor:
        scaled = messages * t
        exponentials = (scaled - scaled.max()).exp()
        sums = _times(matrix, torch.cat([exponentials * messages, exponentials], dim=1))
        weighted, totals = sums.chunk(2, dim=1)
        # A tile that nothing reaches has 0 / 1.
        totals = totals.masked_fill(totals == 0, 1)
        mean = weighted / totals
        ctx.save_for_backward(messages, t, exponentials, totals, mean)
        ctx.matrix = matrix
        return mean

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        messages, t, exponentials, totals, mean = ctx.saved_tensors
        share = upstream[0] / totals
        back = _transposed_times(ctx.matrix, torch.cat([share, share * mean], dim=1))
        plain, centered = back.chunk(2, dim=1)
        d_t = (exponentials * messages * (messages * plain - centered)).sum().reshape(t.shape)
        return exponentials * ((1 + t * messages) * plain - t * centered), d_t, None


def _softmax_sum_by_edges(matrix: Adjacency, messages: Tensor, t: Tensor) -> Tensor:
    """`softmax_sum` with the maximum of every tile subtracted, some channels at a time."""
    starts, sources = matrix["row_starts"], matrix["columns"]
    ends = torch.cat([starts[1:], starts.new_tensor([len(sources)])])
    targets = torch.arange(len(starts), device=starts.device).repeat_interleave(ends - starts)
    edges = torch.arange(len(sources), device=starts.device)
    aggregated = []
    for part in messages.split(_EDGE_CHANNELS, dim=1):
        part = part.contiguous()
        with torch.no_grad():
            highest = functional.embedding_bag(sources, part * t, starts, mode="max")
        sent = part[sources]
        weights = (sent * t - highest[targets]).exp()
        totals = functional.embedding_bag(edges, weights, starts, mode="sum")
        weighted = functional.embedding_bag(edges, weights * sent, starts, mode="sum")
        aggregated.append(weighted / totals.masked_fill(totals == 0, 1))
    return torch.cat(aggregated, dim=1)


class GENConv(nn.Module):
    """Graph convolution with softmax aggregation: N x d -> N x d.

        out_i = W_2 ReLU(LayerNorm(W_1 (x_i + aggregate_i))),   messages ReLU(x_s) + 1e-7

    W_1 widens to 2 d. bias: of W_1 and W_2 (old releases of torch_geometric have it)
    """

    def __init__(self, width: int, bias: bool = False) -> None:
        super().__init__()
        self.t = nn.Parameter(torch.ones(1))
        self.widen = nn.Linear(width, 2 * width, bias=bias)
        self.norm = nn.LayerNorm(2 * width)
        self.narrow = nn.Linear(2 * width, width, bias=bias)

    def forward(self, x: Tensor, matrix: Adjacency) -> Tensor:
        aggregate = softmax_sum(matrix, functional.relu(x) + _MESSAGE_FLOOR, self.t)
        hidden = self.norm(self.widen(aggregate.to(x.dtype) + x))
        return self.narrow(functional.relu(hidden))


class ResidualGENConv(nn.Module):
    """The "res" block of DeepGCN: Dropout(x + ReLU(LayerNorm(GENConv(x))))."""

    def __init__(self, width: int, bias: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        self.conv = GENConv(width, bias)
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, matrix: Adjacency) -> Tensor:
        return self.dropout(x + functional.relu(self.norm(self.conv(x, matrix))))
