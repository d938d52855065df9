"""The selective scan of Mamba over tiles, along a sequence or on a grid, in plain PyTorch.

On a GPU with Triton, `kernel_scan.py` computes a sequence instead.

For E channels with S states each, decays a_t = exp(dt_t A) (A < 0) and inputs b_t = dt_t u_t B_t, both E x S:

    sequence   s_t  = a_t s_{t-1} + b_t
    grid       v_ij = a_ij v_{i,j-1} + b_ij       along every row, from the left
               s_ij = a_ij s_{i-1,j} + v_ij       down every column, from the top
    y_t = s_t C_t                                 E

Only products with decays of at most 1 occur and no division, so nothing overflows. N x E x S states are never stored:
chunks of tiles pass on their last state, and the backward pass computes the states of a chunk again from the state at
its start. Within a chunk of a sequence, runs of tiles are scanned side by side from zero; the state before a run,
times the decays since, is added afterwards. A chunk of T tiles thus takes about 2 sqrt(T) steps, each over all
channels, states and runs. On a grid, a chunk is a band of rows.

Gradients, with g_t that of s_t: g_t = C_t dy_t + a_{t+1} g_{t+1} is a scan in the other direction, and what a decay
receives, a_t g_t s_{t-1}, is g_t (s_t - b_t).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from asmil.models.blocks import kernel_scan
from asmil.models.blocks.layers import floating

CHUNK_VALUES = {"cpu": 1 << 20, "cuda": 1 << 26}
"""How many states of a sequence are computed at once: what fits into the cache of a core, and what fills a GPU."""
BAND_VALUES = {"cpu": 1 << 23, "cuda": 1 << 26}
"""The same for a grid, whose bands are rows of any length."""


def selective_scan(dt: Tensor, u: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """y of a sequence, N x E, in float32 at least: dt and u N x E, A E x S, B and C N x S."""
    inputs = [floating(part) for part in (dt, u, a, b, c)]
    if kernel_scan.has_kernels(*inputs):
        return kernel_scan.scan(*inputs)
    y, _ = _Scan.apply(*(part.unsqueeze(0) for part in inputs), _tiles_per_chunk(dt, a))  # type: ignore[no-untyped-call]
    scanned: Tensor = y
    return scanned.squeeze(0)


@torch.no_grad()
def continued_scan(dt: Tensor, u: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """`selective_scan` that starts from a state (E x S), and the state after it."""
    dt, u, a, b, c, state = (floating(part) for part in (dt, u, a, b, c, state))
    if kernel_scan.has_kernels(dt, u, a, b, c, state):
        return kernel_scan.scan_from(dt, u, a, b, c, state)
    chunk = _tiles_per_chunk(dt, a)
    dt, u, a, b, c, state = (part.unsqueeze(0) for part in (dt, u, a, b, c, state))
    y, starts = _scan_chunks(dt, u, a, b, c, chunk, state)
    return y.squeeze(0), starts[0, -1]


def grid_scan(dt: Tensor, u: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """y of a grid of R x Q cells, R x Q x E, in float32 at least: dt and u R x Q x E, A E x S, B and C R x Q x S."""
    values = BAND_VALUES.get(dt.device.type, BAND_VALUES["cuda"])
    band = max(1, values // (dt.shape[1] * a.numel()))
    scanned: Tensor = _GridScan.apply(*map(floating, (dt, u, a, b, c)), band)  # type: ignore[no-untyped-call]
    return scanned


def _tiles_per_chunk(dt: Tensor, a: Tensor) -> int:
    values = CHUNK_VALUES.get(dt.device.type, CHUNK_VALUES["cuda"])
    return max(16, min(dt.shape[0], values // a.numel()))


def _scan_chunks(
    dt: Tensor, u: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk: int, state: Tensor
) -> tuple[Tensor, Tensor]:
    """y (G x N x E), and the states before every chunk and after the last one (G x K x E x S); G sequences."""
    ys, starts = [], [state]
    parts = zip(*(rows.split(chunk, dim=1) for rows in (dt, dt * u, b, c)), strict=True)
    for some_dt, drive, some_b, some_c in parts:
        states = _scan_runs(some_dt, _outer(drive, some_b), a, starts[-1])
        starts.append(states[:, -1].clone())
        ys.append((states @ some_c.unsqueeze(3)).squeeze(3))
    return torch.cat(ys, dim=1), torch.stack(starts, dim=1)


def _scan_runs(dt: Tensor, inputs: Tensor, a: Tensor, state: Tensor, backward: bool = False) -> Tensor:
    """The states of a chunk: dt G x n x E, inputs G x n x E x S, A G x E x S, state before the first G x E x S.

    backward: the last tile is the first
    """
    n = dt.shape[1]
    length = math.isqrt(n - 1) + 1
    rows = -(-n // length)
    spare = rows * length - n
    # A tile with dt = 0 and no input passes its state on.
    ends = (spare, 0) if backward else (0, spare)
    decays = (_outer_rows(functional.pad(dt, (0, 0, *ends)), a)).exp_().unflatten(1, (rows, length))
    if spare:
        inputs = functional.pad(inputs, (0, 0, 0, 0, *ends))
    states = inputs.unflatten(1, (rows, length))
    order = range(length - 1, -1, -1) if backward else range(length)
    for before, here in pairwise(order):
        states[:, :, here].addcmul_(decays[:, :, here], states[:, :, before])
        decays[:, :, here].mul_(decays[:, :, before])  # all since the start of the run
    starts = torch.empty_like(states[:, :, 0])
    for row in range(rows - 1, -1, -1) if backward else range(rows):
        starts[:, row] = state
        state = torch.addcmul(states[:, row, order[-1]], decays[:, row, order[-1]], state)
    states = states.addcmul_(decays, starts.unsqueeze(2)).flatten(1, 2)
    return states[:, spare:] if backward else states[:, :n]


def _outer(rows: Tensor, per_state: Tensor) -> Tensor:
    """... x E, ... x S -> ... x E x S."""
    return rows.unsqueeze(-1) * per_state.unsqueeze(-2)


def _outer_rows(dt: Tensor, a: Tensor) -> Tensor:
    """G x n x E, G x E x S -> G x n x E x S."""
    return dt.unsqueeze(3) * a.unsqueeze(1)


def _shifted(dt: Tensor) -> Tensor:
    """The dt of the next tile (G x n x E): its decay leads back to a tile. The last has none."""
    return functional.pad(dt[:, 1:], (0, 0, 0, 1))


def _input_gradients(
    d_inputs: Tensor, d_exponents: Tensor, dt: Tensor, u: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of dt, u, A, B from those of the inputs b_t and of the exponents dt_t A, both G x n x E x S."""
    d_a = torch.einsum("gnes,gne->ges", d_exponents, dt)
    d_drive = (d_inputs @ b.unsqueeze(3)).squeeze(3)
    d_b = ((dt * u).unsqueeze(2) @ d_inputs).squeeze(2)
    d_dt = torch.einsum("gnes,ges->gne", d_exponents, a).addcmul_(d_drive, u)
    return d_dt, d_drive * dt, d_a, d_b


def _merged(batch: int, in_dims: Sequence[int | None], tensors: Sequence[Any]) -> list[Any]:
    """The arguments of a batch of calls as those of one call: the batch becomes part of the first axis, G."""
    merged = []
    for tensor, dim in zip(tensors, in_dims, strict=True):
        if isinstance(tensor, Tensor):
            moved = tensor.expand(batch, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            tensor = moved.flatten(0, 1)
        merged.append(tensor)
    return merged


class _Scan(torch.autograd.Function):
    """y and the states at the borders of chunks, of G sequences: arguments as `_scan_chunks` has them."""

    @staticmethod
    def forward(dt: Tensor, u: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
        with torch.autocast(dt.device.type, enabled=False):
            return _scan_chunks(dt, u, a, b, c, chunk, torch.zeros_like(a))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.chunk = inputs
        ctx.save_for_backward(*tensors, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        dt, u, a, b, c, starts = ctx.saved_tensors
        gradients: tuple[Tensor, ...] = _ScanBackward.apply(  # type: ignore[no-untyped-call]
            dt, u, a, b, c, starts, upstream[0], ctx.chunk
        )
        return *gradients, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        outputs = _Scan.apply(*_merged(info.batch_size, in_dims, inputs))  # type: ignore[no-untyped-call]
        return tuple(output.unflatten(0, (info.batch_size, -1)) for output in outputs), (0, 0)


class _ScanBackward(torch.autograd.Function):
    """The gradients of dt, u, A, B, C, of G sequences."""

    @staticmethod
    def forward(
        dt: Tensor, u: Tensor, a: Tensor, b: Tensor, c: Tensor, starts: Tensor, d_y: Tensor, chunk: int
    ) -> tuple[Tensor, ...]:
        d_dt, d_u, d_b, d_c = (torch.empty_like(part) for part in (dt, u, b, c))
        d_a, carried = torch.zeros_like(a), torch.zeros_like(a)
        with torch.autocast(dt.device.type, enabled=False):
            for number in reversed(range(starts.shape[1] - 1)):
                here = slice(number * chunk, (number + 1) * chunk)
                some_dt, some_u, some_b, some_c = dt[:, here], u[:, here], b[:, here], c[:, here]
                gradient = d_y[:, here]
                inputs = _outer(some_dt * some_u, some_b)
                states = _scan_runs(some_dt, inputs.clone(), a, starts[:, number])
                d_c[:, here] = (gradient.unsqueeze(2) @ states).squeeze(2)
                d_states = _scan_runs(_shifted(some_dt), _outer(gradient, some_c), a, carried, backward=True)
                carried = (some_dt[:, 0].unsqueeze(2) * a).exp_().mul_(d_states[:, 0])
                d_exponents = states.sub_(inputs).mul_(d_states)
                d_dt[:, here], d_u[:, here], more, d_b[:, here] = _input_gradients(
                    d_states, d_exponents, some_dt, some_u, a, some_b
                )
                d_a += more
        return d_dt, d_u, d_a, d_b, d_c

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> None:
        raise NotImplementedError("the selective scan has no second derivative")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        outputs = _ScanBackward.apply(*_merged(info.batch_size, in_dims, inputs))  # type: ignore[no-untyped-call]
        return tuple(output.unflatten(0, (info.batch_size, -1)) for output in outputs), (0,) * len(outputs)


class _GridScan(torch.autograd.Function):
    """y of a grid, in bands of rows: arguments as `grid_scan` has them."""

    @staticmethod
    def forward(ctx: Any, dt: Tensor, u: Tensor, a: Tensor, b: Tensor, c: Tensor, band: int) -> Tensor:
        y = torch.empty_like(dt)
        above = dt.new_zeros(dt.shape[1], *a.shape)
        starts = []
        with torch.autocast(dt.device.type, enabled=False):
            for first in range(0, dt.shape[0], band):
                here = slice(first, first + band)
                if any(ctx.needs_input_grad):
                    starts.append(above)
                decays = (dt[here].unsqueeze(3) * a).exp_()
                states = _outer(dt[here] * u[here], b[here])
                _along_rows(states, decays)
                _down_columns(states, decays, above)
                above = states[-1].clone()
                y[here] = (states @ c[here].unsqueeze(3)).squeeze(3)
        ctx.save_for_backward(dt, u, a, b, c, *starts)
        ctx.band = band
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        dt, u, a, b, c, *starts = ctx.saved_tensors
        band, (d_y,) = ctx.band, upstream
        d_dt, d_u, d_b, d_c = (torch.empty_like(part) for part in (dt, u, b, c))
        d_a, below = torch.zeros_like(a), torch.zeros_like(starts[0])
        with torch.autocast(dt.device.type, enabled=False):
            for number in reversed(range(len(starts))):
                here = slice(number * band, (number + 1) * band)
                some_dt, some_u, some_b = dt[here], u[here], b[here]
                decays = (some_dt.unsqueeze(3) * a).exp_()
                inputs = _outer(some_dt * some_u, some_b)
                along = inputs.clone()
                _along_rows(along, decays)
                states = along.clone()
                _down_columns(states, decays, starts[number])
                d_c[here] = (d_y[here].unsqueeze(2) @ states).squeeze(2)
                d_states = _outer(d_y[here], c[here])
                d_states[-1] += below
                for row in range(len(d_states) - 2, -1, -1):
                    d_states[row].addcmul_(decays[row + 1], d_states[row + 1])
                below = decays[0] * d_states[0]
                d_exponents = states.sub_(along).mul_(d_states)
                d_inputs = d_states
                for column in range(d_inputs.shape[1] - 2, -1, -1):
                    d_inputs[:, column].addcmul_(decays[:, column + 1], d_inputs[:, column + 1])
                d_exponents.addcmul_(along.sub_(inputs), d_inputs)
                shared = a.expand(len(some_dt), -1, -1)
                d_dt[here], d_u[here], more, d_b[here] = _input_gradients(
                    d_inputs, d_exponents, some_dt, some_u, shared, some_b
                )
                d_a += more.sum(dim=0)
        return d_dt, d_u, d_a, d_b, d_c, None


def _along_rows(states: Tensor, decays: Tensor) -> None:
    """Scan every row of a band in place, from the left; both k x Q x E x S."""
    for column in range(1, states.shape[1]):
        states[:, column].addcmul_(decays[:, column], states[:, column - 1])


def _down_columns(states: Tensor, decays: Tensor, above: Tensor) -> None:
    """Scan every column of a band in place, from the states above it (Q x E x S)."""
    for row in range(len(states)):
        states[row].addcmul_(decays[row], above)
        above = states[row]
