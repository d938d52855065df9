"""The selective scan of `selective_scan.py` along a sequence, in kernels for a GPU: the same numbers, fewer passes.

Chunks of tiles are scanned at the same time, with one short pass from chunk to chunk between them. With D_t the sum of
dt from the start of a chunk to tile t, a chunk of the length L = D_last turns the state s before it into

    exp(L A) s + sum_t exp((L - D_t) A) dt_t u_t B_t

and the gradient g of the state after it into exp(L A) g + sum_t exp(D_t A) C_t dy_t for the state before it. A program
holds the states of one chunk and channel at a time, in registers.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asmil.models.blocks.layers import many_on_gpu

HAS_TRITON = importlib.util.find_spec("triton") is not None
CHUNK = 64
CHANNELS = 8
"""Of a program."""
CARRIED = 256
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""dt and u by channel (E x N), A, B and C, in one piece each."""


def has_kernels(dt: Tensor, *others: Tensor) -> bool:
    """Whether the kernels apply to these tensors, whose rows are tiles."""
    return HAS_TRITON and many_on_gpu(dt) and all(part.dtype == torch.float32 for part in (dt, *others))


def scan(dt: Tensor, u: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """y of a sequence, N x E, with its gradient: dt and u N x E, A E x S, B and C N x S."""
    return _Scan.apply(dt, u, a, b, c)  # type: ignore[no-untyped-call]


@torch.no_grad()
def scan_from(dt: Tensor, u: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """`scan` from a state (E x S), and the state after it."""
    y, starts = _scanned(_arranged(dt, u, a, b, c), state.contiguous())
    return y.t(), starts[-1]


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dt: Tensor, u: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        inputs = _arranged(dt, u, a, b, c)
        y, starts = _scanned(inputs, torch.zeros_like(inputs[2]))
        ctx.save_for_backward(*inputs, starts)
        return y.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        from asmil.models.blocks.scan_kernels import scan_backward

        dt, u, a, b, c, starts = ctx.saved_tensors
        d_y = upstream[0].t().contiguous()
        after = _carried(dt, d_y, a, c, torch.zeros_like(a), is_back=True)
        d_dt, d_u, d_a = torch.empty_like(dt), torch.empty_like(u), torch.empty_like(starts[:-1])
        grid = _grid(dt)
        d_b, d_c = (b.new_empty(grid[1], *b.shape) for _ in range(2))
        scan_backward[grid](
            *(dt, u, a, b, c, starts, after, d_y, d_dt, d_u, d_a, d_b, d_c),
            *(dt.shape[1], *a.shape, CHANNELS, CHUNK, _states_of(a)),
        )
        return d_dt.t(), d_u.t(), d_a.sum(dim=0), d_b.sum(dim=0), d_c.sum(dim=0)


def _scanned(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """y (E x N), and the states before every chunk and after the last ((K + 1) x E x S)."""
    from asmil.models.blocks.scan_kernels import scan_forward

    dt, u, a, b, c = inputs
    starts = _carried(dt, u, a, b, state, is_back=False)
    y = torch.empty_like(dt)
    scan_forward[_grid(dt)](dt, u, a, b, c, starts, y, dt.shape[1], *a.shape, CHANNELS, CHUNK, _states_of(a))
    return y, starts


def _carried(dt: Tensor, u: Tensor, a: Tensor, b: Tensor, start: Tensor, is_back: bool) -> Tensor:
    """What `carry` writes, (K + 1) x E x S."""
    from asmil.models.blocks.scan_kernels import carry, chunk_sums

    grid = _grid(dt)
    lengths, lasts = dt.new_empty(grid[0], len(dt)), dt.new_empty(grid[0], *a.shape)
    chunk_sums[grid](dt, u, a, b, lengths, lasts, dt.shape[1], *a.shape, CHANNELS, is_back, CHUNK, _states_of(a))
    starts = dt.new_empty(grid[0] + 1, *a.shape)
    carry[(-(-a.numel() // CARRIED),)](lengths, lasts, a, start, starts, grid[0], *a.shape, is_back, CARRIED)
    return starts


def _grid(dt: Tensor) -> tuple[int, int]:
    """Chunks, and groups of channels."""
    return -(-dt.shape[1] // CHUNK), -(-len(dt) // CHANNELS)


def _states_of(a: Tensor) -> int:
    return 1 << (a.shape[1] - 1).bit_length()


def _arranged(dt: Tensor, u: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Inputs:
    return dt.t().contiguous(), u.t().contiguous(), a.contiguous(), b.contiguous(), c.contiguous()
