"""The weights of P trainings in flat buffers, and their folded queries."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asmil.training.fused.block_kernels import fold_kernel
from asmil.training.fused.layout import FUSED_STEM, Layout, Sizes, next_power_of_2

WIDEST = 128
"""Maximum part of the inner width that one program handles at a time."""


class Weights:
    """Parameters, Adam's averages and anchors of P members, each in one buffer; see `Layout` for the offsets.

    half: the dtype of the features, and of the copies of weights that are multiplied with them
    """

    def __init__(self, sizes: Sizes, members: int, device: torch.device, half: torch.dtype) -> None:
        self.sizes = sizes
        self.layout = Layout(sizes)
        self.members = members
        self.device = device
        self.half = half

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(members, *shape, device=device, dtype=dtype)

        inner, rows = sizes.inner, sizes.rows
        self.parameters = zeros(self.layout.size)
        self.mean = zeros(self.layout.size)
        self.square = zeros(self.layout.size)
        self.anchors = zeros(self.layout.anchor_size)
        self.stems = zeros(2, inner, sizes.features, dtype=half)
        self.vectors = zeros(2, rows, inner, dtype=half)
        self.constants = zeros(2, rows)
        self.queries = zeros(sizes.tokens, inner)
        self.bag_vectors = zeros(sizes.heads, inner)
        self.bag_constants = zeros(sizes.heads)
        self.bag_queries = zeros(inner)

    @property
    def inner_block(self) -> int:
        """The part of the inner width that one program handles at a time."""
        return min(WIDEST, next_power_of_2(self.sizes.inner))

    @property
    def head_block(self) -> int:
        """The width of a head, as a power of two."""
        return next_power_of_2(self.sizes.head_width)

    @property
    def scale(self) -> float:
        """The scale of the queries."""
        return 1 / math.sqrt(self.sizes.head_width)

    def refresh(self) -> None:
        """Copy the stems in half precision; needed after parameters were changed other than by a step."""
        self.stems[:, 0].copy_(self.layout.view(self.parameters, FUSED_STEM))
        self.stems[:, 1].copy_(self.layout.view(self.anchors, FUSED_STEM))

    def fold(self) -> None:
        """Vectors and constants of all rows of the scores, from the current parameters."""
        sizes, start = self.sizes, self.layout.start
        fold_kernel[(sizes.rows + sizes.heads, 2 * self.members)](
            self.parameters, self.layout.size, self.anchors, self.layout.anchor_size,
            self.vectors, self.constants, self.queries, self.bag_vectors, self.bag_constants, self.bag_queries,
            start["tokens"], start["token_block.q_weight"], start["token_block.q_bias"],
            start["token_block.k_weight"], start["token_block.k_bias"],
            start["cls"], start["bag_block.q_weight"], start["bag_block.q_bias"],
            start["bag_block.k_weight"], start["bag_block.k_bias"], self.scale,
            sizes.inner, sizes.tokens, sizes.heads, sizes.head_width, self.head_block, self.inner_block, num_warps=4,
        )  # fmt: skip
