"""Which tiles of a bag are masked, and how that and a teacher's momentum change over a training (the rules of MHIM).

Three stages, each optional; each ranks all N tiles, and the tiles that any of them chooses are masked:

    random, ratio r     ceil(N r) tiles, uniformly
    low, ratio l        the ceil(N l) tiles with the lowest scores
    high, ratio h       of the ceil(N h / s) tiles with the highest scores a random share s, rounded up
                        (h / s > 1: of all tiles a random share h; s = 1: not random, the ceil(N h) highest)

Scores of several heads are ranked by votes: every head marks its first k tiles, and the k tiles with the most votes
are chosen; among equal votes those that come first by the mean over heads, where the official code leaves the choice
to the order in which a device happens to sort. The products are those of floating point, as in the official code:
ceil(100 * 0.07) is 8.

At least one tile is always kept, and a bag of one tile is not masked; the official code crashes there or reads an
empty bag.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Draw = Callable[[int], Tensor]
"""Draws this many uniform numbers in [0, 1)."""


@dataclass(frozen=True, slots=True)
class MaskRatios:
    """How much each stage masks; `share` is s, the random share of the high stage's candidates."""

    random: float = 0.0
    low: float = 0.0
    high: float = 0.0
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Mask:
    """The tiles chosen by each stage, and the kept and masked ones: indices, each ascending."""

    random: Tensor
    low: Tensor
    high: Tensor
    kept: Tensor
    masked: Tensor


def choose_masked(scores: Tensor, ratios: MaskRatios, draw: Draw) -> Mask:
    """The mask for scores A x N (A heads); `draw` is called by the stages that choose at random."""
    n_tiles = scores.shape[1]
    none = torch.zeros(0, dtype=torch.int64, device=scores.device)
    if n_tiles == 1:
        return Mask(none, none, none, none.new_zeros(1), none)
    all_tiles = torch.arange(n_tiles, device=scores.device)
    random = random_share(all_tiles, ratios.random, draw) if ratios.random > 0 else none
    low = ranked(scores, math.ceil(n_tiles * ratios.low), largest=False) if ratios.low > 0 else none
    high = _choose_high(scores, ratios.high, ratios.share, draw) if ratios.high > 0 else none
    is_kept = torch.ones(n_tiles, dtype=torch.bool, device=scores.device)
    is_kept[torch.cat([random, low, high])] = False
    kept = is_kept.nonzero().flatten()
    if len(kept) == 0:
        kept = _last_kept(scores, high)
        is_kept[kept] = True
    return Mask(random.sort().values, low.sort().values, high.sort().values, kept, (~is_kept).nonzero().flatten())


def _choose_high(scores: Tensor, ratio: float, share: float, draw: Draw) -> Tensor:
    n_tiles = scores.shape[1]
    candidates_ratio = ratio / share
    if candidates_ratio > 1:
        candidates_ratio, share = 1.0, ratio
    candidates = ranked(scores, math.ceil(n_tiles * candidates_ratio), largest=True)
    return candidates if share >= 1 else random_share(candidates, share, draw)


def _last_kept(scores: Tensor, high: Tensor) -> Tensor:
    """The tile to keep when all are masked: the highest one that the high stage did not choose, else the lowest."""
    order = ranked(scores, scores.shape[1], largest=True)
    not_chosen = order[~torch.isin(order, high)]
    return not_chosen[:1] if len(not_chosen) else order[-1:]


def random_share(indices: Tensor, share: float, draw: Draw) -> Tensor:
    """A random share of the indices, rounded up."""
    count = math.ceil(len(indices) * share)
    return indices[draw(len(indices)).to(indices.device).argsort()[:count]]


def ranked(scores: Tensor, count: int, largest: bool) -> Tensor:
    """The first `count` tiles by their scores (A x N), the first one first; of equal tiles the earlier one."""
    mean_order = scores.mean(dim=0).sort(descending=largest, stable=True).indices
    if scores.shape[0] == 1:
        return mean_order[:count]
    marked = scores.sort(dim=1, descending=largest, stable=True).indices[:, :count]
    votes = torch.bincount(marked.flatten(), minlength=scores.shape[1])
    return mean_order[votes[mean_order].sort(descending=True, stable=True).indices[:count]]


def cosine(start: float, end: float, step: int, steps: int) -> float:
    """From `start` at step 0 along half a cosine; `end` would be reached one step after the last."""
    return end + (start - end) * (1 + math.cos(math.pi * step / steps)) / 2
