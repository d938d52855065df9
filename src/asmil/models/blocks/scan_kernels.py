"""The kernels of `kernel_scan.py`, in Triton; computed in float32.

Sequences are stored by channel: DT, U, DY (E x N), with A (E x S), B and C (N x S). A program computes some channels of
one chunk of tiles, one channel after the other, with all tiles and states of the chunk in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _joined(decay, value, next_decay, next_value):
    """Two stretches of s -> decay s + value, one after the other, as one."""
    return decay * next_decay, next_decay * value + next_value


@triton.jit
def _row(POINTER, channel, tile, inside, N):
    """The values of a channel at some tiles; 0 outside."""
    return tl.load(POINTER + channel * N + tile, mask=inside, other=0.0)


@triton.jit
def chunk_sums(
    DT, U, A, B, LENGTHS, LASTS, N, E, S, GROUP, IS_BACK: tl.constexpr, CHUNK: tl.constexpr, STATES: tl.constexpr
):
    """What a chunk alone adds to the state after it (LASTS, K x E x S), and the sum of its dt (LENGTHS, K x E).

    IS_BACK: what it adds to the gradient of the state before it; U is then dy, and B is C
    Grid: chunks x groups of channels.
    """
    chunk = tl.program_id(0)
    tile, state = chunk * CHUNK + tl.arange(0, CHUNK), tl.arange(0, STATES)
    inside, known = tile < N, state < S
    b = tl.load(B + tile[:, None] * S + state[None, :], mask=inside[:, None] & known[None, :], other=0.0)
    for channel in range(tl.program_id(1) * GROUP, tl.minimum(tl.program_id(1) * GROUP + GROUP, E)):
        dt, u = _row(DT, channel, tile, inside, N), _row(U, channel, tile, inside, N)
        a = tl.load(A + channel * S + state, mask=known, other=0.0)
        since, total = tl.cumsum(dt, 0), tl.sum(dt, 0)
        if IS_BACK:
            weights = tl.exp(since[:, None] * a[None, :]) * u[:, None]
        else:
            weights = tl.exp((total - since)[:, None] * a[None, :]) * (dt * u)[:, None]
        at = chunk * E + channel
        tl.store(LENGTHS + at, total)
        tl.store(LASTS + at * S + state, tl.sum(weights * b, 0), mask=known)


@triton.jit
def carry(LENGTHS, LASTS, A, START, STARTS, K, E, S, IS_BACK: tl.constexpr, BLOCK: tl.constexpr):
    """The state before every chunk (STARTS, (K + 1) x E x S; the last is that after all), from START (E x S).

    IS_BACK: the gradient of the state after every chunk, from that after the last one; entry K is that of START
    Grid: blocks of the E x S states.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < E * S
    a = tl.load(A + at, mask=inside, other=0.0)
    carried = tl.load(START + at, mask=inside, other=0.0)
    for number in range(K):
        chunk = K - 1 - number if IS_BACK else number
        tl.store(STARTS + chunk * E * S + at, carried, mask=inside)
        length = tl.load(LENGTHS + chunk * E + at // S, mask=inside, other=0.0)
        carried = tl.exp(length * a) * carried + tl.load(LASTS + chunk * E * S + at, mask=inside, other=0.0)
    tl.store(STARTS + K * E * S + at, carried, mask=inside)


@triton.jit
def _states(dt, u, a, b, start):
    """The states of a chunk, CHUNK x STATES, and its inputs."""
    inputs = (dt * u)[:, None] * b
    _, alone = tl.associative_scan((tl.exp(dt[:, None] * a[None, :]), inputs), 0, _joined)
    return alone + tl.exp(tl.cumsum(dt, 0)[:, None] * a[None, :]) * start[None, :], inputs


@triton.jit
def scan_forward(DT, U, A, B, C, STARTS, Y, N, E, S, GROUP, CHUNK: tl.constexpr, STATES: tl.constexpr):
    """Y (E x N) from the states before every chunk. Grid: chunks x groups of channels."""
    chunk = tl.program_id(0)
    tile, state = chunk * CHUNK + tl.arange(0, CHUNK), tl.arange(0, STATES)
    inside, known = tile < N, state < S
    place, both = tile[:, None] * S + state[None, :], inside[:, None] & known[None, :]
    b, c = tl.load(B + place, mask=both, other=0.0), tl.load(C + place, mask=both, other=0.0)
    for channel in range(tl.program_id(1) * GROUP, tl.minimum(tl.program_id(1) * GROUP + GROUP, E)):
        dt, u = _row(DT, channel, tile, inside, N), _row(U, channel, tile, inside, N)
        a = tl.load(A + channel * S + state, mask=known, other=0.0)
        start = tl.load(STARTS + (chunk * E + channel) * S + state, mask=known, other=0.0)
        states, _ = _states(dt, u, a, b, start)
        tl.store(Y + channel * N + tile, tl.sum(states * c, 1), mask=inside)


@triton.jit
def scan_backward(
    DT,
    U,
    A,
    B,
    C,
    STARTS,
    AFTER,
    DY,
    D_DT,
    D_U,
    D_A,
    D_B,
    D_C,
    N,
    E,
    S,
    GROUP,
    CHUNK: tl.constexpr,
    STATES: tl.constexpr,
):
    """D_DT, D_U (E x N); of every chunk D_A (K x E x S); of every group of channels D_B and D_C (G x N x S).

    AFTER: the gradient of the state after every chunk. Grid: chunks x groups of channels.
    """
    chunk, group = tl.program_id(0), tl.program_id(1)
    tile, state = chunk * CHUNK + tl.arange(0, CHUNK), tl.arange(0, STATES)
    inside, known = tile < N, state < S
    place, both = tile[:, None] * S + state[None, :], inside[:, None] & known[None, :]
    b, c = tl.load(B + place, mask=both, other=0.0), tl.load(C + place, mask=both, other=0.0)
    d_b, d_c = tl.zeros((CHUNK, STATES), tl.float32), tl.zeros((CHUNK, STATES), tl.float32)
    has_next = (tl.arange(0, CHUNK) < CHUNK - 1) & (tile + 1 < N)
    for channel in range(group * GROUP, tl.minimum(group * GROUP + GROUP, E)):
        dt, u = _row(DT, channel, tile, inside, N), _row(U, channel, tile, inside, N)
        dy, next_dt = _row(DY, channel, tile, inside, N), _row(DT, channel, tile + 1, has_next, N)
        at = (chunk * E + channel) * S + state
        a = tl.load(A + channel * S + state, mask=known, other=0.0)
        states, inputs = _states(dt, u, a, b, tl.load(STARTS + at, mask=known, other=0.0))
        _, alone = tl.associative_scan(
            (tl.exp(next_dt[:, None] * a[None, :]), dy[:, None] * c), 0, _joined, reverse=True
        )
        until_end = tl.sum(dt, 0) - tl.cumsum(dt, 0)
        after = tl.load(AFTER + at, mask=known, other=0.0)
        d_states = alone + tl.exp(until_end[:, None] * a[None, :]) * after[None, :]
        d_exponents = (states - inputs) * d_states
        d_drive = tl.sum(d_states * b, 1)
        tl.store(D_A + at, tl.sum(d_exponents * dt[:, None], 0), mask=known)
        tl.store(D_DT + channel * N + tile, tl.sum(d_exponents * a[None, :], 1) + d_drive * u, mask=inside)
        tl.store(D_U + channel * N + tile, d_drive * dt, mask=inside)
        d_b += d_states * (dt * u)[:, None]
        d_c += states * dy[:, None]
    tl.store(D_B + group * N * S + place, d_b, mask=both)
    tl.store(D_C + group * N * S + place, d_c, mask=both)
