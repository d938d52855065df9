"""The kernels of `passes.py`, computed in float32 and stored in the type of the output.

Tensors are n slots x ...; a slot is contiguous, and parameters, which are views, have a stride from slot to slot.

Random numbers are those of `draw_kernel`; the backward pass draws them again.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _kept(seed, use, p, factor, row, first, COLUMNS: tl.constexpr):
    """Factors of dropout for some rows and the columns from `first`, a multiple of 4, on."""
    quad = first // 4 + tl.arange(0, COLUMNS // 4)
    zero = row[:, None] * 0 + quad[None, :] * 0
    a, b, c, d = tl.philox(seed, zero, zero + row[:, None], zero + quad[None, :], zero + use)
    drawn = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    return tl.where(tl.uint_to_uniform_float(drawn) >= p, factor, 0.0)


@triton.jit
def relu_forward(
    PRODUCTS, BIAS, bias_stride, SEED, OUT, use, p, factor, rows, width,
    DROPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """OUT (n x rows x width) = max(PRODUCTS + BIAS, 0), with dropout if DROPS. Grid: blocks, n."""
    slot = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(width, COLUMNS)
    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(0) % across * COLUMNS
    column = first + tl.arange(0, COLUMNS)
    here = (row < rows)[:, None] & (column < width)[None, :]
    at = (slot * rows + row)[:, None] * width + column[None, :]
    values = tl.load(PRODUCTS + at, mask=here, other=0.0).to(tl.float32)
    if BIAS is not None:
        values += tl.load(BIAS + slot * bias_stride + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    values = tl.where(values < 0, 0.0, values)
    if DROPS:
        values *= _kept(tl.load(SEED + slot), use, p, factor, row, first, COLUMNS)
    tl.store(OUT + at, values.to(OUT.dtype.element_ty), mask=here)


@triton.jit
def relu_backward(
    OUT, GRADIENT, D_PRODUCTS, D_BIAS, factor, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of the products and of the bias. Grid: blocks of columns, n."""
    slot = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & (column < width)[None, :]
        at = (slot * rows + row)[:, None] * width + column[None, :]
        out = tl.load(OUT + at, mask=here, other=0.0)
        gradient = tl.load(GRADIENT + at, mask=here, other=0.0).to(tl.float32)
        gradient = tl.where(out <= 0, 0.0, gradient * factor)
        tl.store(D_PRODUCTS + at, gradient.to(D_PRODUCTS.dtype.element_ty), mask=here)
        total += tl.sum(gradient, axis=0)
    if D_BIAS is not None:
        tl.store(D_BIAS + slot * width + column, total, mask=column < width)


@triton.jit
def _gates(
    VALUES, GATES, VALUE_BIAS, value_stride, GATE_BIAS, gate_stride, SEED, use, p, factor, slot, row, first, rows,
    width, DROPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """tanh(VALUES + bias), sigmoid(GATES + bias) and the factor of their dropout, ROWS x COLUMNS."""
    column = first + tl.arange(0, COLUMNS)
    inside = column < width
    here = (row < rows)[:, None] & inside[None, :]
    at = (slot * rows + row)[:, None] * width + column[None, :]
    value = tl.load(VALUES + at, mask=here, other=0.0).to(tl.float32)
    gate = tl.load(GATES + at, mask=here, other=0.0).to(tl.float32)
    if VALUE_BIAS is not None:
        value += tl.load(VALUE_BIAS + slot * value_stride + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        gate += tl.load(GATE_BIAS + slot * gate_stride + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    kept = tl.full((ROWS, COLUMNS), 1.0, tl.float32)
    if DROPS:
        seed = tl.load(SEED + slot)
        kept = _kept(seed, use, p, factor, row, first, COLUMNS) * _kept(seed, use + 1, p, factor, row, first, COLUMNS)
    return 2 * tl.sigmoid(2 * value) - 1, tl.sigmoid(gate), kept


@triton.jit
def gate_forward(
    VALUES, GATES, VALUE_BIAS, value_stride, GATE_BIAS, gate_stride, WEIGHT, weight_stride, BIAS, bias_stride, SEED,
    MASK, SCORES, use, p, factor, rows, width, branches,
    DROPS: tl.constexpr, BRANCHES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """SCORES (n x branches x rows) = WEIGHT . (tanh(VALUES) * sigmoid(GATES)) + BIAS; minus infinity for padding.

    Grid: blocks of rows, n.
    """
    slot = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = tl.arange(0, BRANCHES)
    scores = tl.zeros((ROWS, BRANCHES), tl.float32)
    for first in range(0, width, COLUMNS):
        value, gate, kept = _gates(
            VALUES, GATES, VALUE_BIAS, value_stride, GATE_BIAS, gate_stride, SEED, use, p, factor, slot, row, first,
            rows, width, DROPS, ROWS, COLUMNS,
        )  # fmt: skip
        column = first + tl.arange(0, COLUMNS)
        for branch in range(branches):
            at = WEIGHT + slot * weight_stride + branch * width + column
            weight = tl.load(at, mask=column < width, other=0.0).to(tl.float32)
            score = tl.sum(value * gate * kept * weight[None, :], axis=1)
            scores += tl.where(own[None, :] == branch, score[:, None], 0.0)
    if BIAS is not None:
        scores += tl.load(BIAS + slot * bias_stride + own, mask=own < branches, other=0.0).to(tl.float32)[None, :]
    if MASK is not None:
        is_tile = tl.load(MASK + slot * rows + row, mask=row < rows, other=0) != 0
        scores = tl.where(is_tile[:, None], scores, -float("inf"))
    at = SCORES + (slot * branches + own)[None, :] * rows + row[:, None]
    tl.store(at, scores.to(SCORES.dtype.element_ty), mask=(row < rows)[:, None] & (own < branches)[None, :])


@triton.jit
def gate_backward(
    VALUES, GATES, VALUE_BIAS, value_stride, GATE_BIAS, gate_stride, WEIGHT, weight_stride, SEED, GRADIENT,
    D_VALUES, D_GATES, D_VALUE_BIAS, D_GATE_BIAS, D_WEIGHT, D_BIAS, use, p, factor, rows, width, branches,
    DROPS: tl.constexpr, BRANCHES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """All gradients from that of the scores. Grid: blocks of columns, n."""
    slot = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0) * COLUMNS
    column = start + tl.arange(0, COLUMNS)
    inside = column < width
    own = tl.arange(0, BRANCHES)
    of_value_bias = tl.zeros((COLUMNS,), tl.float32)
    of_gate_bias = tl.zeros((COLUMNS,), tl.float32)
    of_weight = tl.zeros((BRANCHES, COLUMNS), tl.float32)
    of_bias = tl.zeros((BRANCHES,), tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        value, gate, kept = _gates(
            VALUES, GATES, VALUE_BIAS, value_stride, GATE_BIAS, gate_stride, SEED, use, p, factor, slot, row, start,
            rows, width, DROPS, ROWS, COLUMNS,
        )  # fmt: skip
        of_hidden = tl.zeros((ROWS, COLUMNS), tl.float32)
        for branch in range(branches):
            of_branch = GRADIENT + (slot * branches + branch) * rows + row
            gradient = tl.load(of_branch, mask=row < rows, other=0.0).to(tl.float32)
            at = WEIGHT + slot * weight_stride + branch * width + column
            weight = tl.load(at, mask=inside, other=0.0).to(tl.float32)
            of_hidden += gradient[:, None] * weight[None, :]
            of_weights = tl.sum(gradient[:, None] * value * gate * kept, axis=0)
            of_weight += tl.where(own[:, None] == branch, of_weights[None, :], 0.0)
            of_bias += tl.where(own == branch, tl.sum(gradient, axis=0), 0.0)
        of_hidden *= kept
        of_value = of_hidden * gate * (1 - value * value)
        of_gate = of_hidden * value * gate * (1 - gate)
        here = (row < rows)[:, None] & inside[None, :]
        at = (slot * rows + row)[:, None] * width + column[None, :]
        tl.store(D_VALUES + at, of_value.to(D_VALUES.dtype.element_ty), mask=here)
        tl.store(D_GATES + at, of_gate.to(D_GATES.dtype.element_ty), mask=here)
        of_value_bias += tl.sum(of_value, axis=0)
        of_gate_bias += tl.sum(of_gate, axis=0)
    if VALUE_BIAS is not None:
        tl.store(D_VALUE_BIAS + slot * width + column, of_value_bias, mask=inside)
        tl.store(D_GATE_BIAS + slot * width + column, of_gate_bias, mask=inside)
    at = D_WEIGHT + (slot * branches + own)[:, None] * width + column[None, :]
    tl.store(at, of_weight, mask=(own < branches)[:, None] & inside[None, :])
    if D_BIAS is not None:  # the same from all blocks
        tl.store(D_BIAS + slot * branches + own, of_bias, mask=own < branches)


@triton.jit
def _log_total(SCORES, rows, ROWS: tl.constexpr):
    """log sum exp of so many scores."""
    largest, total = tl.full((1,), -float("inf"), tl.float32), tl.zeros((1,), tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        scores = tl.load(SCORES + row, mask=row < rows, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(scores, axis=0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(scores - larger), axis=0)
        largest = larger
    return largest + tl.log(total)


@triton.jit
def pool_forward(
    EMBEDDED, SCORES, POOLED, rows, width, branches, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """POOLED (n x branches x width) = softmax(SCORES) EMBEDDED. Grid: blocks of columns, branches, n."""
    slot = tl.program_id(2).to(tl.int64)
    own = slot * branches + tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    log_total = _log_total(SCORES + own * rows, rows, 4 * ROWS)
    pooled = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        scores = tl.load(SCORES + own * rows + row, mask=row < rows, other=-float("inf")).to(tl.float32)
        here = (row < rows)[:, None] & (column < width)[None, :]
        at = EMBEDDED + (slot * rows + row)[:, None] * width + column[None, :]
        embedded = tl.load(at, mask=here, other=0.0).to(tl.float32)
        pooled += tl.sum(tl.exp(scores - log_total)[:, None] * embedded, axis=0)
    tl.store(POOLED + own * width + column, pooled.to(POOLED.dtype.element_ty), mask=column < width)


@triton.jit
def pool_backward(
    EMBEDDED, SCORES, POOLED, D_POOLED, GRADIENT, D_SCORES, D_EMBEDDED, rows, width, branches,
    BRANCHES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of the embedded tiles and of the scores, whose own GRADIENT is added. Grid: blocks of rows, n.

    d score_i = p_i (h_i . d pooled - pooled . d pooled)    p = softmax(scores)
    """
    slot = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = tl.arange(0, BRANCHES)
    attention = tl.zeros((ROWS, BRANCHES), tl.float32)
    for branch in range(branches):
        pooled_at = (slot * branches + branch) * width
        scores_at = (slot * branches + branch) * rows + row
        scores = tl.load(SCORES + scores_at, mask=row < rows, other=-float("inf")).to(tl.float32)
        weights = tl.exp(scores - _log_total(SCORES + (slot * branches + branch) * rows, rows, 4 * ROWS))
        products = tl.zeros((ROWS,), tl.float32)
        means = tl.zeros((COLUMNS,), tl.float32)
        for first in range(0, width, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            here = (row < rows)[:, None] & (column < width)[None, :]
            at = EMBEDDED + (slot * rows + row)[:, None] * width + column[None, :]
            embedded = tl.load(at, mask=here, other=0.0).to(tl.float32)
            gradient = tl.load(D_POOLED + pooled_at + column, mask=column < width, other=0.0).to(tl.float32)
            pooled = tl.load(POOLED + pooled_at + column, mask=column < width, other=0.0).to(tl.float32)
            products += tl.sum(embedded * gradient[None, :], axis=1)
            means += pooled * gradient
        of_scores = weights * (products - tl.sum(means, axis=0))
        if GRADIENT is not None:
            of_scores += tl.load(GRADIENT + scores_at, mask=row < rows, other=0.0).to(tl.float32)
        tl.store(D_SCORES + scores_at, of_scores, mask=row < rows)
        attention += tl.where(own[None, :] == branch, weights[:, None], 0.0)
    for first in range(0, width, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for branch in range(branches):
            at = D_POOLED + (slot * branches + branch) * width + column
            gradient = tl.load(at, mask=column < width, other=0.0).to(tl.float32)
            weights = tl.sum(tl.where(own[None, :] == branch, attention, 0.0), axis=1)
            total += weights[:, None] * gradient[None, :]
        at = D_EMBEDDED + (slot * rows + row)[:, None] * width + column[None, :]
        here = (row < rows)[:, None] & (column < width)[None, :]
        tl.store(at, total.to(D_EMBEDDED.dtype.element_ty), mask=here)


@triton.jit
def head_forward(
    X, WEIGHT, weight_stride, BIAS, bias_stride, OUT, rows, width, outputs,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """OUT (n x rows x outputs) = X WEIGHT^T + BIAS. Grid: rows, n."""
    slot = tl.program_id(1).to(tl.int64)
    row = slot * rows + tl.program_id(0)
    own = tl.arange(0, OUTPUTS)
    total = tl.zeros((OUTPUTS, COLUMNS), tl.float32)
    for first in range(0, width, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        here = (own < outputs)[:, None] & (column < width)[None, :]
        x = tl.load(X + row * width + column, mask=column < width, other=0.0).to(tl.float32)
        at = WEIGHT + slot * weight_stride + own[:, None] * width + column[None, :]
        total += tl.load(at, mask=here, other=0.0).to(tl.float32) * x[None, :]
    out = tl.sum(total, axis=1)
    if BIAS is not None:
        out += tl.load(BIAS + slot * bias_stride + own, mask=own < outputs, other=0.0).to(tl.float32)
    tl.store(OUT + row * outputs + own, out.to(OUT.dtype.element_ty), mask=own < outputs)


@triton.jit
def head_backward(
    X, WEIGHT, weight_stride, GRADIENT, D_X, D_WEIGHT, D_BIAS, rows, width, outputs,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """All gradients. Grid: blocks of columns, n."""
    slot = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    own = tl.arange(0, OUTPUTS)
    here = (own < outputs)[:, None] & inside[None, :]
    at = WEIGHT + slot * weight_stride + own[:, None] * width + column[None, :]
    weight = tl.load(at, mask=here, other=0.0).to(tl.float32)
    of_weight = tl.zeros((OUTPUTS, COLUMNS), tl.float32)
    of_bias = tl.zeros((OUTPUTS,), tl.float32)
    for number in range(rows):
        row = slot * rows + number
        x = tl.load(X + row * width + column, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(GRADIENT + row * outputs + own, mask=own < outputs, other=0.0).to(tl.float32)
        of_x = tl.sum(gradient[:, None] * weight, axis=0)
        tl.store(D_X + row * width + column, of_x.to(D_X.dtype.element_ty), mask=inside)
        of_weight += gradient[:, None] * x[None, :]
        of_bias += gradient
    tl.store(D_WEIGHT + (slot * outputs + own)[:, None] * width + column[None, :], of_weight, mask=here)
    if D_BIAS is not None:  # the same from all blocks
        tl.store(D_BIAS + slot * outputs + own, of_bias, mask=own < outputs)


@triton.jit
def kl_kernel(
    TARGET_SCORES, SCORES, DIVERGENCES, SLOPES, temperature, tiles, SIGMOID: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """DIVERGENCES: KL(t || p) of a row, t of the target scores and p = softmax(SCORES); SLOPES: p - t. Grid: rows."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    here = tile < tiles
    targets = tl.load(TARGET_SCORES + row * tiles + tile, mask=here, other=-float("inf")).to(tl.float32) / temperature
    if SIGMOID:
        targets = tl.where(targets > 0, 0.0, targets) - tl.log(1 + tl.exp(-tl.abs(targets)))
    scores = tl.load(SCORES + row * tiles + tile, mask=here, other=-float("inf")).to(tl.float32)
    targets -= tl.max(targets, axis=0)
    scores -= tl.max(scores, axis=0)
    targets -= tl.log(tl.sum(tl.exp(targets), axis=0))
    scores -= tl.log(tl.sum(tl.exp(scores), axis=0))
    terms = tl.where(targets == -float("inf"), 0.0, tl.exp(targets) * (targets - scores))
    tl.store(DIVERGENCES + row, tl.sum(terms, axis=0))
    tl.store(SLOPES + row * tiles + tile, tl.exp(scores) - tl.exp(targets), mask=here)


@triton.jit
def cross_entropy_kernel(
    LOGITS, TARGETS, LOSSES, D_LOGITS, samples, classes, SAMPLES: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """LOSSES (samples), and D_LOGITS (samples x classes), the gradient of each. Grid: blocks of samples."""
    sample = tl.program_id(0) * SAMPLES + tl.arange(0, SAMPLES)
    column = tl.arange(0, CLASSES)
    here = (sample < samples)[:, None] & (column < classes)[None, :]
    at = tl.minimum(sample, samples - 1)[:, None] * classes + column[None, :]
    logits = tl.load(LOGITS + at, mask=(column < classes)[None, :], other=-float("inf")).to(tl.float32)
    is_own = column[None, :] == tl.load(TARGETS + sample, mask=sample < samples, other=0)[:, None]
    logits -= tl.max(logits, axis=1)[:, None]
    exponentials = tl.exp(logits)
    total = tl.sum(exponentials, axis=1)
    tl.store(LOSSES + sample, tl.log(total) - tl.sum(tl.where(is_own, logits, 0.0), axis=1), mask=sample < samples)
    tl.store(D_LOGITS + at, exponentials / total[:, None] - is_own.to(tl.float32), mask=here)


@triton.jit
def cluster_forward(
    EMBEDDED, SCORES, MASK, WEIGHTS, BIASES, LABEL, TILES, SLOPES, LOSS, rows, width, k, branches, heads,
    HALF: tl.constexpr, EXCLUDES: tl.constexpr, ROWS: tl.constexpr, SAMPLES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The clustering loss with cross-entropy, see `blocks/instance_loss.py`. Grid: n.

    A head has two outputs, of which only the difference matters:  loss = softplus(-+ margin)
    TILES, SLOPES (n x heads x SAMPLES): the tile of every sample, and the gradient of its margin
    """
    slot = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    is_tile = row < rows
    if MASK is not None:
        is_tile = is_tile & (tl.load(MASK + slot * rows + row, mask=row < rows, other=0) != 0)
    limit = tl.sum(is_tile.to(tl.int32), axis=0)
    if HALF:
        limit = tl.maximum(limit // 2, 1)
    limit = tl.minimum(limit, k)
    sample = tl.arange(0, SAMPLES)
    is_top = sample < k
    counts = (sample < 2 * k) & (sample % k < limit)
    label = tl.load(LABEL + slot)
    tiles = tl.zeros((SAMPLES,), tl.int32)
    loss = tl.zeros((SAMPLES,), tl.float32)
    for head in range(heads):
        if (head == 0) | (branches > 1):
            at = SCORES + (slot * branches + tl.minimum(head, branches - 1)) * rows + row
            scores = tl.load(at, mask=is_tile, other=0.0).to(tl.float32)
            high = tl.where(is_tile, scores, -float("inf"))
            low = tl.where(is_tile, -scores, -float("inf"))
            for rank in range(limit):
                highest, lowest = tl.argmax(high, axis=0), tl.argmax(low, axis=0)
                tiles = tl.where(sample == rank, highest, tl.where(sample == k + rank, lowest, tiles))
                high = tl.where(row == highest, -float("inf"), high)
                low = tl.where(row == lowest, -float("inf"), low)
            tiles = tl.minimum(tiles, rows - 1)
        bias = BIASES + (slot * heads + head) * 2
        margin = tl.zeros((SAMPLES,), tl.float32) + (tl.load(bias + 1) - tl.load(bias)).to(tl.float32)
        for first in range(0, width, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            inside = column < width
            embedded = EMBEDDED + (slot * rows + tiles)[:, None] * width + column[None, :]
            chosen = tl.load(embedded, mask=counts[:, None] & inside[None, :], other=0.0).to(tl.float32)
            weight = WEIGHTS + (slot * heads + head) * 2 * width + column
            difference = tl.load(weight + width, mask=inside, other=0.0) - tl.load(weight, mask=inside, other=0.0)
            margin += tl.sum(chosen * difference.to(tl.float32)[None, :], axis=1)
        is_own = label == head
        share = tl.where(counts, 0.5 / limit, 0.0)
        if EXCLUDES:
            share *= tl.where(is_own, 1.0, tl.where(is_top, 2.0, 0.0)) / heads
        else:
            share *= tl.where(is_own, 1.0, 0.0)
        positive = is_own & is_top
        wrong = tl.where(positive, -margin, margin)
        loss += share * (tl.where(wrong < 0, 0.0, wrong) + tl.log(1 + tl.exp(-tl.abs(wrong))))
        samples = (slot * heads + head) * SAMPLES + sample
        tl.store(TILES + samples, tl.where(counts, tiles, -1))
        tl.store(SLOPES + samples, share * (tl.sigmoid(margin) - tl.where(positive, 1.0, 0.0)))
    tl.store(LOSS + slot, tl.sum(loss, axis=0))


@triton.jit
def cluster_backward(
    EMBEDDED, WEIGHTS, TILES, SLOPES, GRADIENT, D_EMBEDDED, D_WEIGHTS, D_BIASES, rows, width, heads,
    ROWS: tl.constexpr, SAMPLES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of the embedded tiles and of the heads. Grid: blocks of columns, n."""
    slot = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    sample = tl.arange(0, SAMPLES)
    gradient = tl.load(GRADIENT + slot).to(tl.float32)
    for head in range(heads):
        own = slot * heads + head
        tiles = tl.load(TILES + own * SAMPLES + sample)
        slopes = tl.load(SLOPES + own * SAMPLES + sample) * gradient
        embedded = EMBEDDED + (slot * rows + tiles)[:, None] * width + column[None, :]
        chosen = tl.load(embedded, mask=(tiles >= 0)[:, None] & inside[None, :], other=0.0).to(tl.float32)
        of_margin = tl.sum(slopes[:, None] * chosen, axis=0)
        weight = D_WEIGHTS + own * 2 * width + column
        tl.store(weight, -of_margin, mask=inside)
        tl.store(weight + width, of_margin, mask=inside)
        if tl.program_id(0) == 0:
            of_bias = tl.sum(slopes, axis=0)
            tl.store(D_BIASES + own * 2, -of_bias)
            tl.store(D_BIASES + own * 2 + 1, of_bias)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for head in range(heads):
            own = slot * heads + head
            tiles = tl.load(TILES + own * SAMPLES + sample)
            slopes = tl.load(SLOPES + own * SAMPLES + sample) * gradient
            weight = WEIGHTS + own * 2 * width + column
            difference = tl.load(weight + width, mask=inside, other=0.0) - tl.load(weight, mask=inside, other=0.0)
            of_row = tl.sum(tl.where(tiles[None, :] == row[:, None], slopes[None, :], 0.0), axis=1)
            total += of_row[:, None] * difference.to(tl.float32)[None, :]
        at = D_EMBEDDED + (slot * rows + row)[:, None] * width + column[None, :]
        tl.store(at, total.to(D_EMBEDDED.dtype.element_ty), mask=(row < rows)[:, None] & inside[None, :])
