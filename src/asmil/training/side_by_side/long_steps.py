"""Steps of several bags: those of similar length are computed at once, in all trainings, and their gradients summed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import functional_call

from asmil.models.blocks.instance_loss import labels_stacked
from asmil.models.blocks.randomness import batched_draws
from asmil.training.side_by_side.bags import CommonBags, NotSideBySide
from asmil.training.side_by_side.draws import StackedDraws
from asmil.training.side_by_side.rehearsal import BagLoss, Moment, Rehearsal
from asmil.training.side_by_side.stack import Stack

Item = TypeVar("Item")
VALUES_AT_ONCE = 1 << 19
"""Memory for the features of bags that are computed at once; more would not fit into the caches of a CPU."""


def refuse_long_steps(rehearsal: Rehearsal) -> None:
    """Raise for methods whose bags of a step depend on each other, or train different weights."""
    if rehearsal.started or rehearsal.moving or rehearsal.form.has_after_step:
        raise NotSideBySide("a step has several bags, and the method updates more than its weights with a step")
    if len(set(rehearsal.reached.values())) > 1:
        raise NotSideBySide("a step has several bags, and the class of a bag decides which weights it trains")


def similar_lengths(
    wanted: Sequence[Sequence[Item]], length: Callable[[Item], int], fewest: int | None, most_rows: int
) -> Iterator[tuple[list[list[Item]], bool]]:
    """The items in tables of one row per training, the longest first; whether they are padded.

    Where a training has fewer items than another one, its row is filled up with items of the other, computed in vain.

    length: tiles of an item
    fewest: items of fewer tiles are not padded; None: none are
    most_rows: tiles of a table, with padding

    >>> list(similar_lengths([[5, 9, 1], [8]], int, fewest=2, most_rows=36))
    [([[9, 5], [8, 5]], True), ([[1], [1]], False)]
    """
    together: dict[int | None, list[list[Item]]] = {}
    for number, items in enumerate(wanted):
        for item in sorted(items, key=length, reverse=True):
            tiles = length(item)
            alike = tiles if fewest is None or tiles < fewest else None
            together.setdefault(alike, [[] for _ in wanted])[number].append(item)
    for alike, rows in together.items():
        longest = max(rows, key=len)
        filled = [own + longest[len(own) :] for own in rows]
        first = 0
        while first < len(longest):
            last = first + max(1, most_rows // (max(length(own[first]) for own in filled) * len(filled)))
            yield [own[first:last] for own in filled], alike is None
            first = last


@dataclass(frozen=True)
class StepBag:
    """A bag in a step: its training, its position in the epoch, its number in the pool, its tiles and its target."""

    training: int
    position: int
    number: int
    tiles: int
    target: Tensor


class LongSteps:
    """Computes the steps of R trainings.

    fewest: bags of fewer tiles are not padded; None: none are
    """

    def __init__(self, form: BagLoss, draws: StackedDraws, bags: CommonBags, stack: Stack, fewest: int | None) -> None:
        self._form, self._draws, self._bags, self._stack, self._fewest = form, draws, bags, stack, fewest

    def take(
        self,
        orders: Sequence[Sequence[StepBag]],
        size: int,
        update: Callable[[Mapping[str, Tensor], dict[int, int]], None],
        moment_of: Callable[[Tensor | None], Moment | None],
    ) -> tuple[Tensor, list[list[int]]]:
        """The steps of an epoch: parts of the losses (m x P), and the rows of each training's bags, in its order.

        size: bags of a step
        update: called after every step with the gradients and the row in them of each training that takes the step
        moment_of: the moments of the next step of some trainings; None: of all
        """
        noted = [[0] * len(order) for order in orders]
        losses: list[Tensor] = []
        taken = 0
        for first in range(0, max(map(len, orders)), size):
            groups = {number: own for number, order in enumerate(orders) if (own := order[first : first + size])}
            drawn = self._draw(groups)
            numbers = None
            if len(groups) < len(orders):
                numbers = torch.tensor(list(groups), device=self._bags.pool.device)
            trained, fixed = self._stack.of(numbers)
            moment = moment_of(numbers)
            gradients = [torch.zeros_like(value) for value in trained.values()]
            most_rows = VALUES_AT_ONCE // self._bags.pool.features.shape[1]
            for table, padded in similar_lengths(list(groups.values()), lambda bag: bag.tiles, self._fewest, most_rows):
                rows = [
                    [bag if bag.training == number else None for bag in row]
                    for row, number in zip(table, groups, strict=True)
                ]
                shares = [[0.0 if bag is None else 1 / len(groups[bag.training]) for bag in row] for row in rows]
                rows_drawn = [[[] if bag is None else drawn[bag.training, bag.position] for bag in row] for row in rows]
                of_bags, values = self._losses(table, padded, numbers, rows_drawn, trained | fixed, moment)
                total = (of_bags * torch.tensor(shares, device=of_bags.device)).sum()
                torch._foreach_add_(gradients, torch.autograd.grad(total, list(trained.values())))
                for bag in (bag for row in rows for bag in row):
                    if bag is not None:
                        noted[bag.training][bag.position] = taken
                    taken += 1
                losses.append(values.flatten(0, 1))
            update(dict(zip(trained, gradients, strict=True)), {number: row for row, number in enumerate(groups)})
        return torch.cat(losses), noted

    def _draw(self, groups: Mapping[int, Sequence[StepBag]]) -> dict[tuple[int, int], list[Tensor]]:
        """The random numbers of every bag, by training and position; each training draws in the order of its bags."""
        return {
            (number, bag.position): self._draws.draw([number], [bag.tiles], bag.tiles)
            for number, group in groups.items()
            for bag in group
        }

    def _losses(
        self,
        table: Sequence[Sequence[StepBag]],
        padded: bool,
        numbers: Tensor | None,
        drawn: Sequence[Sequence[Sequence[Tensor]]],
        tensors: Mapping[str, Tensor],
        moment: Moment | None,
    ) -> tuple[Tensor, Tensor]:
        """The losses of a table of bags, n x K, and their parts, n x K x P.

        numbers: the n trainings; None: all
        drawn: the random numbers of each bag
        tensors: of the trainings, n x ... each
        """
        device, rows = self._bags.pool.device, max(bag.tiles for row in table for bag in row)
        bags = torch.tensor([[bag.number for bag in row] for row in table], device=device)
        features, mask = self._bags.together(bags, rows, numbers, padded=padded)
        targets = torch.stack([torch.stack([bag.target for bag in row]) for row in table]).to(device)

        def of_bag(drawn: list[Tensor], tensors: Any, *bag: Any) -> Any:
            with self._draws.handing_out(drawn):
                return functional_call(self._form, tensors, bag)[:2]

        masked, timed = (None if part is None else 0 for part in (mask, moment))
        of_bags = torch.vmap(of_bag, in_dims=(0, None, 0, masked, 0, None), randomness="same")
        of_trainings = torch.vmap(of_bags, in_dims=(0, 0, 0, masked, 0, timed), randomness="same")
        with batched_draws(), labels_stacked():
            table_drawn = self._draws.padded(drawn, rows)
            losses, parts = of_trainings(table_drawn, dict(tensors), features, mask, targets, moment)
        return losses, parts
