"""Kernels around the gradients of a recorded step: which bags are due, their features, random numbers and Adam.

A step has n slots. TRAINING (n) is the training of each slot, TAKES (n) whether it takes the step: a slot that does not
is computed in vain, and nothing of its training is changed.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def begin_kernel(
    TURN, SCHEDULE, POSITIONS, STEPS, KEYS, ORDER, LABELS, FACTORS, width, longest,
    TRAINING, TAKES, BAG, TARGET, FACTOR, SEED, n, SLOTS: tl.constexpr,
):  # fmt: skip
    """Look up the step of every slot.

    SCHEDULE (turns x width): the training of each slot, or -1 - training if it does not take the step. ORDER, LABELS
    and FACTORS (R x longest): bag, class and factor of the learning rate at each position of an epoch. Grid: 1.
    """
    slot = tl.arange(0, SLOTS)
    here = slot < n
    due = tl.load(SCHEDULE + tl.load(TURN) * width + slot, mask=here, other=-1).to(tl.int64)
    takes = due >= 0
    training = tl.where(takes, due, -1 - due)
    position = tl.minimum(tl.load(POSITIONS + training, mask=here, other=0), longest - 1)
    at = training * longest + position
    tl.store(TRAINING + slot, training, mask=here)
    tl.store(TAKES + slot, takes.to(tl.int8), mask=here)
    tl.store(BAG + slot, tl.load(ORDER + at, mask=here, other=0), mask=here)
    tl.store(TARGET + slot, tl.load(LABELS + at, mask=here, other=0), mask=here)
    tl.store(FACTOR + slot, tl.load(FACTORS + at, mask=here, other=0.0), mask=here)
    seed = (tl.load(KEYS + training, mask=here, other=0) << 32) | tl.load(STEPS + training, mask=here, other=0)
    tl.store(SEED + slot, seed, mask=here)


@triton.jit
def gather_kernel(FEATURES, OFFSETS, LENGTHS, BAG, OUT, MASK, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The features of the bag of every slot, n x rows x width, and which rows are tiles; others are 0.

    Grid: n, blocks of rows.
    """
    slot = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    bag = tl.load(BAG + slot)
    first, length = tl.load(OFFSETS + bag), tl.load(LENGTHS + bag)
    is_tile = row < length
    tl.store(MASK + slot * rows + row, is_tile.to(tl.int8), mask=row < rows)
    here = (is_tile & (row < rows))[:, None]
    for start in range(0, width, WIDTH):
        column = start + tl.arange(0, WIDTH)
        inside = (column < width)[None, :]
        tiles = FEATURES + (first + row)[:, None] * width + column[None, :]
        values = tl.load(tiles, mask=here & inside, other=0.0)
        into = OUT + (slot * rows + row)[:, None] * width + column[None, :]
        tl.store(into, values.to(tl.float32), mask=(row < rows)[:, None] & inside)


@triton.jit
def draw_kernel(SEED, X, OUT, use, p, factor, A, B, C, BLOCK: tl.constexpr):
    """Uniform numbers, or if X is given, X with dropout: n x A x B x C. Grid: blocks of four columns, n.

    A number is a function of the slot's seed, the use and its three indices, so it does not depend on padding.
    """
    slot = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    quads = (C + 3) // 4
    quad, b, a = at % quads, (at // quads) % B, at // (quads * B)
    drawn = tl.philox(tl.load(SEED + slot), a, b, quad, tl.zeros_like(at) + use)
    row = ((slot * A + a) * B + b) * C
    for i in tl.static_range(4):
        column = quad * 4 + i
        value = tl.uint_to_uniform_float(drawn[i])
        here = (a < A) & (column < C)
        if X is not None:
            value = tl.where(value >= p, factor, 0.0) * tl.load(X + row + column, mask=here, other=0.0).to(tl.float32)
        tl.store(OUT + row + column, value.to(OUT.dtype.element_ty), mask=here)


@triton.jit
def adam_kernel(
    VALUES, MEAN, SQUARE, GRADIENTS, TRAINING, TAKES, TARGET, FACTOR, REACHED, COUNTS, height, width,
    slot_stride, row_stride, column_stride, RATES, DECAYS, log_beta1, log_beta2, rest1, rest2, eps,
    DECOUPLED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The step of torch's Adam (or AdamW) for a block, R x height x width; its gradient may have any strides.

    REACHED: for each class, whether its bags reach the block. COUNTS (R): steps taken. RATES, DECAYS (R): base learning
    rate and weight decay. rest1, rest2: 1 - beta.
    Grid: blocks, n.
    """
    slot = tl.program_id(1)
    if (tl.load(TAKES + slot) != 0) & (tl.load(REACHED + tl.load(TARGET + slot)) != 0):
        training = tl.load(TRAINING + slot)
        across = tl.cdiv(width, COLUMNS)
        row = (tl.program_id(0) // across * ROWS + tl.arange(0, ROWS))[:, None]
        column = (tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        inside = (row < height) & (column < width)
        here = training * height * width + row * width + column
        gradients = GRADIENTS + slot.to(tl.int64) * slot_stride + row * row_stride + column * column_stride
        gradient = tl.load(gradients, mask=inside).to(tl.float32)
        x = tl.load(VALUES + here, mask=inside)
        mean, square = tl.load(MEAN + here, mask=inside), tl.load(SQUARE + here, mask=inside)
        count = (tl.load(COUNTS + training) + 1).to(tl.float64)
        step_size = tl.load(RATES + training) * tl.load(FACTOR + slot)
        decay = tl.load(DECAYS + training)
        if DECOUPLED:
            x -= step_size * decay * x
        else:
            gradient += decay * x
        mean += rest1 * (gradient - mean)
        square += rest2 * (gradient * gradient - square)
        correction1 = (1.0 - tl.exp(count * log_beta1)).to(tl.float32)
        correction2 = tl.sqrt(1.0 - tl.exp(count * log_beta2)).to(tl.float32)
        x -= step_size / correction1 * mean / (tl.sqrt(square) / correction2 + eps)
        tl.store(VALUES + here, x, mask=inside)
        tl.store(MEAN + here, mean, mask=inside)
        tl.store(SQUARE + here, square, mask=inside)


@triton.jit
def end_kernel(
    TURN, POSITIONS, STEPS, COUNTS, REACHED, TRAINING, TAKES, TARGET, LOSSES, NOTED, trainings, longest, parts,
    classes, n, SLOTS: tl.constexpr,
):  # fmt: skip
    """Note the LOSSES (n x parts) in NOTED (R x longest x parts), and count the step. Grid: 1 + blocks.

    COUNTS (blocks x R): the steps that each block has taken; REACHED (blocks x classes) as in Adam.
    """
    slot = tl.arange(0, SLOTS)
    takes = tl.load(TAKES + slot, mask=slot < n, other=0) != 0
    training = tl.load(TRAINING + slot, mask=takes, other=0)
    block = tl.program_id(0) - 1
    if block >= 0:
        target = tl.load(TARGET + slot, mask=takes, other=0)
        stepped = takes & (tl.load(REACHED + block * classes + target, mask=takes, other=0) != 0)
        count = COUNTS + block * trainings + training
        tl.store(count, tl.load(count, mask=stepped, other=0.0) + 1.0, mask=stepped)
    else:
        position = tl.load(POSITIONS + training, mask=takes, other=0)
        for part in range(parts):
            loss = tl.load(LOSSES + slot * parts + part, mask=takes, other=0.0)
            tl.store(NOTED + (training * longest + position) * parts + part, loss, mask=takes)
        tl.store(POSITIONS + training, position + 1, mask=takes)
        tl.store(STEPS + training, tl.load(STEPS + training, mask=takes, other=0) + 1, mask=takes)
        tl.store(TURN, tl.load(TURN) + 1)
