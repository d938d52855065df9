"""The forward pass from bags to logits, for many bags at once: used in training steps and in evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asmil.training.fused.block_kernels import bag_values_kernel, head_kernel, output_kernel, values_kernel
from asmil.training.fused.layout import next_power_of_2
from asmil.training.fused.tile_kernels import (
    embed_and_score_kernel,
    embed_kernel,
    heatmap_kernel,
    pool_kernel,
    score_kernel,
    sums_kernel,
)
from asmil.training.fused.weights import Weights
from asmil.training.resident import ResidentBags

SCORE_ROWS = 64
POOL_PARTS, POOL_ROWS = 64, 32
OUTPUT_ROWS = 16


@dataclass(frozen=True)
class Dropped:
    """Dropout rates in training; nothing is dropped in inference.

    outputs: dropout rate of the outputs of a block
    tokens: dropout rate of the tokens
    """

    outputs: float = 0.0
    tokens: float = 0.0


def rounded(tiles: int) -> int:
    """The rows of a buffer for bags of up to this many tiles: a multiple of the block size."""
    return -(-tiles // SCORE_ROWS) * SCORE_ROWS


class Forward:
    """The forward pass of S slots: slot s passes bag `bag[s]` to member `member[s]`.

    anchor: whether to compute the scores of the anchor and the divergence, too
    """

    def __init__(self, weights: Weights, bags: ResidentBags, slots: int, longest: int, *, anchor: bool) -> None:
        self.weights = weights
        self.bags = bags
        self.slots = slots
        self.longest = rounded(longest)
        self.anchor = anchor
        sizes, device = weights.sizes, weights.device
        inner, tokens, heads, rows = sizes.inner, sizes.tokens, sizes.heads, sizes.rows

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(slots, *shape, device=device, dtype=dtype)

        self.member = zeros(dtype=torch.int32)
        self.bag = zeros(dtype=torch.int32)
        self.seed = zeros(dtype=torch.int64)
        self.embedded = zeros(self.longest, 2 * inner, dtype=weights.half)
        self.scores = zeros(2, self.longest, rows)
        self.partials = zeros(self.score_blocks, 4, rows)
        self.sums = zeros(3, rows)
        self.pooled_parts = zeros(POOL_PARTS, rows, inner)
        self.pooled = zeros(rows, inner)
        self.values = zeros(tokens, inner)
        self.outputs = zeros(tokens, inner)
        self.features = zeros(tokens, inner)
        self.attention = zeros(heads, tokens)
        self.bag_pooled = zeros(heads, inner)
        self.bag_values = zeros(inner)
        self.bag_outputs = zeros(inner)
        self.embedding = zeros(inner)
        self.logits = zeros(sizes.outputs)

    @property
    def score_blocks(self) -> int:
        """Blocks of rows of the longest bag."""
        return self.longest // SCORE_ROWS

    def pool(self) -> None:
        """Scores of all tiles and the pooled embeddings, S x A x I in parts."""
        weights, bags, sizes = self.weights, self.bags, self.weights.sizes
        inner, inner_block = sizes.inner, weights.inner_block
        self._score()
        sums_kernel[(sizes.rows // 16, self.slots)](
            self.partials, self.sums, self.bag, bags.lengths, self.score_blocks, sizes.rows, SCORE_ROWS, 256, 16,
            self.anchor, num_warps=8,
        )  # fmt: skip
        pool_kernel[(POOL_PARTS, -(-inner // inner_block), self.slots)](
            self.embedded, self.scores, self.sums, self.pooled_parts, self.bag, bags.lengths, self.longest, inner,
            sizes.rows, POOL_PARTS, POOL_ROWS, inner_block, num_warps=4, num_stages=3,
        )  # fmt: skip

    def _score(self) -> None:
        """Embed all tiles and compute their scores."""
        weights, bags, sizes = self.weights, self.bags, self.weights.sizes
        inner, inner_block = sizes.inner, weights.inner_block
        if inner <= inner_block:
            embed_and_score_kernel[(self.score_blocks, self.slots)](
                bags.features, weights.stems, weights.vectors, weights.constants, self.embedded, self.scores,
                self.partials, self.member, self.bag, bags.offsets, bags.lengths, self.longest, self.score_blocks,
                sizes.features, inner, sizes.rows, SCORE_ROWS, inner_block, 32, self.anchor, num_warps=8, num_stages=4,
            )  # fmt: skip
            return
        stems = 2 * inner if self.anchor else inner
        embed_kernel[(-(-self.longest // 128), -(-stems // 128), self.slots)](
            bags.features, weights.stems, self.embedded, self.member, self.bag, bags.offsets, bags.lengths,
            self.longest, sizes.features, 2 * inner, 128, 128, 64, num_warps=8, num_stages=3,
        )  # fmt: skip
        score_kernel[(self.score_blocks, self.slots)](
            self.embedded, weights.vectors, weights.constants, self.scores, self.partials, self.member, self.bag,
            bags.lengths, self.longest, self.score_blocks, inner, sizes.rows, SCORE_ROWS, inner_block, self.anchor,
            num_warps=8,
        )  # fmt: skip

    def read_out(self, dropped: Dropped) -> None:
        """Compute the outputs of the bag block, S x I, from the pooled embeddings."""
        weights, sizes, layout = self.weights, self.weights.sizes, self.weights.layout
        start, size = layout.start, layout.size
        inner, tokens, heads = sizes.inner, sizes.tokens, sizes.heads
        values_kernel[(sizes.rows, self.slots)](
            weights.parameters, size, self.pooled_parts, self.pooled, self.values, self.member,
            start["token_block.v_weight"], start["token_block.v_bias"],
            inner, tokens, heads, sizes.head_width, weights.head_block, weights.inner_block, POOL_PARTS, num_warps=4,
        )  # fmt: skip
        output_kernel[(-(-inner // OUTPUT_ROWS), tokens, self.slots)](
            weights.parameters, size, self.values, self.outputs, self.member, self.seed,
            start["token_block.out_weight"], start["token_block.out_bias"], dropped.outputs,
            0, tokens, inner, OUTPUT_ROWS, weights.inner_block, num_warps=4,
        )  # fmt: skip
        bag_values_kernel[(heads, self.slots)](
            weights.parameters, size, self.outputs, self.features, self.member, self.seed, weights.bag_vectors,
            weights.bag_constants, self.attention, self.bag_pooled, self.bag_values,
            start["token_block.norm_weight"], start["token_block.norm_bias"],
            start["bag_block.v_weight"], start["bag_block.v_bias"], dropped.tokens,
            (tokens + 1) * inner, inner, next_power_of_2(inner), tokens, next_power_of_2(tokens), heads,
            sizes.head_width, weights.head_block, num_warps=4,
        )  # fmt: skip
        output_kernel[(-(-inner // OUTPUT_ROWS), 1, self.slots)](
            weights.parameters, size, self.bag_values, self.bag_outputs, self.member, self.seed,
            start["bag_block.out_weight"], start["bag_block.out_bias"], dropped.outputs,
            tokens * inner, 1, inner, OUTPUT_ROWS, weights.inner_block, num_warps=4,
        )  # fmt: skip

    def classify(self) -> None:
        """Compute embedding and logits from the outputs of the bag block, without a loss."""
        nothing = self.logits
        self.launch_head(nothing, nothing, nothing, nothing, nothing, 0, 0.0, 0.0, backward=False)

    def launch_head(
        self,
        target: Tensor,
        class_weights: Tensor,
        losses: Tensor,
        d_bag_outputs: Tensor,
        gradients: Tensor,
        gradients_size: int,
        dropout: float,
        anchor_weight: float,
        *,
        backward: bool,
    ) -> None:
        """Launch `head_kernel`, with or without its backward pass."""
        weights, sizes, start = self.weights, self.weights.sizes, self.weights.layout.start
        inner, outputs = sizes.inner, sizes.outputs
        head_kernel[(self.slots,)](
            weights.parameters, weights.layout.size, self.bag_outputs, self.member, self.embedding, self.logits,
            start["bag_block.norm_weight"], start["bag_block.norm_bias"], start["head.weight"], start["head.bias"],
            target, class_weights, self.sums, losses, d_bag_outputs, self.seed, gradients, gradients_size, dropout,
            anchor_weight, sizes.tokens * inner, outputs, next_power_of_2(outputs), inner, next_power_of_2(inner),
            sizes.rows, backward, self.anchor, num_warps=4,
        )  # fmt: skip

    def infer(self) -> None:
        """Embedding and logits of all slots, without dropout; call `Weights.fold` before."""
        self.pool()
        self.read_out(Dropped())
        self.classify()

    def heatmaps(self) -> Tensor:
        """The attention of every tile, averaged over the rows of the scores, S x longest."""
        maps = torch.zeros(self.slots, self.longest, device=self.weights.device)
        heatmap_kernel[(self.score_blocks, self.slots)](
            self.scores, self.sums, maps, self.bag, self.bags.lengths, self.longest, self.weights.sizes.rows,
            SCORE_ROWS, num_warps=4,
        )  # fmt: skip
        return maps
