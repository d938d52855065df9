"""Passes over all tiles as one kernel each, in a recorded training step on a GPU (`training/graphed`).

    gate:          act(V h) * sigmoid(U h), with dropout on both factors         N x 2L -> N x L
    relu_dropout:  ReLU, then dropout                                            N x I  -> N x I

Torch computes each of them in three to seven passes, forward and backward, and keeps masks. Here the backward pass
computes the activations again, and draws the same random numbers again from the seed of the pass, which comes from the
training's generator. Elsewhere `one_pass` is False, and blocks compute them operation by operation.
"""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from asmil.models.blocks.layers import many_on_gpu
from asmil.models.blocks.randomness import holding

_recorded: ContextVar[bool] = ContextVar("tiles are passed over in single kernels", default=False)
HAS_TRITON = importlib.util.find_spec("triton") is not None
BLOCK = 512


def single_passes() -> AbstractContextManager[None]:
    """A block in which passes over tiles are single kernels, if there are Triton and a GPU."""
    return holding(_recorded, True)


def one_pass(tiles: Tensor) -> bool:
    """Whether the functions of this module apply to these rows."""
    return _recorded.get() and HAS_TRITON and many_on_gpu(tiles)


def gate(products: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """tanh of the first half of each row times the sigmoid of the second, both with dropout p."""
    return _Gate.apply(products.contiguous(), p, _seed(products, p, generator))  # type: ignore[no-untyped-call]


def relu_dropout(tiles: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """ReLU, then dropout p > 0."""
    return _ReluDropout.apply(tiles.contiguous(), p, _seed(tiles, p, generator))  # type: ignore[no-untyped-call]


def _seed(like: Tensor, p: float, generator: torch.Generator | None) -> Tensor | None:
    """A random number on the device for the kernels of one pass; None without dropout."""
    return torch.randint(2**31 - 1, (1,), generator=generator, device=like.device) if p else None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, products: Tensor, p: float, seed: Tensor | None) -> Tensor:
        from asmil.models.blocks.tile_kernels import gate_forward

        rows, width = len(products), products.shape[1] // 2
        out = products.new_empty(rows, width)
        gate_forward[_grid(out, 2)](products, out, seed, out.numel(), width, p, seed is not None, BLOCK)
        ctx.save_for_backward(products, *([] if seed is None else [seed]))
        ctx.p = p
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        from asmil.models.blocks.tile_kernels import gate_backward

        products, *seeds = ctx.saved_tensors
        gradient, out = gradients[0].contiguous(), torch.empty_like(products)
        seed = seeds[0] if seeds else None
        width = products.shape[1] // 2
        gate_backward[_grid(gradient, 2)](
            products, gradient, out, seed, gradient.numel(), width, ctx.p, seed is not None, BLOCK
        )
        return out, None, None


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tiles: Tensor, p: float, seed: Tensor) -> Tensor:
        from asmil.models.blocks.tile_kernels import relu_dropout_forward

        out = torch.empty_like(tiles)
        relu_dropout_forward[_grid(out, 4)](tiles, out, seed, out.numel(), p, BLOCK)
        ctx.save_for_backward(out)
        ctx.p = p
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        from asmil.models.blocks.tile_kernels import relu_dropout_backward

        (kept,) = ctx.saved_tensors
        gradient, out = gradients[0].contiguous(), torch.empty_like(kept)
        relu_dropout_backward[_grid(out, 1)](kept, gradient, out, out.numel(), ctx.p, BLOCK)
        return out, None, None


def _grid(values: Tensor, blocks: int) -> tuple[int]:
    """As many programs as cover all values with this many blocks each."""
    return (-(-values.numel() // (blocks * BLOCK)),)
