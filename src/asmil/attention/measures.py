"""How attentions differ and how concentrated they are: plain functions in float64, natural logarithm (nats).

An attention is ... x N, every row at least 0 with the sum 1; a result has one number per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from asmil.tables.arrays import Floats

TOP_SHARE = 0.01
FLAT_SHARE = 0.9
"""Attention is flat if its effective tiles are a larger share of all."""
CELLS_AT_ONCE = 1 << 18


def in_blocks(measure: Callable[..., Floats], *attentions: Floats) -> Floats:
    """`measure` of R x N attentions, a few rows at a time, so that no intermediate value is as large as they are."""
    n_rows, n_tiles = attentions[0].shape
    step = max(1, CELLS_AT_ONCE // max(1, n_tiles))
    blocks = [measure(*(one[start : start + step] for one in attentions)) for start in range(0, n_rows, step)]
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
    """`exp(H)`: over how many tiles a uniform attention of the same entropy would lie."""
    return np.minimum(np.exp(entropy(attention)), attention.shape[-1])


def peak_times_n(attention: Floats) -> Floats:
    """`N max a`: how many times its fair share the heaviest tile has."""
    return np.asarray(attention.max(axis=-1) * attention.shape[-1])


def gini(attention: Floats) -> Floats:
    """The Gini coefficient of the weights: 0 if uniform, (N - 1)/N for a single tile."""
    n_tiles = attention.shape[-1]
    places = np.arange(1 - n_tiles, n_tiles, 2, dtype=np.float64)
    return np.asarray(np.clip(np.sort(attention, axis=-1) @ places / n_tiles, 0.0, 1 - 1 / n_tiles))


def top_mass(attention: Floats, share: float = TOP_SHARE) -> Floats:
    """The weight of the heaviest tiles together, the given share of all (rounded up to whole tiles)."""
    count = top_count(attention.shape[-1], share)
    return np.asarray(np.minimum(np.partition(attention, -count, axis=-1)[..., -count:].sum(axis=-1), 1.0))


def top_overlap(p: Floats, q: Floats, share: float = TOP_SHARE) -> Floats:
    """The part of the heaviest tiles of p that are among the heaviest of q; of equal weights the first tiles count."""
    count = top_count(p.shape[-1], share)
    return np.asarray((heaviest(p, count) & heaviest(q, count)).sum(axis=-1) / count)


def top_count(n_tiles: int, share: float = TOP_SHARE) -> int:
    """How many tiles the heaviest share is; at least one.

    >>> top_count(700), top_count(701)
    (7, 8)
    """
    return max(1, math.ceil(round(n_tiles * share, 9)))


def heaviest(attention: Floats, count: int) -> npt.NDArray[np.bool_]:
    """A mask of the `count` heaviest tiles of every row; of equal weights the first tiles count."""
    threshold = np.partition(attention, -count, axis=-1)[..., -count, None]
    above, level = attention > threshold, attention == threshold
    room = count - above.sum(axis=-1, keepdims=True)
    return np.asarray(above | (level & (level.cumsum(axis=-1) <= room)))


def rank_correlation(p: Floats, q: Floats) -> Floats:
    """Spearman's correlation, equal weights with their average rank; NaN where one attention is constant."""
    ranks = [np.apply_along_axis(_average_ranks, -1, one) for one in (p, q)]
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


def _average_ranks(values: Floats) -> Floats:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((counts.cumsum() - (counts - 1) / 2)[place])
