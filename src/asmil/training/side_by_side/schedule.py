"""Which trainings take a step together: every training keeps its own order of bags, and waits where that is cheaper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.models.base import MILModel
from asmil.models.blocks.layers import TileLinear
from asmil.training.resident import ResidentBags
from asmil.training.turns import MOST_TILES_ON_GPU, padded_length, step_bytes

MOST_WORK = 12_000_000
"""Weights x tiles of a bag from which on a CPU computes for longer than it starts operations: stacking gains little."""


MOST_AT_ONCE = {"cpu": 32, "cuda": 64}
"""Trainings side by side, by kind of device; with more, their weights no longer fit into the caches of a CPU."""


def work_reason(model: MILModel, tiles: float, device: str) -> str | None:
    """Why steps on bags of this mean length gain nothing side by side; None if they gain."""
    if device != "cpu":
        return None if tiles <= MOST_TILES_ON_GPU else f"the bags are long ({tiles:.0f} tiles on average)"
    work = tile_weights(model) * tiles
    if work <= MOST_WORK:
        return None
    return f"it is no faster here: {tile_weights(model):,} weights x {tiles:.0f} tiles per bag exceed {MOST_WORK:,}"


def trainings_that_fit(model: MILModel, pool: ResidentBags) -> int:
    """How many trainings are side by side on a device, in addition to these bags; at least 1."""
    return pool.trainings_that_fit(step_bytes(model, max(pool.sizes)), MOST_AT_ONCE[pool.device.type])


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
        return StepCost(8000.0, 0.5 + 6e-5 * tile_weights(model), 2.5e-3 * weights, 1e-3 * weights)


@dataclass(frozen=True)
class RecordedTurn:
    """One step on a GPU, which computes as many slots and rows as a recorded one.

    due: by slot, the training that takes the step, or -1 - training if it is computed in vain; if there are as many
        slots as trainings, each has its own
    rows: of every bag, including padding
    padded: whether there may be padding
    """

    due: npt.NDArray[np.int32]
    rows: int
    padded: bool


def recorded_turns(
    orders: Sequence[Sequence[int]], fewest: int | None, few: int, rows_of: Callable[[int], int] | None = None
) -> list[RecordedTurn]:
    """Steps that take every training through bags of these lengths, on a GPU, where padding costs little.

    Everyone whose next bag can be padded takes the same steps. Bags that cannot (with fewer than `fewest` tiles; None:
    all bags) share a step with at most `few` of the same length, and their trainings wait for each other.

    rows_of: the rows that a bag of a length must be padded to; then any number shares a step of the same rows

    >>> [(turn.due.tolist(), turn.rows) for turn in recorded_turns([[5, 9], [6], [2, 5]], 4, 2)]
    [([0, 1, -3], 8), ([2, -1], 2), ([0, -2, 2], 16)]
    """
    everyone = np.arange(len(orders), dtype=np.int32)
    position = np.zeros(len(orders), dtype=np.int64)
    own_rows = rows_of or int
    kinds = [[own_rows(length) if fewest is None or length < fewest else None for length in order] for order in orders]
    remaining = Counter(kind for order in kinds for kind in order)
    turns = []
    while remaining.total():
        waiting: dict[int | None, list[int]] = {}
        for number, at in enumerate(position.tolist()):
            if at < len(kinds[number]):
                waiting.setdefault(kinds[number][at], []).append(number)
        kind = max(waiting, key=lambda kind: (len(waiting[kind]) / remaining[kind] ** 0.5, kind is None))
        taking = waiting[kind] if kind is None or rows_of else waiting[kind][:few]
        slots = max(few, 1 << (len(taking) - 1).bit_length())
        rows = kind or padded_length(max(orders[number][position[number]] for number in taking), fewest or 1)
        if kind is None or slots >= len(orders):
            due = -1 - everyone
            due[taking] = taking
        else:
            due = np.full(slots, -1, dtype=np.int32)
            due[: len(taking)] = taking
        turns.append(RecordedTurn(due, rows, padded=kind is None or rows_of is not None))
        position[taking] += 1
        remaining[kind] -= len(taking)
    return turns


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
