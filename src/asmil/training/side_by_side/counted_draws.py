"""Random numbers on a GPU: a function of the training, the number of its step and the index of a value.

They are drawn where they are used, forward and again backward, so a step hands out one seed per slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from asmil.training.loop import Trainer
from asmil.training.side_by_side.draws import StackedDraws
from asmil.training.side_by_side.kernels import draw_kernel
from asmil.training.side_by_side.rehearsal import BagLoss
from asmil.training.side_by_side.stacked_function import StackedFunction

BLOCK = 256


class CountedDraws(StackedDraws):
    """Who takes part in a step, and its padding, change no number.

    keys: R, a random number for each training
    steps: R, the number of its next step
    """

    def __init__(self, form: BagLoss, trainers: Sequence[Trainer], like: Tensor, target: Tensor) -> None:
        super().__init__(form, [trainer.generator for trainer in trainers], like, target)
        self.as_plain = False
        self.keys = torch.tensor([trainer.random_key for trainer in trainers], device=like.device)
        self.steps = torch.tensor([trainer.progress.step for trainer in trainers], device=like.device)
        self._seed, self._used = self.keys, 0

    def draw(self, trainings: Sequence[int | None], lengths: Sequence[int], padded: int) -> list[Tensor]:
        """The seeds of a step, n."""
        numbers = torch.tensor([number or 0 for number in trainings], device=self.keys.device)
        return [(self.keys[numbers] << 32) | self.steps[numbers]]

    def without_padding(self, drawn: Sequence[Tensor], tiles: int) -> list[Tensor]:
        """The seeds: padding changes no number."""
        return list(drawn)

    @contextmanager
    def handing_out(self, numbers: Sequence[Tensor]) -> Iterator[None]:
        """A block in which one training pass draws with this seed."""
        (self._seed,), self._used = numbers, 0
        yield

    def take(self, uses: int, p: float) -> tuple[Tensor, int]:
        """The seed, and the first of so many uses of random numbers; none if nothing is dropped (p = 0)."""
        first = self._used
        self._used += uses if p else 0
        return self._seed, first

    def _uniform(self, shape: tuple[int, ...] | torch.Size, like: Tensor) -> Tensor:
        numbers: Tensor = _Uniform.apply(*self.take(1, 1.0), tuple(shape))  # type: ignore[no-untyped-call]
        return numbers

    def _drop(self, x: Tensor, p: float) -> Tensor:
        dropped: Tensor = _Dropped.apply(x, *self.take(1, p), p)  # type: ignore[no-untyped-call]
        return dropped


def draw(seeds: Tensor, use: int, shape: Sequence[int], p: float | None = None, x: Tensor | None = None) -> Tensor:
    """Uniform numbers of a shape for each of n seeds, n x ...; with p and x (n x ...), x with dropout.

    seeds: n, or a single one without an axis; then x and the result have none, either
    """
    out = torch.empty(*seeds.shape, *shape, device=seeds.device, dtype=torch.float32 if x is None else x.dtype)
    *outer, middle, inner = (1, 1, *shape)
    outermost = torch.Size(outer).numel()
    blocks = -(-outermost * middle * -(-inner // 4) // BLOCK)
    factor = 1 / (1 - p) if p is not None else 1.0
    draw_kernel[(blocks, seeds.numel())](seeds, x, out, use, p or 0.0, factor, outermost, middle, inner, BLOCK)
    return out


class _Uniform(StackedFunction):
    @staticmethod
    def forward(seeds: Tensor, use: int, shape: tuple[int, ...]) -> Tensor:
        return draw(seeds, use, shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)


class _Dropped(StackedFunction):
    @staticmethod
    def forward(x: Tensor, seeds: Tensor, use: int, p: float) -> Tensor:
        return draw(seeds, use, x.shape[seeds.ndim :], p, x.contiguous())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, seeds, ctx.use, ctx.p = inputs
        ctx.save_for_backward(seeds)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (seeds,) = ctx.saved_tensors
        shape = gradients[0].shape[seeds.ndim :]
        return draw(seeds, ctx.use, shape, ctx.p, gradients[0].contiguous()), None, None, None
