"""The kernels of `tile_passes.py`, in Triton; computed in float32, stored in the type of the tiles.

Drawing random numbers takes longer than everything else. A draw gives four of them, so a program covers four (one
number per value) or two blocks (two numbers per value) of neighboring values with the draws of one block.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROUNDS = tl.constexpr(7)
"""Rounds of Philox: the smallest number that passes all statistical tests."""


@triton.jit
def _factors(drawn, p):
    """Factors of dropout: 0 with probability p, else 1 / (1 - p)."""
    return tl.where(drawn >= p, 1 / (1 - p), 0.0)


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _gate_block(PRODUCTS, OUT, position, size, width, of_value, of_gate):
    inside = position < size
    at = PRODUCTS + position // width * 2 * width + position % width
    value = _tanh(tl.load(at, mask=inside, other=0.0).to(tl.float32))
    gate = tl.sigmoid(tl.load(at + width, mask=inside, other=0.0).to(tl.float32))
    tl.store(OUT + position, (value * of_value * gate * of_gate).to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def gate_forward(PRODUCTS, OUT, SEED, size, width, p, DROPS: tl.constexpr, BLOCK: tl.constexpr):
    """OUT (N x L) = tanh(PRODUCTS[:, :L]) * sigmoid(PRODUCTS[:, L:]), with dropout if DROPS. Grid: pairs of blocks."""
    drawn = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position = tl.program_id(0) * 2 * BLOCK + tl.arange(0, BLOCK)
    if DROPS:
        a, b, c, d = tl.rand4x(tl.load(SEED), drawn, ROUNDS)
        _gate_block(PRODUCTS, OUT, position, size, width, _factors(a, p), _factors(b, p))
        _gate_block(PRODUCTS, OUT, position + BLOCK, size, width, _factors(c, p), _factors(d, p))
    else:
        _gate_block(PRODUCTS, OUT, position, size, width, 1.0, 1.0)
        _gate_block(PRODUCTS, OUT, position + BLOCK, size, width, 1.0, 1.0)


@triton.jit
def _gate_gradient(PRODUCTS, GRADIENT, OUT, position, size, width, factor):
    inside = position < size
    offset = position // width * 2 * width + position % width
    value = _tanh(tl.load(PRODUCTS + offset, mask=inside, other=0.0).to(tl.float32))
    gate = tl.sigmoid(tl.load(PRODUCTS + offset + width, mask=inside, other=0.0).to(tl.float32))
    gradient = tl.load(GRADIENT + position, mask=inside, other=0.0).to(tl.float32) * factor
    element = OUT.dtype.element_ty
    tl.store(OUT + offset, (gradient * gate * (1 - value * value)).to(element), mask=inside)
    tl.store(OUT + offset + width, (gradient * value * gate * (1 - gate)).to(element), mask=inside)


@triton.jit
def gate_backward(PRODUCTS, GRADIENT, OUT, SEED, size, width, p, DROPS: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient of PRODUCTS from that of the gated values. Grid: pairs of blocks."""
    drawn = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position = tl.program_id(0) * 2 * BLOCK + tl.arange(0, BLOCK)
    if DROPS:
        a, b, c, d = tl.rand4x(tl.load(SEED), drawn, ROUNDS)
        _gate_gradient(PRODUCTS, GRADIENT, OUT, position, size, width, _factors(a, p) * _factors(b, p))
        _gate_gradient(PRODUCTS, GRADIENT, OUT, position + BLOCK, size, width, _factors(c, p) * _factors(d, p))
    else:
        _gate_gradient(PRODUCTS, GRADIENT, OUT, position, size, width, 1.0)
        _gate_gradient(PRODUCTS, GRADIENT, OUT, position + BLOCK, size, width, 1.0)


@triton.jit
def _relu_block(TILES, OUT, position, size, factor):
    inside = position < size
    value = tl.load(TILES + position, mask=inside, other=0.0).to(tl.float32)
    tl.store(OUT + position, (tl.maximum(value, 0.0) * factor).to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def relu_dropout_forward(TILES, OUT, SEED, size, p, BLOCK: tl.constexpr):
    """OUT = TILES where they are positive and kept, divided by 1 - p; else 0. Grid: fours of blocks."""
    drawn = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position = tl.program_id(0) * 4 * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = tl.rand4x(tl.load(SEED), drawn, ROUNDS)
    _relu_block(TILES, OUT, position, size, _factors(a, p))
    _relu_block(TILES, OUT, position + BLOCK, size, _factors(b, p))
    _relu_block(TILES, OUT, position + 2 * BLOCK, size, _factors(c, p))
    _relu_block(TILES, OUT, position + 3 * BLOCK, size, _factors(d, p))


@triton.jit
def relu_dropout_backward(KEPT, GRADIENT, OUT, size, p, BLOCK: tl.constexpr):
    """OUT = GRADIENT / (1 - p) where KEPT, the result of the forward pass, is positive; else 0. Grid: blocks."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = position < size
    kept = tl.load(KEPT + position, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(GRADIENT + position, mask=inside, other=0.0).to(tl.float32)
    out = tl.where(kept > 0, gradient / (1 - p), 0.0)
    tl.store(OUT + position, out.to(OUT.dtype.element_ty), mask=inside)
