"""Further measures of attention, which no report shows, beside `asmil.attention.measures`: in nats.

p and q are attentions over the same N tiles: N weights, at least 0, with the sum 1.
"""

from __future__ import annotations

import math

import numpy as np

from asmil.attention.measures import entropy, heaviest
from asmil.tables.arrays import Floats

ROUNDING = 1e-12


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
    """How many of the heaviest tiles hold the share of the weight."""
    held = np.cumsum(np.sort(p)[::-1])
    return min(int(np.searchsorted(held, share - ROUNDING)) + 1, len(p))


def top_k_jaccard(p: Floats, q: Floats, k: int) -> float:
    """The k heaviest tiles of both over those of either; of equal weights the first tiles count."""
    first, second = (heaviest(attention, min(k, len(attention))) for attention in (p, q))
    return float((first & second).sum() / (first | second).sum())


def kl_divergence(p: Floats, q: Floats) -> float:
    """`KL(p || q) = sum p ln(p / q)`; infinite where a tile has weight in p and none in q."""
    inside = p > 0
    if (q[inside] == 0).any():
        return math.inf
    return max(0.0, float((p[inside] * (np.log(p[inside]) - np.log(q[inside]))).sum()))


def total_variation(p: Floats, q: Floats) -> float:
    """`sum |p - q| / 2`: how much weight changed its tile."""
    return float(np.abs(p - q).sum() / 2)


def kendall_tau_b(p: Floats, q: Floats) -> float:
    """Kendall's rank correlation with its correction for ties; nan where one attention is constant."""
    from scipy.stats import kendalltau

    if np.ptp(p) == 0 or np.ptp(q) == 0:
        return math.nan
    return float(kendalltau(p, q).statistic)
