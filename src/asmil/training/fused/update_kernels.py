"""Kernels around the gradients of a step: selecting the next bag, and Adam with the EMA update of the anchor."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def next_bag(step, ORDER, TARGETS, KEYS, BAG, TARGET, SEED, n_order, p, is_p):
    """The bag, target and random key of every member's step: ORDER is P x n_order, TARGETS one per bag."""
    bag = tl.load(ORDER + p * n_order + step % n_order, mask=is_p, other=0)
    tl.store(BAG + p, bag, mask=is_p)
    tl.store(TARGET + p, tl.load(TARGETS + bag, mask=is_p, other=0), mask=is_p)
    key = tl.load(KEYS + p, mask=is_p, other=0)
    tl.store(SEED + p, (key << 32) | step.to(tl.int64), mask=is_p)


@triton.jit
def begin_kernel(
    STEP, ORDER, TARGETS, KEYS, BAG, TARGET, SEED, n_order, P, PP: tl.constexpr,
):  # fmt: skip
    """Prepare the first step of an epoch. Grid: 1."""
    p = tl.arange(0, PP)
    is_p = p < P
    step = tl.load(STEP + p, mask=is_p, other=0)
    next_bag(step, ORDER, TARGETS, KEYS, BAG, TARGET, SEED, n_order, p, is_p)


@triton.jit
def end_kernel(
    STEP, ORDER, TARGETS, KEYS, BAG, TARGET, SEED, LOSSES, EPOCH_LOSSES, n_order, P, PP: tl.constexpr,
):  # fmt: skip
    """Store the LOSSES (P x 2) of the step in EPOCH_LOSSES (P x n_order x 2), count it, and prepare the next step.

    Grid: 1.
    """
    p = tl.arange(0, PP)
    is_p = p < P
    step = tl.load(STEP + p, mask=is_p, other=0)
    noted = EPOCH_LOSSES + (p * n_order + step % n_order) * 2
    for part in range(2):
        tl.store(noted + part, tl.load(LOSSES + p * 2 + part, mask=is_p, other=0.0), mask=is_p)
    tl.store(STEP + p, step + 1, mask=is_p)
    next_bag(step + 1, ORDER, TARGETS, KEYS, BAG, TARGET, SEED, n_order, p, is_p)


@triton.jit
def adam_kernel(
    PARAMETERS, MEAN, SQUARE, ANCHORS, STEMS, GRADIENTS, size, anchor_size, gradients_size, SOURCE, PARTS, STRIDE,
    SCHEDULE, STEP, stem, decay, beta1, beta2, anchor_share,
    STEM: tl.constexpr, BLOCK: tl.constexpr, ANCHOR: tl.constexpr,
):  # fmt: skip
    """Adam, with the decay added to the gradient, and the EMA update of the anchor.

    The gradient of a block is the sum of PARTS pieces, STRIDE apart, starting at SOURCE (one number of each per block).
    SCHEDULE (steps x 2): lr / (1 - beta1^n) and sqrt(1 - beta2^n) of step n. STEMS (P x 2 x I x D) gets a copy of the
    stem (STEM values) in half precision. Grid: blocks, P.
    """
    block, member = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    at = block * BLOCK + lane
    here = member.to(tl.int64) * size + at
    source, stride = tl.load(SOURCE + block), tl.load(STRIDE + block)
    gradients = GRADIENTS + member.to(tl.int64) * gradients_size + source + lane
    gradient = tl.zeros((BLOCK,), tl.float32)
    for part in range(tl.load(PARTS + block)):
        gradient += tl.load(gradients + part * stride)
    x = tl.load(PARAMETERS + here)
    gradient += decay * x
    mean, square = tl.load(MEAN + here), tl.load(SQUARE + here)
    mean += (1.0 - beta1) * (gradient - mean)
    square = beta2 * square + (1.0 - beta2) * gradient * gradient
    tl.store(MEAN + here, mean)
    tl.store(SQUARE + here, square)
    step = tl.load(STEP + member)
    x -= tl.load(SCHEDULE + 2 * step) * mean / (tl.sqrt(square) / tl.load(SCHEDULE + 2 * step + 1) + 1e-8)
    tl.store(PARAMETERS + here, x)
    of_stem = at - stem
    in_stem = (of_stem >= 0) & (of_stem < STEM)
    stems = STEMS + member.to(tl.int64) * 2 * STEM + of_stem
    if block * BLOCK < anchor_size:
        tl.store(stems, x.to(STEMS.dtype.element_ty), mask=in_stem)
        if ANCHOR:
            address = ANCHORS + member.to(tl.int64) * anchor_size + at
            y = tl.load(address)
            y += anchor_share * (x - y)
            tl.store(address, y)
            tl.store(stems + STEM, y.to(STEMS.dtype.element_ty), mask=in_stem)
