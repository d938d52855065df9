"""Operations that take the tensors of many trainings at once, usable inside `torch.vmap` over the trainings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class StackedFunction(torch.autograd.Function):
    """`forward` and `backward` get n x ..., where the caller has the tensor of one of n trainings, inside `torch.vmap`.

    What all trainings share is repeated. Gradients are taken outside of `torch.vmap`.
    """

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, int]:
        """The rule of `torch.vmap`."""
        stacked = (_stacked(*pair, info.batch_size) for pair in zip(arguments, in_dims, strict=True))
        return cls.apply(*stacked), 0  # type: ignore[no-untyped-call]


def _stacked(argument: Any, dim: int | None, count: int) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    return argument.expand(count, *argument.shape) if dim is None else argument.movedim(dim, 0)
