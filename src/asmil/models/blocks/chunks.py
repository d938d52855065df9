"""Long bags in pieces, where tiles do not meet."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from asmil.models.blocks.exporting import is_exporting

CHUNK_TILES = 16_384


def tile_by_tile(function: Callable[..., Tensor], *tiles: Tensor, dim: int = 0) -> Tensor:
    """`function(*tiles)` for a function that treats every tile (row) on its own, in chunks where no gradient is kept.

    Chunks bound the memory of what happens inside the function. dim: where the tiles are in its result.
    An exported model has none: it would keep the number of chunks of the example.
    """
    if torch.is_grad_enabled() or is_exporting() or len(tiles[0]) <= CHUNK_TILES:
        return function(*tiles)
    chunks = zip(*(rows.split(CHUNK_TILES) for rows in tiles), strict=True)
    return torch.cat([function(*chunk) for chunk in chunks], dim=dim)
