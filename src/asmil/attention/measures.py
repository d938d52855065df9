"""How attentions differ and how concentrated they are: plain functions in float64, natural logarithm (nats).

An attention is ... x N: no weight is negative, and every row sums to 1. A result has one number per row. The functions
from `bits` on, which no report shows, take single attentions of N weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from asmil.tables.arrays import Booleans, Floats

TOP_SHARE = 0.01
FLAT_SHARE = 0.9
"""Attention is flat if its effective tiles are a larger share of all tiles."""
CELLS_AT_ONCE = 1 << 18
ROUNDING = 1e-12


def in_blocks(measure: Callable[..., Floats], *attentions: Floats) -> Floats:
    """`measure` of R x N attentions, a few rows at a time, so that intermediate values stay small."""
    n_rows, n_tiles = attentions[0].shape
    step = max(1, CELLS_AT_ONCE // max(1, n_tiles))
    blocks = [measure(*(rows[start : start + step] for rows in attentions)) for start in range(0, n_rows, step)]
    return np.concatenate(blocks) if blocks else np.zeros(0)


def jsd(p: Floats, q: Floats) -> Floats:
    """The Jensen-Shannon divergence `KL(p || m)/2 + KL(q || m)/2`, m = (p + q)/2; between 0 and ln 2.

    With x = (p - q)/(p + q) it is `sum (p + q)/4 ((1 + x) ln(1 + x) + (1 - x) ln(1 - x))`: no term is negative, so that
    attentions that hardly differ can be distinguished.
    """
    both = p + q
    x = np.divide(np.abs(p - q), both, out=np.zeros_like(both), where=both > 0)
    # Just below 1, where a tile has weight in one attention only: 0 ln 0 would not be a number.
    np.minimum(x, np.nextafter(1.0, 0.0), out=x)
    terms = (1 + x) * np.log1p(x) + (1 - x) * np.log1p(-x)
    return np.asarray(np.clip((both * terms).sum(axis=-1) / 4, 0.0, math.log(2)))


def entropy(attention: Floats) -> Floats:
    """`H = -sum a ln a`: 0 for a single tile, ln N if uniform."""
    positive = attention > 0
    logarithm = np.log(attention, out=np.zeros_like(attention), where=positive)
    return np.asarray(np.clip(-(attention * logarithm).sum(axis=-1), 0.0, math.log(attention.shape[-1])))


def effective_tiles(attention: Floats) -> Floats:
    """`exp(H)`: the number of tiles over which uniform attention has the same entropy."""
    return np.minimum(np.exp(entropy(attention)), attention.shape[-1])


def peak_times_n(attention: Floats) -> Floats:
    """`N max a`: the largest weight as a multiple of the uniform weight."""
    return np.asarray(attention.max(axis=-1) * attention.shape[-1])


def gini(attention: Floats) -> Floats:
    """The Gini coefficient of the weights: 0 if uniform, (N - 1)/N for a single tile."""
    n_tiles = attention.shape[-1]
    ranks = np.arange(1 - n_tiles, n_tiles, 2, dtype=np.float64)
    return np.asarray(np.clip(np.sort(attention, axis=-1) @ ranks / n_tiles, 0.0, 1 - 1 / n_tiles))


def top_mass(attention: Floats, share: float = TOP_SHARE) -> Floats:
    """The weight of the heaviest tiles together, the given share of all (rounded up to whole tiles)."""
    count = top_count(attention.shape[-1], share)
    return np.asarray(np.minimum(np.partition(attention, -count, axis=-1)[..., -count:].sum(axis=-1), 1.0))


def top_overlap(p: Floats, q: Floats, share: float = TOP_SHARE) -> Floats:
    """The share of the heaviest tiles of p that are among the heaviest of q; at ties the first tiles are used."""
    count = top_count(p.shape[-1], share)
    return np.asarray((heaviest(p, count) & heaviest(q, count)).sum(axis=-1) / count)


def top_count(n_tiles: int, share: float = TOP_SHARE) -> int:
    """The number of tiles in the heaviest share; at least one.

    >>> top_count(700), top_count(701)
    (7, 8)
    """
    return max(1, math.ceil(round(n_tiles * share, 9)))


def heaviest(attention: Floats, count: int) -> Booleans:
    """A mask of the `count` heaviest tiles of every row; at ties the first tiles are used."""
    threshold = np.partition(attention, -count, axis=-1)[..., -count, None]
    above, level = attention > threshold, attention == threshold
    room = count - above.sum(axis=-1, keepdims=True)
    return np.asarray(above | (level & (level.cumsum(axis=-1) <= room)))


def rank_correlation(p: Floats, q: Floats) -> Floats:
    """Spearman's correlation, with average ranks at ties; NaN if one attention is constant."""
    from scipy.stats import rankdata

    ranks = [rankdata(attention, axis=-1) for attention in (p, q)]
    first, second = (rank - rank.mean(axis=-1, keepdims=True) for rank in ranks)
    scale = np.sqrt((first**2).sum(axis=-1) * (second**2).sum(axis=-1))
    product = (first * second).sum(axis=-1)
    correlation = np.divide(product, scale, out=np.full(scale.shape, math.nan), where=scale > 0)
    return np.asarray(np.clip(correlation, -1.0, 1.0))


def cross_entropy(logits: npt.NDArray[np.floating], target: int) -> Floats:
    """`-ln softmax(logits)[target]` of ... x C logits."""
    values = np.asarray(logits, dtype=np.float64)
    values = values - values.max(axis=-1, keepdims=True)
    return np.asarray(np.log(np.exp(values).sum(axis=-1)) - values[..., target])


def bits(nats: float) -> float:
    """An entropy or a divergence in bits; the largest Jensen-Shannon divergence, ln 2 nats, is 1 bit."""
    return nats / math.log(2)


def normalized_entropy(p: Floats) -> float:
    """`H / ln N`, 1 if uniform; nan for a single tile."""
    return float(entropy(p)) / math.log(len(p)) if len(p) > 1 else math.nan


def inverse_simpson(p: Floats) -> float:
    """`1 / sum p^2`, an effective number of tiles that is never larger than exp(H)."""
    return 1 / float(np.square(p).sum())


def top_k_mass(p: Floats, k: int) -> float:
    """The weight of the k heaviest tiles together."""
    return float(np.sort(p)[::-1][:k].sum())


def tiles_for_share(p: Floats, share: float = 0.9) -> int:
    """The number of heaviest tiles that together have the share of the weight."""
    held = np.cumsum(np.sort(p)[::-1])
    return min(int(np.searchsorted(held, share - ROUNDING)) + 1, len(p))


def top_k_jaccard(p: Floats, q: Floats, k: int) -> float:
    """The k heaviest tiles of both over those of either; at ties the first tiles are used."""
    first, second = (heaviest(attention, min(k, len(attention))) for attention in (p, q))
    return float((first & second).sum() / (first | second).sum())


def kl_divergence(p: Floats, q: Floats) -> float:
    """`KL(p || q) = sum p ln(p / q)`; infinite where a tile has weight in p and none in q."""
    inside = p > 0
    if (q[inside] == 0).any():
        return math.inf
    return max(0.0, float((p[inside] * (np.log(p[inside]) - np.log(q[inside]))).sum()))


def total_variation(p: Floats, q: Floats) -> float:
    """`sum |p - q| / 2`: the weight that moved to other tiles."""
    return float(np.abs(p - q).sum() / 2)


def kendall_tau_b(p: Floats, q: Floats) -> float:
    """Kendall's rank correlation with its correction for ties; NaN if one attention is constant."""
    from scipy.stats import kendalltau

    if np.ptp(p) == 0 or np.ptp(q) == 0:
        return math.nan
    return float(kendalltau(p, q).statistic)
