"""Random modules of models, which draw from a given generator.

With its own generator a training can be resumed bit for bit, and several seeds can be trained side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from asmil.errors import AsmilError

FEW = 4096
"""For fewer values, setting up a fast generator takes longer than it saves."""

Value = TypeVar("Value")
_batched: ContextVar[bool] = ContextVar("draws for many bags at once", default=False)


@contextmanager
def holding(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """A block in which a context variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def batched_draws() -> AbstractContextManager[None]:
    """A block in which random parts run under `torch.vmap`, where no single number can be read."""
    return holding(_batched, True)


def draws_batched() -> bool:
    """Whether this is inside a `batched_draws` block."""
    return _batched.get()


class RandomModule(nn.Module):
    """A module that draws random numbers while training, from `generator` (None: torch's global one)."""

    def __init__(self) -> None:
        super().__init__()
        self.generator: torch.Generator | None = None

    def uniform(self, shape: tuple[int, ...] | torch.Size, like: Tensor) -> Tensor:
        """Uniform numbers in [0, 1), drawn on the generator's device and moved to that of `like`."""
        device = like.device if self.generator is None else self.generator.device
        return torch.rand(shape, generator=self.generator, device=device).to(like.device)

    def drop(self, x: Tensor, p: float) -> Tensor:
        """Values of x set to 0 with probability p, the others divided by 1 - p."""
        on_gpu = x.device.type == "cuda" and (self.generator is None or self.generator.device.type == "cuda")
        if on_gpu and not _batched.get():
            kept = torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1 - p, generator=self.generator)
            return _Kept.apply(x, kept, 1 / (1 - p))  # type: ignore[no-untyped-call]
        if not draws_fast(x) or _batched.get():
            return x * (self.uniform(x.shape, x) >= p) / (1 - p)
        kept, factor = fast_dropout(x.shape, p, self.generator)
        return x * kept.to(x.dtype).mul_(factor)


def draws_fast(x: Tensor) -> bool:
    """Whether dropout of these values is drawn by `fast_dropout`."""
    return x.device.type == "cpu" and x.numel() >= FEW


def fast_dropout(shape: torch.Size, p: float, generator: torch.Generator | None) -> tuple[Tensor, float]:
    """Which values dropout keeps, and the factor of these.

    Four numbers of 16 bits from every draw of a fast generator that one draw of the given one seeds: several times
    faster than a float for every value. p is rounded to 16 bits, and the factor made to fit.
    """
    count = shape.numel()
    seed = int(torch.randint(2**62, (), generator=generator))
    raw = np.random.SFC64(seed).random_raw(-(-count // 4)).view(np.int16)[:count]
    dropped = min(round(p * 2**16), 2**16 - 1)
    kept = raw >= np.int16(dropped - 2**15)  # torch compares with a number eight times slower
    return torch.from_numpy(kept).view(shape), 2**16 / (2**16 - dropped)


class _Kept(torch.autograd.Function):
    """x * kept * scale in one pass, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return torch.ops.aten.native_dropout_backward(x, kept, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(gradients[0], kept, ctx.scale), None, None


def use_generator(module: nn.Module, generator: torch.Generator | None) -> None:
    """Hand `generator` to every random part of `module`."""
    for part in module.modules():
        if isinstance(part, RandomModule):
            part.generator = generator


class Dropout(RandomModule):
    """Dropout whose mask comes from the generator: values are dropped with probability p, the rest scaled."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise AsmilError(f"dropout = {p}: it must be at least 0 and below 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return self.drop(x, self.p)


class TileDropout(Dropout):
    """Dropout of whole rows: all values of a tile are dropped together, the other tiles are scaled."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * self.drop(x.new_ones(x.shape[0], 1), self.p)
