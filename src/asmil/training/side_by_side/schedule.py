"""Which trainings take a step together: every training keeps its own order of bags, and waits where that is cheaper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from asmil.models.base import MILModel
from asmil.models.blocks.layers import TileLinear
from asmil.training.turns import MOST_TILES_ON_GPU

MOST_WORK = 4_000_000
"""Weights x tiles of a bag from which on a CPU computes for longer than it starts operations: stacking gains little."""


def work_reason(model: MILModel, tiles: float, device: str) -> str | None:
    """Why steps on bags of this mean length gain nothing side by side; None if they gain."""
    if device != "cpu":
        return None if tiles <= MOST_TILES_ON_GPU else f"the bags are long ({tiles:.0f} tiles on average)"
    work = tile_weights(model) * tiles
    if work <= MOST_WORK:
        return None
    return (
        f"the steps are long: {tile_weights(model):,} weights x {tiles:.0f} tiles per bag; it gains up to {MOST_WORK:,}"
    )


def tile_weights(model: MILModel) -> int:
    """The weights that every tile is multiplied with."""
    return sum(part.weight.numel() for part in model.modules() if isinstance(part, TileLinear))


@dataclass(frozen=True)
class StepCost:
    """What a step of several trainings costs, in microseconds, roughly as measured on a CPU.

    start: starting the operations of the step
    row: one tile (or row of padding) of one training
    training: updating the weights of one training
    choice: gathering the weights of one training, if not all of them take part
    """

    start: float
    row: float
    training: float
    choice: float

    @staticmethod
    def of(model: MILModel, device: str) -> StepCost:
        """The cost for a model; on a GPU, padding costs less than any further step."""
        weights = sum(parameter.numel() for parameter in model.parameters())
        if device != "cpu":
            return StepCost(1e9, 1.0, 0.0, 0.0)
        return StepCost(8000.0, 0.5 + 3.5e-4 * tile_weights(model), 2.5e-3 * weights, 1e-3 * weights)


def common_steps(orders: Sequence[Sequence[Hashable]]) -> Iterator[tuple[Hashable, list[int]]]:
    """Steps that take every training through its order of bags: a bag, and the trainings that take it in this step.

    If all orders are parts of one common order, each bag needs one step. Otherwise a bag needs several.

    >>> list(common_steps([["a", "b", "c"], ["a", "c"], ["b", "c"]]))
    [('a', [0, 1]), ('b', [0, 2]), ('c', [0, 1, 2])]
    """
    position = [0] * len(orders)
    remaining = Counter(key for order in orders for key in order)
    while remaining.total():
        waiting: dict[Hashable, list[int]] = {}
        for number, order in enumerate(orders):
            if position[number] < len(order):
                waiting.setdefault(order[position[number]], []).append(number)
        # a bag that all who need it are waiting for, or else the one that the largest share of them waits for
        key = max(waiting, key=lambda key: len(waiting[key]) / remaining[key])
        for number in waiting[key]:
            position[number] += 1
        remaining[key] -= len(waiting[key])
        yield key, waiting[key]


def padded_steps(orders: Sequence[Sequence[int]], fewest: int, cost: StepCost) -> Iterator[list[int]]:
    """Steps that take every training through bags of these lengths: the trainings that take their next bag.

    The bags of a step are padded to the longest. Each step is the one that does most for its cost: trainings with
    similar lengths go on, and the others wait.

    fewest: bags of fewer tiles are not padded, and share a step only with bags of the same length

    >>> cheap_start = StepCost(start=1, row=1, training=1, choice=1)
    >>> list(padded_steps([[5, 50], [6, 5], [50, 6]], 1, cheap_start))
    [[2], [0, 1, 2], [0], [1]]
    """
    position = [0] * len(orders)
    share = cost.start / max(1, len(orders)) + cost.training
    while waiting := [number for number, order in enumerate(orders) if position[number] < len(order)]:
        lengths = np.array([orders[number][position[number]] for number in waiting])
        by_length = np.argsort(lengths, kind="stable")
        lengths = lengths[by_length]
        first, last = np.arange(len(lengths))[:, None], np.arange(len(lengths))[None, :]
        count = np.maximum(last - first + 1, 0)
        tiles = np.cumsum(lengths)[None, :] - (np.cumsum(lengths) - lengths)[:, None]
        each = cost.row * lengths[None, :] + cost.training + cost.choice * (count < len(orders))
        gain = (count * share + cost.row * tiles) / (cost.start + cost.training + count * each)
        fits = (count > 0) & ((lengths[:, None] >= fewest) | (lengths[:, None] == lengths[None, :]))
        begin, end = np.unravel_index(np.argmax(np.where(fits, gain, -1.0)), gain.shape)
        chosen = [waiting[i] for i in by_length[begin : end + 1]]
        for number in chosen:
            position[number] += 1
        yield chosen
