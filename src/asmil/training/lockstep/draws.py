"""Randomness side by side: every replica draws from its own generator, as it would alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from asmil.models.blocks.randomness import FEW, RandomModule


class StackedDraws:
    """Stands in for the random parts of a model that runs under `torch.vmap`.

    A replica that has no part in a step draws nothing, so its generator stays where it is.

    active: which replicas take part in the step
    place: within the vmapped function, the replica's number
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._sources = [_source(generator) for generator in generators]
        self.active: Sequence[int] = range(len(generators))
        self.place = torch.tensor(0)

    def install(self, model: nn.Module) -> None:
        """Let every random part of the model draw here."""
        for part in model.modules():
            if isinstance(part, RandomModule):
                object.__setattr__(part, "uniform", self._uniform)
                object.__setattr__(part, "drop", partial(self._drop, part))

    def rewound(self) -> Callable[[], None]:
        """A function that sets all generators back to where they are now."""
        states = [_generator(source).get_state() for source in self._sources]

        def rewind() -> None:
            for source, state in zip(self._sources, states, strict=True):
                _generator(source).set_state(state)

        return rewind

    def _uniform(self, shape: tuple[int, ...] | torch.Size, like: Tensor) -> Tensor:
        return self._stacked(lambda source: source.uniform(shape, like))

    def _drop(self, part: RandomModule, x: Tensor, p: float) -> Tensor:
        if x.device.type != "cpu" or x.numel() < FEW:
            return RandomModule.drop(part, x, p)  # by `_uniform`
        ones = torch.ones(x.shape, dtype=x.dtype)
        return x * self._stacked(lambda source: source.drop(ones, p))

    def _stacked(self, draw: Callable[[RandomModule], Tensor]) -> Tensor:
        """What `draw` gives for the replica at hand."""
        drawn = {replica: draw(self._sources[replica]) for replica in self.active}
        unused = torch.zeros_like(drawn[self.active[0]])
        return torch.stack([drawn.get(replica, unused) for replica in range(len(self._sources))])[self.place]


def _source(generator: torch.Generator) -> RandomModule:
    source = RandomModule()
    source.generator = generator
    return source


def _generator(source: RandomModule) -> torch.Generator:
    assert source.generator is not None
    return source.generator
