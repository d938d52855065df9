"""Kernels that read all tiles of a bag: embedding, scores, pooling, and their backward passes.

Names of sizes in all kernels: P members (trainings), S slots (a member with a bag; in a step, slot s is member s),
N tiles, `longest` the tiles of the longest bag, D features, I inner width, T tokens, H heads, A = T H rows, d = I / H.
Upper-case arguments are pointers; the docstrings give their shapes. Half-precision buffers have the dtype of the
features; sums are computed in float32. A program past the end of its bag returns immediately. There are no atomic
additions: each partial sum has its own location and they are added in a fixed order, so that the result of a step is
identical every time, whatever else is being trained.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def embed_kernel(
    FEATURES, STEMS, EMBEDDED, MEMBER, BAG, OFFSET, LENGTH, longest,
    D: tl.constexpr, J: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """EMBEDDED (S x longest x J) = relu(FEATURES[bag] (N x D) STEMS[member] (J x D)^T), J = 2 I: online, then anchor.

    Grid: row blocks, column blocks, S.
    """
    row_block, column_block, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    bag = tl.load(BAG + slot)
    n = tl.load(LENGTH + bag)
    if row_block * ROWS >= n:
        return
    member = tl.load(MEMBER + slot).to(tl.int64)
    rows = row_block * ROWS + tl.arange(0, ROWS)
    columns = column_block * COLS + tl.arange(0, COLS)
    depth = tl.arange(0, DEPTH)
    is_row, is_column = rows < n, columns < J
    features = FEATURES + (tl.load(OFFSET + bag) + rows)[:, None].to(tl.int64) * D + depth[None, :]
    stems = STEMS + member * J * D + columns[None, :] * D + depth[:, None]
    total = tl.zeros((ROWS, COLS), tl.float32)
    for k in range(0, D, DEPTH):
        x = tl.load(features + k, mask=is_row[:, None] & (depth[None, :] + k < D), other=0.0)
        w = tl.load(stems + k, mask=is_column[None, :] & (depth[:, None] + k < D), other=0.0)
        total = tl.dot(x, w, total)
    embedded = tl.maximum(total, 0.0).to(EMBEDDED.dtype.element_ty)
    address = EMBEDDED + (slot.to(tl.int64) * longest + rows[:, None]) * J + columns[None, :]
    tl.store(address, embedded, mask=is_row[:, None] & is_column[None, :])


@triton.jit
def log_sigmoid(x):
    """log(1 / (1 + exp(-x))), without overflow."""
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def score_kernel(
    EMBEDDED, VECTORS, CONSTANTS, SCORES, PARTIALS, MEMBER, BAG, LENGTH, longest, n_blocks,
    I: tl.constexpr, A: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, ANCHOR: tl.constexpr,
):  # fmt: skip
    """SCORES (S x 2 x longest x A) = EMBEDDED VECTORS^T + CONSTANTS (P x 2 x A x I, P x 2 x A), online z and anchor y.

    PARTIALS (S x n_blocks x 4 x A), of the rows of the block: max z, sum exp(z - max), sum sigma(y),
    sum sigma(y) (log sigma(y) - z). Without ANCHOR only z and its two sums. Grid: row blocks, S.
    """
    block, slot = tl.program_id(0), tl.program_id(1)
    n = tl.load(LENGTH + tl.load(BAG + slot))
    if block * ROWS >= n:
        return
    member = tl.load(MEMBER + slot)
    rows = block * ROWS + tl.arange(0, ROWS)
    a, inner = tl.arange(0, A), tl.arange(0, INNER)
    is_row = rows < n
    z = tl.zeros((ROWS, A), tl.float32)
    y = tl.zeros((ROWS, A), tl.float32)
    embedded = EMBEDDED + (slot.to(tl.int64) * longest + rows[:, None]) * (2 * I) + inner[None, :]
    vectors = VECTORS + member * 2 * A * I + a[None, :] * I + inner[:, None]
    for i in range(0, I, INNER):
        is_tile = is_row[:, None] & (inner[None, :] + i < I)
        is_inner = inner[:, None] + i < I
        h = tl.load(embedded + i, mask=is_tile, other=0.0)
        v = tl.load(vectors + i, mask=is_inner, other=0.0)
        z = tl.dot(h, v, z)
        if ANCHOR:
            h = tl.load(embedded + I + i, mask=is_tile, other=0.0)
            v = tl.load(vectors + A * I + i, mask=is_inner, other=0.0)
            y = tl.dot(h, v, y)
    write_scores(z, y, CONSTANTS + member * 2 * A, SCORES, PARTIALS, slot, block, n, longest, n_blocks, A, ROWS, ANCHOR)


@triton.jit
def embed_and_score_kernel(
    FEATURES, STEMS, VECTORS, CONSTANTS, EMBEDDED, SCORES, PARTIALS, MEMBER, BAG, OFFSET, LENGTH, longest, n_blocks,
    D: tl.constexpr, I: tl.constexpr, A: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, DEPTH: tl.constexpr,
    ANCHOR: tl.constexpr,
):  # fmt: skip
    """`embed_kernel` and `score_kernel` in one, for I <= INNER; the anchor's embedded tiles are not stored.

    Grid: row blocks, S.
    """
    block, slot = tl.program_id(0), tl.program_id(1)
    bag = tl.load(BAG + slot)
    n = tl.load(LENGTH + bag)
    if block * ROWS >= n:
        return
    member = tl.load(MEMBER + slot)
    rows = block * ROWS + tl.arange(0, ROWS)
    a, inner, depth = tl.arange(0, A), tl.arange(0, INNER), tl.arange(0, DEPTH)
    is_row, is_inner = rows < n, inner < I
    features = FEATURES + (tl.load(OFFSET + bag) + rows)[:, None].to(tl.int64) * D + depth[None, :]
    stems = STEMS + member.to(tl.int64) * 2 * I * D + inner[None, :] * D + depth[:, None]
    vectors = VECTORS + member * 2 * A * I + a[None, :] * I + inner[:, None]
    half: tl.constexpr = EMBEDDED.dtype.element_ty
    online = tl.zeros((ROWS, INNER), tl.float32)
    anchor = tl.zeros((ROWS, INNER), tl.float32)
    for k in range(0, D, DEPTH):
        is_depth = depth + k < D
        x = tl.load(features + k, mask=is_row[:, None] & is_depth[None, :], other=0.0)
        is_weight = is_inner[None, :] & is_depth[:, None]
        online = tl.dot(x, tl.load(stems + k, mask=is_weight, other=0.0), online)
        if ANCHOR:
            anchor = tl.dot(x, tl.load(stems + I * D + k, mask=is_weight, other=0.0), anchor)
    h = tl.maximum(online, 0.0).to(half)
    address = EMBEDDED + (slot.to(tl.int64) * longest + rows[:, None]) * (2 * I) + inner[None, :]
    tl.store(address, h, mask=is_row[:, None] & is_inner[None, :])
    z = tl.dot(h, tl.load(vectors, mask=is_inner[:, None], other=0.0))
    y = tl.zeros((ROWS, A), tl.float32)
    if ANCHOR:
        h = tl.maximum(anchor, 0.0).to(half)
        y = tl.dot(h, tl.load(vectors + A * I, mask=is_inner[:, None], other=0.0))
    write_scores(z, y, CONSTANTS + member * 2 * A, SCORES, PARTIALS, slot, block, n, longest, n_blocks, A, ROWS, ANCHOR)


@triton.jit
def write_scores(
    z, y, CONSTANTS, SCORES, PARTIALS, slot, block, n, longest, n_blocks,
    A: tl.constexpr, ROWS: tl.constexpr, ANCHOR: tl.constexpr,
):  # fmt: skip
    """The scores of a block of rows, without CONSTANTS (2 x A), to SCORES, and their sums to PARTIALS."""
    rows, a = block * ROWS + tl.arange(0, ROWS), tl.arange(0, A)
    is_row = rows < n
    z += tl.load(CONSTANTS + a)[None, :]
    scores = SCORES + slot.to(tl.int64) * 2 * longest * A + rows[:, None].to(tl.int64) * A + a[None, :]
    tl.store(scores, z, mask=is_row[:, None])
    masked = tl.where(is_row[:, None], z, -float("inf"))
    largest = tl.max(masked, axis=0)
    partials = PARTIALS + (slot * n_blocks + block) * 4 * A + a
    tl.store(partials, largest)
    tl.store(partials + A, tl.sum(tl.exp(masked - largest[None, :]), axis=0))
    if ANCHOR:
        y += tl.load(CONSTANTS + A + a)[None, :]
        tl.store(scores + longest.to(tl.int64) * A, y, mask=is_row[:, None])
        log_target = log_sigmoid(y)
        target = tl.where(is_row[:, None], tl.exp(log_target), 0.0)
        tl.store(partials + 2 * A, tl.sum(target, axis=0))
        tl.store(partials + 3 * A, tl.sum(target * (log_target - z), axis=0))


@triton.jit
def sums_kernel(
    PARTIALS, SUMS, BAG, LENGTH, n_blocks,
    A: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, SOME: tl.constexpr, ANCHOR: tl.constexpr,
):  # fmt: skip
    """SUMS (S x 3 x A): log sum exp z, log sum sigma(y), and KL(sigma(y) / sum || softmax(z)). Grid: A / SOME, S."""
    a = tl.program_id(0) * SOME + tl.arange(0, SOME)
    slot = tl.program_id(1)
    n = tl.load(LENGTH + tl.load(BAG + slot))
    count = (n + ROWS - 1) // ROWS
    blocks = tl.arange(0, BLOCKS)
    largest = tl.full((SOME,), -float("inf"), tl.float32)
    total = tl.zeros((SOME,), tl.float32)
    targets = tl.zeros((SOME,), tl.float32)
    crossed = tl.zeros((SOME,), tl.float32)
    for first in range(0, count, BLOCKS):
        is_block = (first + blocks)[:, None] < count
        partials = PARTIALS + (slot * n_blocks + first + blocks)[:, None] * 4 * A + a[None, :]
        maxima = tl.load(partials, mask=is_block, other=-float("inf"))
        sums = tl.load(partials + A, mask=is_block, other=0.0)
        larger = tl.maximum(largest, tl.max(maxima, axis=0))
        total = total * tl.exp(largest - larger) + tl.sum(sums * tl.exp(maxima - larger[None, :]), axis=0)
        largest = larger
        if ANCHOR:
            targets += tl.sum(tl.load(partials + 2 * A, mask=is_block, other=0.0), axis=0)
            crossed += tl.sum(tl.load(partials + 3 * A, mask=is_block, other=0.0), axis=0)
    log_total = largest + tl.log(total)
    address = SUMS + slot * 3 * A + a
    tl.store(address, log_total)
    if ANCHOR:
        log_targets = tl.log(targets)
        tl.store(address + A, log_targets)
        tl.store(address + 2 * A, crossed / targets - log_targets + log_total)


@triton.jit
def pool_kernel(
    EMBEDDED, SCORES, SUMS, POOLED_PARTS, BAG, LENGTH, longest,
    I: tl.constexpr, A: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """POOLED_PARTS (S x PARTS x A x I): softmax(z)^T h, every PARTS-th block of rows. Grid: PARTS, inner blocks, S."""
    part, inner_block, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tl.load(LENGTH + tl.load(BAG + slot))
    a, inner, steps = tl.arange(0, A), inner_block * INNER + tl.arange(0, INNER), tl.arange(0, ROWS)
    log_total = tl.load(SUMS + slot * 3 * A + a)
    scores = SCORES + slot.to(tl.int64) * 2 * longest * A + a[None, :]
    embedded = EMBEDDED + slot.to(tl.int64) * longest * (2 * I) + inner[None, :]
    pooled = tl.zeros((A, INNER), tl.float32)
    for first in range(part * ROWS, n, PARTS * ROWS):
        rows = (first + steps).to(tl.int64)
        is_row = (rows < n)[:, None]
        z = tl.load(scores + rows[:, None] * A, mask=is_row, other=-float("inf"))
        h = tl.load(embedded + rows[:, None] * (2 * I), mask=is_row & (inner[None, :] < I), other=0.0)
        attention = tl.exp(z - log_total[None, :]).to(h.dtype)
        pooled = tl.dot(tl.trans(attention), h, pooled)
    address = POOLED_PARTS + ((slot * PARTS + part) * A + a[:, None]) * I + inner[None, :]
    tl.store(address, pooled, mask=inner[None, :] < I)


@triton.jit
def heatmap_kernel(
    SCORES, SUMS, HEATMAP, BAG, LENGTH, longest, A: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """HEATMAP (S x longest): the attention of a tile, averaged over the rows of the scores. Grid: row blocks, S."""
    block, slot = tl.program_id(0), tl.program_id(1)
    n = tl.load(LENGTH + tl.load(BAG + slot))
    rows = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row = rows < n
    a = tl.arange(0, A)
    scores = SCORES + slot.to(tl.int64) * 2 * longest * A + rows[:, None] * A + a[None, :]
    z = tl.load(scores, mask=is_row[:, None], other=-float("inf"))
    attention = tl.exp(z - tl.load(SUMS + slot * 3 * A + a)[None, :])
    tl.store(HEATMAP + slot.to(tl.int64) * longest + rows, tl.sum(attention, axis=1) / A, mask=is_row)


@triton.jit
def tile_backward_kernel(
    EMBEDDED, SCORES, SUMS, VECTORS, D_POOLED, D_POOLED_POOLED, share, D_EMBEDDED, D_VECTORS_PARTS, D_CONSTANTS_PARTS,
    BAG, LENGTH, longest,
    I: tl.constexpr, A: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr,
    ANCHOR: tl.constexpr,
):  # fmt: skip
    """From the gradient of the pooled embeddings to those of the embedded tiles, the vectors and the constants.

        dz = share (p - t) + p (h . db - b . db)        p = softmax(z), t = sigma(y) / sum, share = weight / A
        dh = (dz V + p db) where h > 0                  dV = dz^T h        dc = sum dz

    D_POOLED: S x A x I, D_POOLED_POOLED: S x A (b . db), D_EMBEDDED: S x longest x I;
    parts, over every PARTS-th block of rows: S x PARTS x A x I, S x PARTS x A; parts without rows are not written.
    Grid: PARTS, S.
    """
    part, slot = tl.program_id(0), tl.program_id(1)
    n = tl.load(LENGTH + tl.load(BAG + slot))
    if part * ROWS >= n:
        return
    a, inner, steps = tl.arange(0, A), tl.arange(0, INNER), tl.arange(0, ROWS)
    one_block: tl.constexpr = I <= INNER
    log_total = tl.load(SUMS + slot * 3 * A + a)
    d_pooled_pooled = tl.load(D_POOLED_POOLED + slot * A + a)
    d_constants = tl.zeros((A,), tl.float32)
    d_vectors = tl.zeros((A, INNER), tl.float32)
    d_vectors_part = D_VECTORS_PARTS + ((slot * PARTS + part) * A + a[:, None]) * I + inner[None, :]
    for first in range(part * ROWS, n, PARTS * ROWS):
        rows = (first + steps).to(tl.int64)
        is_row = (rows < n)[:, None]
        scores = SCORES + slot.to(tl.int64) * 2 * longest * A + rows[:, None] * A + a[None, :]
        z = tl.load(scores, mask=is_row, other=-float("inf"))
        p = tl.exp(z - log_total[None, :])
        embedded = EMBEDDED + (slot.to(tl.int64) * longest + rows[:, None]) * (2 * I) + inner[None, :]
        h_db = tl.zeros((ROWS, A), tl.float32)
        for i in range(0, I, INNER):
            h = tl.load(embedded + i, mask=is_row & (inner[None, :] + i < I), other=0.0)
            columns = D_POOLED + (slot * A + a[None, :]) * I + inner[:, None] + i
            h_db = tl.dot(h, tl.load(columns, mask=inner[:, None] + i < I, other=0.0), h_db)
        dz = p * (h_db - d_pooled_pooled[None, :])
        if ANCHOR:
            y = tl.load(scores + longest.to(tl.int64) * A, mask=is_row, other=0.0)
            log_targets = tl.load(SUMS + slot * 3 * A + A + a)
            dz += share * (p - tl.exp(log_sigmoid(y) - log_targets[None, :]))
        dz = tl.where(is_row, dz, 0.0)
        d_constants += tl.sum(dz, axis=0)
        dz_half, p_half = dz.to(EMBEDDED.dtype.element_ty), p.to(EMBEDDED.dtype.element_ty)
        for i in range(0, I, INNER):
            is_inner = inner[None, :] + i < I
            h = tl.load(embedded + i, mask=is_row & is_inner, other=0.0)
            v = tl.load(VECTORS + (slot * 2 * A + a[:, None]) * I + inner[None, :] + i, mask=is_inner, other=0.0)
            db = tl.load(D_POOLED + (slot * A + a[:, None]) * I + inner[None, :] + i, mask=is_inner, other=0.0)
            dh = tl.dot(p_half, db, tl.dot(dz_half, v))
            dh = tl.where(h > 0, dh, 0.0).to(D_EMBEDDED.dtype.element_ty)
            address = D_EMBEDDED + (slot.to(tl.int64) * longest + rows[:, None]) * I + inner[None, :] + i
            tl.store(address, dh, mask=is_row & is_inner)
            if one_block:
                d_vectors = tl.dot(tl.trans(dz_half), h, d_vectors)
            else:
                added = tl.dot(tl.trans(dz_half), h)
                if first > part * ROWS:
                    added += tl.load(d_vectors_part + i, mask=is_inner, other=0.0)
                tl.store(d_vectors_part + i, added, mask=is_inner)
    tl.store(D_CONSTANTS_PARTS + (slot * PARTS + part) * A + a, d_constants)
    if one_block:
        tl.store(d_vectors_part, d_vectors, mask=inner[None, :] < I)


@triton.jit
def stem_backward_kernel(
    D_EMBEDDED, FEATURES, GRADIENTS, gradients_size, stem_parts, BAG, OFFSET, LENGTH, longest,
    D: tl.constexpr, I: tl.constexpr, PARTS: tl.constexpr, INNER: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradient of the stem over every PARTS-th block of rows, into GRADIENTS[member] at stem_parts (PARTS x I x D).

    Grid: inner blocks times column blocks, PARTS, P.
    """
    tile, part, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column_blocks: tl.constexpr = tl.cdiv(D, COLS)
    inner = (tile // column_blocks) * INNER + tl.arange(0, INNER)
    columns = (tile % column_blocks) * COLS + tl.arange(0, COLS)
    steps = tl.arange(0, ROWS)
    bag = tl.load(BAG + slot)
    n, offset = tl.load(LENGTH + bag), tl.load(OFFSET + bag)
    total = tl.zeros((INNER, COLS), tl.float32)
    for first in range(part * ROWS, n, PARTS * ROWS):
        rows = (first + steps).to(tl.int64)
        is_row = (rows < n)[:, None]
        gradient = D_EMBEDDED + (slot.to(tl.int64) * longest + rows[:, None]) * I + inner[None, :]
        features = FEATURES + (offset + rows)[:, None] * D + columns[None, :]
        g = tl.load(gradient, mask=is_row & (inner[None, :] < I), other=0.0)
        x = tl.load(features, mask=is_row & (columns[None, :] < D), other=0.0)
        total = tl.dot(tl.trans(g), x, total)
    address = (
        GRADIENTS + slot.to(tl.int64) * gradients_size + stem_parts + (part * I + inner[:, None]) * D + columns[None, :]
    )
    tl.store(address, total, mask=(inner[:, None] < I) & (columns[None, :] < D))
