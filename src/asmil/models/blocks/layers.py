"""Building blocks for tiles: a linear layer, activations, initial weights, chunks of long bags, and precision.

The linear layer has gradients that are cheap on a GPU:

    y_i = W x_i + b        dW = sum_i g_i x_i^T        db = sum_i g_i

There, autograd sums the gradient of a bias row by row, which takes longer than the product itself, and under autocast
it rounds the gradients of weights before it converts them to float32. Here both are products, summed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.blocks.exporting import is_exporting
from asmil.models.blocks.randomness import draws_batched

Activation = Literal["relu", "gelu", "tanh", "leaky_relu"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "leaky_relu": functional.leaky_relu,
}
CHUNK_TILES = 16_384

MANY = 512
"""From this many tiles on, products are faster than sums."""

WIDE_PRODUCTS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
"""Whether torch multiplies half precision to float32."""


def start_linear(module: nn.Module, start: Callable[[Tensor], Tensor] = nn.init.xavier_normal_) -> None:
    """Initialize every linear layer inside `module`: weights by `start`, biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            start(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def floating(tensor: Tensor) -> Tensor:
    """The tensor in float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def full_precision(like: Tensor) -> torch.autocast:
    """A context in which autocast is off, on the device of `like`."""
    return torch.autocast(like.device.type, enabled=False)


def tile_by_tile(function: Callable[..., Tensor], *tiles: Tensor, dim: int = 0, chunk: int = CHUNK_TILES) -> Tensor:
    """`function(*tiles)` for a function that treats every tile (row) on its own, in chunks if no gradient is kept.

    Chunks bound the memory that the function needs. dim: the axis of the tiles in its result; chunk: the most tiles.
    An exported model has no chunks, because their number would be that of the example bag.
    """
    if torch.is_grad_enabled() or is_exporting() or len(tiles[0]) <= chunk:
        return function(*tiles)
    chunks = zip(*(rows.split(chunk) for rows in tiles), strict=True)
    return torch.cat([function(*parts) for parts in chunks], dim=dim)


class TileLinear(nn.Linear):
    """`nn.Linear`, with the gradients of the module's text where they are faster."""

    def forward(self, tiles: Tensor) -> Tensor:
        product = _product_over_tiles(tiles, self.weight, self.bias)
        return super().forward(tiles) if product is None else product


def linear_over_tiles(tiles: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """N x D -> N x I."""
    product = _product_over_tiles(tiles, weight, bias)
    return functional.linear(tiles, weight, bias) if product is None else product


def _product_over_tiles(tiles: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """The product with the gradients of the module's text; None where they are not faster."""
    if not (torch.is_grad_enabled() and many_on_gpu(tiles)):
        return None
    return _TileProduct.apply(tiles, weight, bias)  # type: ignore[no-untyped-call]


def many_on_gpu(tiles: Tensor) -> bool:
    """Whether these are many tiles of one bag on a GPU, whose operations may be replaced by our own."""
    is_bag = tiles.device.type == "cuda" and tiles.ndim == 2 and not draws_batched()
    return is_bag and not is_exporting() and not torch.compiler.is_compiling() and len(tiles) >= MANY


class _TileProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tiles: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        autocast = torch.is_autocast_enabled("cuda")
        dtype = torch.get_autocast_dtype("cuda") if autocast else tiles.dtype
        narrow, rows = weight.to(dtype), tiles.to(dtype)
        ctx.save_for_backward(rows, narrow)
        ctx.types = tiles.dtype, weight.dtype, None if bias is None else bias.dtype
        with torch.autocast("cuda", enabled=False):
            return functional.linear(rows, narrow, None if bias is None else bias.to(dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient,), (rows, weight) = gradients, ctx.saved_tensors
        gradient = gradient.to(rows.dtype)
        of_rows, of_weight, of_bias = ctx.types
        needs_rows, needs_weight, needs_bias = ctx.needs_input_grad
        ones = rows.new_ones(1, len(rows)) if needs_bias else None
        return (
            (gradient @ weight).to(of_rows) if needs_rows else None,
            _product(gradient.t(), rows, of_weight) if needs_weight else None,
            None if ones is None else _product(ones, gradient, of_bias)[0],
        )


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """The product in a type at least as wide as that of its factors."""
    if left.dtype != dtype == torch.float32 and WIDE_PRODUCTS:
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)
