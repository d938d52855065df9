"""The random numbers of a step of several trainings, each drawn from the generator of its training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from asmil.models.blocks.randomness import RandomModule, draws_fast, fast_dropout
from asmil.training.side_by_side.rehearsal import BagLoss


class Draw(NamedTuple):
    """One use of random numbers in a training pass: uniform numbers, or dropout with probability p."""

    shape: tuple[int, ...]
    p: float | None


class StackedDraws:
    """Replaces the random modules of a form: the numbers of a step are drawn before it, and handed out in its order.

    Each training draws what it would draw alone: for a padded bag, the numbers of its tiles. A training that does not
    take part in a step draws nothing, so its generator does not advance.

    like: features of a bag, on the device of the trainings
    target: of a bag
    as_plain: whether the plain loop draws the same numbers
    """

    def __init__(self, form: BagLoss, generators: Sequence[torch.Generator], like: Tensor, target: Tensor) -> None:
        self._form, self._like, self._target, self._generators = form, like, target, generators
        self.as_plain = like.device.type == "cpu"
        self._by_tiles: dict[int, list[Draw]] = {}
        self._recorded: list[Draw] | None = None
        self._given: Iterator[Tensor] = iter(())
        for part in form.modules():
            if isinstance(part, RandomModule):
                object.__setattr__(part, "uniform", self._uniform)
                object.__setattr__(part, "drop", self._drop)

    def draw(self, trainings: Sequence[int | None], lengths: Sequence[int], padded: int) -> list[Tensor]:
        """The random numbers of a step, n x ... each, in the order of their use.

        trainings: which training uses each of n bags; None: nobody, so that nothing is drawn
        lengths: tiles of each bag
        padded: tiles of each bag with its padding
        """
        drawn = []
        for use, (shape, p) in enumerate(self._uses(padded)):
            numbers = torch.zeros(len(trainings), *shape, device=self._like.device)
            for slot, (number, length) in enumerate(zip(trainings, lengths, strict=True)):
                if number is not None:
                    own = self._uses(length)[use].shape
                    into = numbers[slot] if own == shape else numbers[slot][tuple(slice(size) for size in own)]
                    self._draw_into(into, self._generators[number], p)
            drawn.append(numbers)
        return drawn

    def padded(self, drawn: Sequence[Sequence[Sequence[Tensor]]], tiles: int) -> list[Tensor]:
        """The numbers of a table of n x K bags, n x K x ... each, with those of the padding up to so many tiles.

        drawn: n x K, the numbers of each bag as `draw` gives them for this bag alone; none if nobody uses them
        """
        tables = []
        for use, (shape, _) in enumerate(self._uses(tiles)):
            table = torch.zeros(len(drawn), len(drawn[0]), *shape, device=self._like.device)
            for row, bags in zip(table, drawn, strict=True):
                for place, own in zip(row, bags, strict=True):
                    if own:
                        numbers = own[use][0]
                        place[tuple(slice(size) for size in numbers.shape)] = numbers
            tables.append(table)
        return tables

    def without_padding(self, drawn: Sequence[Tensor], tiles: int) -> list[Tensor]:
        """The numbers of a step, n x ..., cut to those of a bag of this many tiles."""
        uses = self._uses(tiles)
        return [
            numbers[(slice(None), *(slice(size) for size in use.shape))]
            for numbers, use in zip(drawn, uses, strict=True)
        ]

    @contextmanager
    def handing_out(self, numbers: Sequence[Tensor]) -> Iterator[None]:
        """A block in which one training pass uses these numbers."""
        self._given = iter(numbers)
        yield

    def rewound(self) -> Callable[[], None]:
        """A function that restores the current state of all generators."""
        states = [generator.get_state() for generator in self._generators]

        def rewind() -> None:
            for generator, state in zip(self._generators, states, strict=True):
                generator.set_state(state)

        return rewind

    def _draw_into(self, numbers: Tensor, generator: torch.Generator, p: float | None) -> None:
        """Draw uniform numbers, or the factors of dropout: 0 for what is dropped."""
        if p is not None and draws_fast(numbers):
            kept, factor = fast_dropout(numbers.shape, p, generator)
            torch.mul(kept, factor, out=numbers)
            return
        uniform = torch.rand(numbers.shape, generator=generator, device=generator.device)
        if p is None:
            numbers.copy_(uniform)
        else:
            torch.mul((uniform >= p).to(numbers.device), 1 / (1 - p), out=numbers)

    @torch.no_grad()
    def _uses(self, tiles: int) -> list[Draw]:
        """The uses of random numbers in a training pass over a bag of this many tiles."""
        if tiles not in self._by_tiles:
            self._recorded = []
            rows = self._like[torch.arange(tiles, device=self._like.device) % len(self._like)]
            try:
                self._form(rows, None, self._target)
            finally:
                recorded, self._recorded = self._recorded, None
            self._by_tiles[tiles] = recorded
        return self._by_tiles[tiles]

    def _uniform(self, shape: tuple[int, ...] | torch.Size, like: Tensor) -> Tensor:
        if self._recorded is None:
            return next(self._given)
        self._recorded.append(Draw(tuple(shape), None))
        return torch.rand(shape, device=like.device)

    def _drop(self, x: Tensor, p: float) -> Tensor:
        if self._recorded is None:
            return x * next(self._given)
        self._recorded.append(Draw(tuple(x.shape), p))
        return x
