"""CAMIL's parts: how alike neighboring tiles are, and the value residual of its official code."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from asmil.errors import AsmilError
from asmil.models.blocks.nystrom import ValueResidual

_CHUNK_CENTERS = 256


def paper_similarity(features: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Every tile's edge to itself (weight 1), then the edges, with weights exp(-||x_i - x_j|| / sqrt(D)).

    features: N x D, any floating type; edges: 2 x E, [center, neighbor], without self
    """
    edges, rank = _ranked(edges, len(features))
    distances = _compared(features, edges, rank, lambda x, near: (near - x.unsqueeze(1)).norm(dim=2))
    weights = torch.exp(-distances / math.sqrt(features.shape[1]))
    return _with_selves(edges, weights, weights.new_ones(len(features)))


def official_similarity(features: Tensor, edges: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Every tile's edge to itself, then those to its first `keep` neighbors, with weights exp(-d).

    d is the cosine distance (0 where a tile is all zeros), divided by the L2 norm of ALL listed distances of the
    center, kept or not. A tile's weight to itself is its largest to a listed neighbor (1 without neighbors).

    features: N x D, any floating type; edges: 2 x E, [center, neighbor], nearest first within a center, without self
    """
    n_tiles = len(features)
    edges, rank = _ranked(edges, n_tiles)
    distances = _compared(features, edges, rank, _cosine_distance)
    squares = distances.new_zeros(n_tiles).index_add_(0, edges[0], distances.square())
    norms = torch.where(squares > 0, squares.sqrt(), 1.0)
    weights = torch.exp(-distances / norms[edges[0]])
    own = weights.new_ones(n_tiles).scatter_reduce_(0, edges[0], weights, "amax", include_self=False)
    kept = rank < keep
    return _with_selves(edges[:, kept], weights[kept], own)


def _cosine_distance(x: Tensor, near: Tensor) -> Tensor:
    """n x D and n x K x D -> n x K."""
    lengths = x.norm(dim=1, keepdim=True) * near.norm(dim=2)
    return torch.where(lengths > 0, 1 - torch.bmm(near, x.unsqueeze(2)).squeeze(2) / lengths, 0.0)


def _ranked(edges: Tensor, n_tiles: int) -> tuple[Tensor, Tensor]:
    """The edges by center, in their order within one, and the place of each among its center's."""
    edges = edges[:, torch.argsort(edges[0], stable=True)]
    counts = torch.bincount(edges[0], minlength=n_tiles)
    return edges, torch.arange(edges.shape[1], device=edges.device) - (counts.cumsum(0) - counts)[edges[0]]


def _compared(features: Tensor, edges: Tensor, rank: Tensor, compare: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`compare(centers n x D, their neighbors n x K x D) -> n x K` for every edge, some centers at a time: E."""
    if edges.shape[1] == 0:
        return torch.zeros(0, device=edges.device)
    table = torch.arange(len(features), device=edges.device).unsqueeze(1).repeat(1, int(rank.max()) + 1)
    table[edges[0], rank] = edges[1]
    parts = zip(features.split(_CHUNK_CENTERS), table.split(_CHUNK_CENTERS), strict=True)
    values = torch.cat([compare(rows.float(), features[near].float()) for rows, near in parts])
    return values[edges[0], rank]


def _with_selves(edges: Tensor, weights: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    selves = torch.arange(len(own), device=edges.device).expand(2, -1)
    return torch.cat([selves, edges], dim=1), torch.cat([own, weights])


class HeadConvolution(ValueResidual):
    """The official value residual: a convolution over the HEADS of every token, in blocks of features.

        out[a, s, o] = sum_{b, c} values[b, s, block(o) p + c] weight[b - a + kernel // 2, c, o]      a, b heads

    The published layout has channels and heads exchanged, so it mixes heads and blocks of p = h / H features and leaves
    neighboring tokens alone. Only offsets below H matter: it is one (H p) x (H p) matrix a block.
    weight: kernel x p x h
    """

    reach = 0

    def __init__(self, heads: int, head_width: int, kernel: int) -> None:
        super().__init__()
        if head_width % heads:
            raise AsmilError(
                f"head_width = {head_width}: the official value residual needs a multiple of the {heads} heads"
            )
        self.heads = heads
        block = head_width // heads
        self.weight = nn.Parameter(torch.empty(kernel, block, head_width))
        bound = math.sqrt(6 / (kernel * (block + head_width)))
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, values: Tensor) -> Tensor:
        heads, n_tokens, width = values.shape
        by_block = values.view(heads, n_tokens, self.heads, -1).permute(2, 1, 0, 3).reshape(self.heads, n_tokens, -1)
        mixed = by_block @ self._matrices().to(values.dtype)
        return mixed.view(self.heads, n_tokens, heads, -1).permute(2, 1, 0, 3).reshape(heads, n_tokens, width)

    def _matrices(self) -> Tensor:
        """H x (H p) x (H p), from (head, feature) to (head, feature)."""
        kernel, block, _ = self.weight.shape
        head = torch.arange(self.heads, device=self.weight.device)
        offset = head.unsqueeze(1) - head + (kernel - 1) // 2
        inside = (offset >= 0) & (offset < kernel)
        taps = self.weight[offset.clamp(0, kernel - 1)] * inside[..., None, None]
        by_block = taps.view(self.heads, self.heads, block, self.heads, block)
        return by_block.permute(3, 0, 2, 1, 4).reshape(self.heads, self.heads * block, self.heads * block)
