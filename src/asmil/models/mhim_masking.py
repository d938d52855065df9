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

Everything is computed by masks over all tiles: counts may be tensors, of padded bags and of ratios that are tensors, so
that steps of many trainings can be stacked and recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Draw = Callable[[int], Tensor]
"""Draws this many uniform numbers in [0, 1)."""


@dataclass(frozen=True, slots=True)
class MaskRatios:
    """How much each stage masks; `share` is s, the random share of the high stage's candidates.

    A stage whose ratio is the number 0 draws nothing; `high` may be a tensor.
    """

    random: float = 0.0
    low: float = 0.0
    high: float | Tensor = 0.0
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Mask:
    """The tiles that each stage chose, and those that are kept, N booleans each; as properties, their indices.

    is_tile: false for padding
    """

    is_random: Tensor
    is_low: Tensor
    is_high: Tensor
    is_kept: Tensor
    is_tile: Tensor

    @property
    def random(self) -> Tensor:
        """The tiles of the random stage, ascending."""
        return self.is_random.nonzero().flatten()

    @property
    def low(self) -> Tensor:
        """The tiles of the low stage, ascending."""
        return self.is_low.nonzero().flatten()

    @property
    def high(self) -> Tensor:
        """The tiles of the high stage, ascending."""
        return self.is_high.nonzero().flatten()

    @property
    def kept(self) -> Tensor:
        """The tiles that are not masked, ascending."""
        return self.is_kept.nonzero().flatten()

    @property
    def masked(self) -> Tensor:
        """The masked tiles, ascending."""
        return (self.is_tile & ~self.is_kept).nonzero().flatten()


def choose_masked(scores: Tensor, ratios: MaskRatios, draw: Draw, tiles: Tensor | None = None) -> Mask:
    """The mask for scores A x N (A heads); `draw` is called by the stages that choose at random.

    tiles: N, true for tiles, of a padded bag
    """
    is_tile = torch.ones_like(scores[0], dtype=torch.bool) if tiles is None else tiles
    count: int | Tensor = scores.shape[1] if tiles is None else tiles.sum()
    is_random = is_low = is_high = torch.zeros_like(is_tile)
    if ratios.random > 0:
        is_random = _first(draw(len(is_tile)).to(scores.device), is_tile, _share(count, ratios.random))
    if ratios.low > 0:
        is_low = _is_ranked(scores, is_tile, _share(count, ratios.low), largest=False)
    if isinstance(ratios.high, Tensor) or ratios.high > 0:
        is_high = _choose_high(scores, is_tile, count, ratios, draw)
    chosen = is_tile & (count > 1)
    is_random, is_low, is_high = (stage & chosen for stage in (is_random, is_low, is_high))
    is_kept = is_tile & ~(is_random | is_low | is_high)
    is_kept = torch.where(is_kept.any(), is_kept, _last_kept(scores, is_tile, is_high))
    return Mask(is_random, is_low, is_high, is_kept, is_tile)


def _choose_high(scores: Tensor, is_tile: Tensor, count: int | Tensor, ratios: MaskRatios, draw: Draw) -> Tensor:
    share: float | Tensor = ratios.share
    candidates_ratio = ratios.high / ratios.share
    if isinstance(candidates_ratio, Tensor):
        share = torch.where(candidates_ratio > 1, ratios.high, share)
        candidates_ratio = candidates_ratio.clamp(max=1.0)
    elif candidates_ratio > 1:
        candidates_ratio, share = 1.0, ratios.high
    n_candidates = _share(count, candidates_ratio)
    rank = _ranks(ranked(scores.masked_fill(~is_tile, -torch.inf), n_candidates, largest=True))
    if ratios.share >= 1:
        return rank < n_candidates
    # the number of a candidate is the one at its rank
    numbers = draw(len(is_tile)).to(scores.device)[rank]
    return _first(numbers, rank < n_candidates, _share(n_candidates, share))


def _last_kept(scores: Tensor, is_tile: Tensor, is_high: Tensor) -> Tensor:
    """The tile to keep when all are masked: the highest one that the high stage did not choose, else the lowest."""
    scores = scores.masked_fill(~is_tile, -torch.inf)
    rank = _ranks(ranked(scores, scores.shape[1], largest=True))
    not_chosen = is_tile & ~is_high
    first = rank.masked_fill(~not_chosen, len(rank)).argmin()
    last = rank.masked_fill(~is_tile, -1).argmax()
    return torch.arange(len(rank), device=rank.device) == torch.where(not_chosen.any(), first, last)


def _share(count: int | Tensor, ratio: float | Tensor) -> int | Tensor:
    """A share of a number, rounded up; in float64, like a Python number."""
    if isinstance(count, Tensor):
        return torch.ceil(count.double() * ratio)
    return torch.ceil(count * ratio) if isinstance(ratio, Tensor) else math.ceil(count * ratio)


def _first(numbers: Tensor, among: Tensor, count: int | Tensor) -> Tensor:
    """The first `count` of some (N booleans), by their numbers: N booleans."""
    return (_ranks(numbers.masked_fill(~among, torch.inf).argsort(stable=True)) < count) & among


def _is_ranked(scores: Tensor, is_tile: Tensor, count: int | Tensor, largest: bool) -> Tensor:
    """The first `count` tiles by their scores, N booleans."""
    return _ranks(ranked(scores.masked_fill(~is_tile, -torch.inf if largest else torch.inf), count, largest)) < count


def ranked(scores: Tensor, count: int | Tensor, largest: bool) -> Tensor:
    """All tiles in an order whose first `count` are chosen by the scores (A x N); of equal tiles the earlier one."""
    mean_order = scores.mean(dim=0).argsort(descending=largest, stable=True)
    if scores.shape[0] == 1:
        return mean_order
    marked = _ranks(scores.argsort(dim=1, descending=largest, stable=True)) < count
    votes = marked.sum(dim=0)
    return mean_order[votes[mean_order].argsort(descending=True, stable=True)]


def _ranks(order: Tensor) -> Tensor:
    """Indices by rank (... x N) -> the rank of every index."""
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter(-1, order, places)


def cosine(start: float, end: float, step: int | Tensor, steps: int | Tensor) -> Any:
    """From `start` at step 0 along half a cosine; `end` would be reached one step after the last.

    Tensors give a tensor, in float64.
    """
    if isinstance(step, Tensor):
        return end + (start - end) * (1 + torch.cos(math.pi * step.double() / steps)) / 2
    return end + (start - end) * (1 + math.cos(math.pi * step / steps)) / 2
