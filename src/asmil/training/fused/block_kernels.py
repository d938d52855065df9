"""Kernels of the attention blocks: queries folded into vectors, pooled embeddings to logits, and backward passes.

All matrices are small (I x I) and limited by memory, not by arithmetic, so each program handles a head or a few rows.
PARAMETERS is P x size (`layout.py`), GRADIENTS P x gradients_size; integer arguments named like parameters are their
offsets there. See `tile_kernels.py` for the names of sizes.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fold_kernel(
    PARAMETERS, size, ANCHORS, anchor_size, VECTORS, CONSTANTS, QUERIES, BAG_VECTORS, BAG_CONSTANTS, BAG_QUERIES,
    tokens, q_weight, q_bias, k_weight, k_bias, cls, bag_q_weight, bag_q_bias, bag_k_weight, bag_k_bias, scale,
    I: tl.constexpr, T: tl.constexpr, H: tl.constexpr, d: tl.constexpr, DP: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Queries q = scale (W_q p + b_q), and v = W_k^T q and c = q . b_k for the scores, by token and head.

    VECTORS: P x 2 x A x I and CONSTANTS: P x 2 x A, online and anchor; QUERIES: P x T x I, online. Of the bag block:
    BAG_VECTORS P x H x I, BAG_CONSTANTS P x H, BAG_QUERIES P x I. Grid: A + H, 2 P.
    """
    a, copy = tl.program_id(0), tl.program_id(1)
    member = copy // 2
    is_anchor = copy % 2
    A: tl.constexpr = T * H
    of_bag = a >= A
    if of_bag & (is_anchor == 1):
        return
    base = PARAMETERS + member * size
    if is_anchor == 1:
        base = ANCHORS + member * anchor_size
    head = a % H
    token = tl.where(of_bag, 0, a // H)
    tokens = tl.where(of_bag, cls, tokens)
    q_weight = tl.where(of_bag, bag_q_weight, q_weight)
    q_bias = tl.where(of_bag, bag_q_bias, q_bias)
    k_weight = tl.where(of_bag, bag_k_weight, k_weight)
    k_bias = tl.where(of_bag, bag_k_bias, k_bias)
    j, inner = tl.arange(0, DP), tl.arange(0, INNER)
    is_j = j < d
    rows = token * I + head * d + j
    q = tl.zeros((DP,), tl.float32)
    for i in range(0, I, INNER):
        is_inner = i + inner < I
        x = tl.load(base + tokens + token * I + i + inner, mask=is_inner, other=0.0)
        address = base + q_weight + rows[:, None] * I + i + inner[None, :]
        w = tl.load(address, mask=is_j[:, None] & is_inner[None, :], other=0.0)
        q += tl.sum(w * x[None, :], axis=1)
    q = tl.where(is_j, (q + tl.load(base + q_bias + rows, mask=is_j, other=0.0)) * scale, 0.0)
    constant = tl.sum(q * tl.load(base + k_bias + rows, mask=is_j, other=0.0), axis=0)
    for i in range(0, I, INNER):
        is_inner = i + inner < I
        address = base + k_weight + rows[:, None] * I + i + inner[None, :]
        w = tl.load(address, mask=is_j[:, None] & is_inner[None, :], other=0.0)
        v = tl.sum(w * q[:, None], axis=0)
        if of_bag:
            tl.store(BAG_VECTORS + (member * H + head) * I + i + inner, v, mask=is_inner)
        else:
            tl.store(VECTORS + (copy * A + a) * I + i + inner, v.to(VECTORS.dtype.element_ty), mask=is_inner)
    if of_bag:
        tl.store(BAG_CONSTANTS + member * H + head, constant)
        tl.store(BAG_QUERIES + member * I + rows, q, mask=is_j)
    else:
        tl.store(CONSTANTS + copy * A + a, constant)
        if is_anchor == 0:
            tl.store(QUERIES + member * T * I + rows, q, mask=is_j)


@triton.jit
def values_kernel(
    PARAMETERS, size, POOLED_PARTS, POOLED, VALUES, MEMBER, v_weight, v_bias,
    I: tl.constexpr, T: tl.constexpr, H: tl.constexpr, d: tl.constexpr, DP: tl.constexpr, INNER: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """POOLED (S x A x I) = the sum of its parts; VALUES (S x T x I) = W_v pooled + b_v, by head. Grid: A, S."""
    a, slot = tl.program_id(0), tl.program_id(1)
    A: tl.constexpr = T * H
    token, head = a // H, a % H
    j, inner, parts = tl.arange(0, DP), tl.arange(0, INNER), tl.arange(0, PARTS)
    is_j = j < d
    rows = token * I + head * d + j
    base = PARAMETERS + tl.load(MEMBER + slot) * size
    values = tl.load(base + v_bias + rows, mask=is_j, other=0.0)
    for i in range(0, I, INNER):
        is_inner = i + inner < I
        address = POOLED_PARTS + ((slot * PARTS + parts[:, None]) * A + a) * I + i + inner[None, :]
        x = tl.sum(tl.load(address, mask=is_inner[None, :], other=0.0), axis=0)
        tl.store(POOLED + (slot * A + a) * I + i + inner, x, mask=is_inner)
        address = base + v_weight + rows[:, None] * I + i + inner[None, :]
        w = tl.load(address, mask=is_j[:, None] & is_inner[None, :], other=0.0)
        values += tl.sum(w * x[None, :], axis=1)
    tl.store(VALUES + slot * T * I + rows, values, mask=is_j)


@triton.jit
def output_kernel(
    PARAMETERS, size, VALUES, OUTPUTS, MEMBER, SEED, out_weight, out_bias, dropout,
    first_draw: tl.constexpr, T: tl.constexpr, I: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """OUTPUTS (S x T x I) = dropout(W_o VALUES + b_o), with the draws from first_draw on. Grid: row blocks, T, S."""
    row_block, token, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, inner = row_block * ROWS + tl.arange(0, ROWS), tl.arange(0, INNER)
    is_row = rows < I
    base = PARAMETERS + tl.load(MEMBER + slot) * size
    output = tl.load(base + out_bias + token * I + rows, mask=is_row, other=0.0)
    for i in range(0, I, INNER):
        is_inner = i + inner < I
        x = tl.load(VALUES + (slot * T + token) * I + i + inner, mask=is_inner, other=0.0)
        address = base + out_weight + (token * I + rows[:, None]) * I + i + inner[None, :]
        w = tl.load(address, mask=is_row[:, None] & is_inner[None, :], other=0.0)
        output += tl.sum(w * x[None, :], axis=1)
    kept = tl.rand(tl.load(SEED + slot), first_draw + token * I + rows) >= dropout
    tl.store(OUTPUTS + (slot * T + token) * I + rows, tl.where(kept, output / (1 - dropout), 0.0), mask=is_row)


@triton.jit
def normalize(x, is_inner, I: tl.constexpr):
    """A vector (0 outside is_inner), centered and scaled to variance 1, and the scale."""
    centered = tl.where(is_inner, x - tl.sum(x, axis=0) / I, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centered * centered, axis=0) / I + 1e-6)
    return centered * scale, scale


@triton.jit
def normalize_backward(d_normed, normed, scale, I: tl.constexpr):
    """The gradient of x from that of normalize(x)."""
    return scale * (d_normed - tl.sum(d_normed, axis=0) / I - normed * (tl.sum(d_normed * normed, axis=0) / I))


@triton.jit
def bag_values_kernel(
    PARAMETERS, size, OUTPUTS, FEATURES, MEMBER, SEED, BAG_VECTORS, BAG_CONSTANTS, ATTENTION, BAG_POOLED, BAG_VALUES,
    norm_weight, norm_bias, bag_v_weight, bag_v_bias, token_drop,
    first_draw: tl.constexpr, I: tl.constexpr, IP: tl.constexpr, T: tl.constexpr, TP: tl.constexpr, H: tl.constexpr,
    d: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """FEATURES (S x T x I) of the tokens, and for a head of [CLS] its attention over kept tokens and the pooled values.

    A token is kept if its draw is at least token_drop; if there is none, the one with the largest draw is kept.
    ATTENTION: S x H x T, BAG_POOLED: S x H x I, BAG_VALUES: S x I. Grid: H, S.
    """
    head, slot = tl.program_id(0), tl.program_id(1)
    member = tl.load(MEMBER + slot)
    t, i, j = tl.arange(0, TP), tl.arange(0, IP), tl.arange(0, DP)
    is_t, is_i, is_j = t < T, i < I, j < d
    base = PARAMETERS + member * size
    is_ti = is_t[:, None] & is_i[None, :]
    at = t[:, None] * I + i[None, :]
    outputs = tl.load(OUTPUTS + slot * T * I + at, mask=is_ti, other=0.0)
    centered = tl.where(is_i[None, :], outputs - tl.sum(outputs, axis=1)[:, None] / I, 0.0)
    normed = centered * (1.0 / tl.sqrt(tl.sum(centered * centered, axis=1) / I + 1e-6))[:, None]
    gain = tl.load(base + norm_weight + at, mask=is_ti, other=0.0)
    features = normed * gain + tl.load(base + norm_bias + at, mask=is_ti, other=0.0)
    draws = tl.where(is_t, tl.rand(tl.load(SEED + slot), first_draw + t), -1.0)
    kept = is_t & (draws >= token_drop)
    kept = kept | ((draws == tl.max(draws, axis=0)) & (tl.sum(kept.to(tl.int32), axis=0) == 0))
    v = tl.load(BAG_VECTORS + (member * H + head) * I + i, mask=is_i, other=0.0)
    scores = tl.sum(features * v[None, :], axis=1) + tl.load(BAG_CONSTANTS + member * H + head)
    scores = tl.where(kept, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attention = weights / tl.sum(weights, axis=0)
    tl.store(ATTENTION + (slot * H + head) * T + t, attention, mask=is_t)
    pooled = tl.sum(features * attention[:, None], axis=0)
    tl.store(BAG_POOLED + (slot * H + head) * I + i, pooled, mask=is_i)
    if head == 0:
        tl.store(FEATURES + slot * T * I + at, features, mask=is_ti)
    rows = head * d + j
    w = tl.load(base + bag_v_weight + rows[:, None] * I + i[None, :], mask=is_j[:, None] & is_i[None, :], other=0.0)
    values = tl.sum(w * pooled[None, :], axis=1) + tl.load(base + bag_v_bias + rows, mask=is_j, other=0.0)
    tl.store(BAG_VALUES + slot * I + rows, values, mask=is_j)


@triton.jit
def head_kernel(
    PARAMETERS, size, BAG_OUTPUTS, MEMBER, EMBEDDING, LOGITS, norm_weight, norm_bias, head_weight, head_bias,
    TARGET, CLASS_WEIGHTS, SUMS, LOSSES, D_BAG_OUTPUTS, SEED, GRADIENTS, gradients_size, dropout, anchor_weight,
    first_draw: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, I: tl.constexpr, IP: tl.constexpr, A: tl.constexpr,
    BACKWARD: tl.constexpr, ANCHOR: tl.constexpr,
):  # fmt: skip
    """EMBEDDING (S x I) and LOGITS (S x C) of the bags.

    With BACKWARD also LOSSES (S x 2: weighted cross-entropy, anchor), the gradients of the head and the norm, and
    D_BAG_OUTPUTS (S x I). Grid: S.
    """
    slot = tl.program_id(0)
    i, c = tl.arange(0, IP), tl.arange(0, CP)
    is_i, is_c = i < I, c < C
    base = PARAMETERS + tl.load(MEMBER + slot) * size
    normed, scale = normalize(tl.load(BAG_OUTPUTS + slot * I + i, mask=is_i, other=0.0), is_i, I)
    gain = tl.load(base + norm_weight + i, mask=is_i, other=0.0)
    embedding = normed * gain + tl.load(base + norm_bias + i, mask=is_i, other=0.0)
    is_ci = is_c[:, None] & is_i[None, :]
    w = tl.load(base + head_weight + c[:, None] * I + i[None, :], mask=is_ci, other=0.0)
    logits = tl.sum(w * embedding[None, :], axis=1) + tl.load(base + head_bias + c, mask=is_c, other=0.0)
    tl.store(EMBEDDING + slot * I + i, embedding, mask=is_i)
    tl.store(LOGITS + slot * C + c, logits, mask=is_c)
    if BACKWARD:
        gradients = GRADIENTS + slot.to(tl.int64) * gradients_size
        logits = tl.where(is_c, logits, -float("inf"))
        largest = tl.max(logits, axis=0)
        log_total = largest + tl.log(tl.sum(tl.exp(logits - largest), axis=0))
        target = tl.load(TARGET + slot)
        weight = tl.load(CLASS_WEIGHTS + target)
        loss = weight * (log_total - tl.sum(tl.where(c == target, logits, 0.0), axis=0))
        tl.store(LOSSES + slot * 2, loss)
        if ANCHOR:
            divergence = tl.sum(tl.load(SUMS + slot * 3 * A + 2 * A + tl.arange(0, A)), axis=0) / A
            tl.store(LOSSES + slot * 2 + 1, anchor_weight * divergence)
        d_logits = weight * (tl.where(is_c, tl.exp(logits - log_total), 0.0) - tl.where(c == target, 1.0, 0.0))
        tl.store(
            gradients + head_weight + c[:, None] * I + i[None, :], d_logits[:, None] * embedding[None, :], mask=is_ci
        )
        tl.store(gradients + head_bias + c, d_logits, mask=is_c)
        d_embedding = tl.sum(d_logits[:, None] * w, axis=0)
        tl.store(gradients + norm_weight + i, d_embedding * normed, mask=is_i)
        tl.store(gradients + norm_bias + i, d_embedding, mask=is_i)
        d_outputs = normalize_backward(tl.where(is_i, d_embedding * gain, 0.0), normed, scale, I)
        kept = tl.rand(tl.load(SEED + slot), first_draw + i) >= dropout
        tl.store(D_BAG_OUTPUTS + slot * I + i, tl.where(kept, d_outputs / (1 - dropout), 0.0), mask=is_i)


@triton.jit
def output_backward_kernel(
    PARAMETERS, size, VALUES, D_OUTPUTS, D_VALUES, GRADIENTS, gradients_size, out_weight, out_bias,
    T: tl.constexpr, I: tl.constexpr, COLS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """The gradients of W_o and b_o, and D_VALUES = W_o^T D_OUTPUTS (both P x T x I). Grid: column blocks, T, P."""
    column_block, token, member = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns, inner = column_block * COLS + tl.arange(0, COLS), tl.arange(0, INNER)
    is_column = columns < I
    base, gradients = PARAMETERS + member * size, GRADIENTS + member.to(tl.int64) * gradients_size
    values = tl.load(VALUES + (member * T + token) * I + columns, mask=is_column, other=0.0)
    d_values = tl.zeros((COLS,), tl.float32)
    for i in range(0, I, INNER):
        rows = token * I + i + inner
        is_row = i + inner < I
        d_outputs = tl.load(D_OUTPUTS + member * T * I + rows, mask=is_row, other=0.0)
        at = rows[:, None] * I + columns[None, :]
        is_both = is_row[:, None] & is_column[None, :]
        w = tl.load(base + out_weight + at, mask=is_both, other=0.0)
        d_values += tl.sum(w * d_outputs[:, None], axis=0)
        tl.store(gradients + out_weight + at, d_outputs[:, None] * values[None, :], mask=is_both)
        if column_block == 0:
            tl.store(gradients + out_bias + rows, d_outputs, mask=is_row)
    tl.store(D_VALUES + (member * T + token) * I + columns, d_values, mask=is_column)


@triton.jit
def bag_backward_kernel(
    PARAMETERS, size, FEATURES, ATTENTION, BAG_POOLED, D_BAG_VALUES, BAG_VECTORS, BAG_QUERIES, D_FEATURES,
    GRADIENTS, gradients_size, cls, q_weight, q_bias, k_weight, k_bias, v_weight, v_bias, cls_parts, scale,
    I: tl.constexpr, IP: tl.constexpr, T: tl.constexpr, TP: tl.constexpr, H: tl.constexpr, d: tl.constexpr,
    DP: tl.constexpr,
):  # fmt: skip
    """The gradients of the bag block's q, k and v, and D_FEATURES (P x H x T x I) by head.

    Those of [CLS] go to GRADIENTS at cls_parts (H x IP), one part per head. Grid: H, P.
    """
    head, member = tl.program_id(0), tl.program_id(1)
    t, i, j = tl.arange(0, TP), tl.arange(0, IP), tl.arange(0, DP)
    is_t, is_i, is_j = t < T, i < I, j < d
    rows = head * d + j
    base, gradients = PARAMETERS + member * size, GRADIENTS + member.to(tl.int64) * gradients_size
    is_ji, is_ti = is_j[:, None] & is_i[None, :], is_t[:, None] & is_i[None, :]
    at = rows[:, None] * I + i[None, :]
    d_values = tl.load(D_BAG_VALUES + member * I + rows, mask=is_j, other=0.0)
    pooled = tl.load(BAG_POOLED + (member * H + head) * I + i, mask=is_i, other=0.0)
    tl.store(gradients + v_weight + at, d_values[:, None] * pooled[None, :], mask=is_ji)
    tl.store(gradients + v_bias + rows, d_values, mask=is_j)
    d_pooled = tl.sum(tl.load(base + v_weight + at, mask=is_ji, other=0.0) * d_values[:, None], axis=0)
    features = tl.load(FEATURES + (member * T + t[:, None]) * I + i[None, :], mask=is_ti, other=0.0)
    attention = tl.load(ATTENTION + (member * H + head) * T + t, mask=is_t, other=0.0)
    d_attention = tl.sum(features * d_pooled[None, :], axis=1)
    d_scores = attention * (d_attention - tl.sum(attention * d_attention, axis=0))
    v = tl.load(BAG_VECTORS + (member * H + head) * I + i, mask=is_i, other=0.0)
    d_features = attention[:, None] * d_pooled[None, :] + d_scores[:, None] * v[None, :]
    tl.store(D_FEATURES + ((member * H + head) * T + t[:, None]) * I + i[None, :], d_features, mask=is_ti)
    d_vector = tl.sum(d_scores[:, None] * features, axis=0)
    d_constant = tl.sum(d_scores, axis=0)
    q = tl.load(BAG_QUERIES + member * I + rows, mask=is_j, other=0.0)
    d_q = tl.sum(tl.load(base + k_weight + at, mask=is_ji, other=0.0) * d_vector[None, :], axis=1)
    d_q = scale * (d_q + d_constant * tl.load(base + k_bias + rows, mask=is_j, other=0.0))
    tl.store(gradients + k_weight + at, q[:, None] * d_vector[None, :], mask=is_ji)
    tl.store(gradients + k_bias + rows, q * d_constant, mask=is_j)
    token = tl.load(base + cls + i, mask=is_i, other=0.0)
    tl.store(gradients + q_weight + at, d_q[:, None] * token[None, :], mask=is_ji)
    tl.store(gradients + q_bias + rows, d_q, mask=is_j)
    d_token = tl.sum(tl.load(base + q_weight + at, mask=is_ji, other=0.0) * d_q[:, None], axis=0)
    tl.store(gradients + cls_parts + head * IP + i, d_token)


@triton.jit
def token_norm_backward_kernel(
    PARAMETERS, size, OUTPUTS, D_FEATURES, D_OUTPUTS, SEED, GRADIENTS, gradients_size, norm_weight, norm_bias, dropout,
    I: tl.constexpr, IP: tl.constexpr, T: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Backward through norm and dropout of a token: D_FEATURES (P x H x T x I) to D_OUTPUTS (P x T x I). Grid: T, P."""
    token, member = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, IP)
    is_i = i < I
    at = token * I + i
    base, gradients = PARAMETERS + member * size, GRADIENTS + member.to(tl.int64) * gradients_size
    d_features = tl.zeros((IP,), tl.float32)
    for head in range(H):
        d_features += tl.load(D_FEATURES + (member * H + head) * T * I + at, mask=is_i, other=0.0)
    normed, scale = normalize(tl.load(OUTPUTS + member * T * I + at, mask=is_i, other=0.0), is_i, I)
    tl.store(gradients + norm_weight + at, d_features * normed, mask=is_i)
    tl.store(gradients + norm_bias + at, d_features, mask=is_i)
    gain = tl.load(base + norm_weight + at, mask=is_i, other=0.0)
    d_outputs = normalize_backward(d_features * gain, normed, scale, I)
    kept = tl.rand(tl.load(SEED + member), at) >= dropout
    tl.store(D_OUTPUTS + member * T * I + at, tl.where(kept, d_outputs / (1 - dropout), 0.0), mask=is_i)


@triton.jit
def value_backward_kernel(
    PARAMETERS, size, POOLED, D_VALUES, D_POOLED, D_POOLED_POOLED, GRADIENTS, gradients_size, v_weight, v_bias,
    I: tl.constexpr, T: tl.constexpr, H: tl.constexpr, d: tl.constexpr, DP: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """The gradients of W_v and b_v, D_POOLED (P x A x I) = W_v^T D_VALUES, D_POOLED . POOLED (P x A). Grid: A, P."""
    a, member = tl.program_id(0), tl.program_id(1)
    A: tl.constexpr = T * H
    token, head = a // H, a % H
    j, inner = tl.arange(0, DP), tl.arange(0, INNER)
    is_j = j < d
    rows = token * I + head * d + j
    base, gradients = PARAMETERS + member * size, GRADIENTS + member.to(tl.int64) * gradients_size
    d_values = tl.load(D_VALUES + member * T * I + rows, mask=is_j, other=0.0)
    tl.store(gradients + v_bias + rows, d_values, mask=is_j)
    product = 0.0
    for i in range(0, I, INNER):
        is_inner = i + inner < I
        is_both = is_j[:, None] & is_inner[None, :]
        at = rows[:, None] * I + i + inner[None, :]
        pooled = tl.load(POOLED + (member * A + a) * I + i + inner, mask=is_inner, other=0.0)
        w = tl.load(base + v_weight + at, mask=is_both, other=0.0)
        d_pooled = tl.sum(w * d_values[:, None], axis=0)
        tl.store(gradients + v_weight + at, d_values[:, None] * pooled[None, :], mask=is_both)
        tl.store(D_POOLED + (member * A + a) * I + i + inner, d_pooled.to(D_POOLED.dtype.element_ty), mask=is_inner)
        product += tl.sum(d_pooled * pooled, axis=0)
    tl.store(D_POOLED_POOLED + member * A + a, product)


@triton.jit
def fold_backward_kernel(
    PARAMETERS, size, D_VECTORS_PARTS, D_CONSTANTS_PARTS, QUERIES, BAG, LENGTH, GRADIENTS, gradients_size,
    tokens, q_weight, q_bias, k_weight, k_bias, token_parts, scale,
    I: tl.constexpr, T: tl.constexpr, H: tl.constexpr, d: tl.constexpr, DP: tl.constexpr, INNER: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradients of W_q, b_q, W_k, b_k from the partial ones of vectors and constants by `tile_backward_kernel`.

    Those of the tokens go to GRADIENTS at token_parts (H x T x I), one part per head. Grid: A, P.
    """
    a, member = tl.program_id(0), tl.program_id(1)
    A: tl.constexpr = T * H
    token, head = a // H, a % H
    j, inner, parts = tl.arange(0, DP), tl.arange(0, INNER), tl.arange(0, PARTS)
    is_j = j < d
    rows = token * I + head * d + j
    base, gradients = PARAMETERS + member * size, GRADIENTS + member.to(tl.int64) * gradients_size
    q = tl.load(QUERIES + member * T * I + rows, mask=is_j, other=0.0)
    is_part = parts * ROWS < tl.load(LENGTH + tl.load(BAG + member))
    d_constant = tl.sum(tl.load(D_CONSTANTS_PARTS + (member * PARTS + parts) * A + a, mask=is_part, other=0.0), axis=0)
    d_q = d_constant * tl.load(base + k_bias + rows, mask=is_j, other=0.0)
    tl.store(gradients + k_bias + rows, q * d_constant, mask=is_j)
    for i in range(0, I, INNER):
        is_inner = i + inner < I
        is_both = is_j[:, None] & is_inner[None, :]
        at = rows[:, None] * I + i + inner[None, :]
        address = D_VECTORS_PARTS + ((member * PARTS + parts[:, None]) * A + a) * I + i + inner[None, :]
        d_vector = tl.sum(tl.load(address, mask=is_part[:, None] & is_inner[None, :], other=0.0), axis=0)
        w = tl.load(base + k_weight + at, mask=is_both, other=0.0)
        d_q += tl.sum(w * d_vector[None, :], axis=1)
        tl.store(gradients + k_weight + at, q[:, None] * d_vector[None, :], mask=is_both)
    d_q = d_q * scale
    tl.store(gradients + q_bias + rows, d_q, mask=is_j)
    for i in range(0, I, INNER):
        is_inner = i + inner < I
        is_both = is_j[:, None] & is_inner[None, :]
        at = rows[:, None] * I + i + inner[None, :]
        x = tl.load(base + tokens + token * I + i + inner, mask=is_inner, other=0.0)
        w = tl.load(base + q_weight + at, mask=is_both, other=0.0)
        tl.store(gradients + q_weight + at, d_q[:, None] * x[None, :], mask=is_both)
        d_token = tl.sum(w * d_q[:, None], axis=0)
        tl.store(gradients + token_parts + (head * T + token) * I + i + inner, d_token, mask=is_inner)
