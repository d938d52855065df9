"""The tiles with the highest scores of each row.

On a GPU a row of a few thousand scores is searched by one block of threads, in tens of microseconds. There, long rows
are cut into pieces that are searched in parallel, and then the best of the pieces are searched.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from asmil.models.blocks.layers import many_on_gpu

PIECE = 512


def top_tiles(scores: Tensor, top: int) -> Tensor:
    """A x N -> A x min(top, N): the indices of the highest scores of each row, the highest first; without gradient."""
    scores, tiles = scores.detach(), scores.shape[1]
    if tiles < 4 * PIECE or top > PIECE or not many_on_gpu(scores.t()):
        return scores.topk(min(top, tiles), dim=1).indices
    return search_pieces(scores, top)


def search_pieces(scores: Tensor, top: int) -> Tensor:
    """The same, piece by piece, for at least `top` tiles; `top` is at most `PIECE`."""
    pieces = functional.pad(scores, (0, -scores.shape[1] % PIECE), value=-torch.inf).unflatten(1, (-1, PIECE))
    candidates = pieces.topk(top, dim=2, sorted=False)
    first = torch.arange(0, pieces.shape[1] * PIECE, PIECE, device=scores.device)
    tiles = (candidates.indices + first[:, None]).flatten(start_dim=1)
    return tiles.gather(1, candidates.values.flatten(start_dim=1).topk(top, dim=1).indices)
