"""One training step of P members as a sequence of kernels, recorded as a CUDA graph that is replayed in each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from asmil.training.fused.block_kernels import (
    bag_backward_kernel,
    fold_backward_kernel,
    output_backward_kernel,
    token_norm_backward_kernel,
    value_backward_kernel,
)
from asmil.training.fused.forward import OUTPUT_ROWS, POOL_PARTS, Dropped, Forward
from asmil.training.fused.layout import BLOCK, FUSED_STEM, Layout, Sizes, blocks_of, next_power_of_2
from asmil.training.fused.tile_kernels import stem_backward_kernel, tile_backward_kernel
from asmil.training.fused.update_kernels import adam_kernel, begin_kernel, end_kernel
from asmil.training.fused.weights import Weights
from asmil.training.resident import ResidentBags

TILE_PARTS = 128
STEM_PARTS, STEM_ROWS, STEM_TILE = 8, 128, 128
# None of these numbers depends on the members: the order of sums is the same, whatever else is being trained.


@dataclass(frozen=True)
class StepSettings:
    """The settings that all members share.

    anchor_weight: None without an anchor; anchor_momentum: 1 for a fixed anchor
    class_weights: one per class
    """

    dropped: Dropped
    anchor_weight: float | None
    anchor_momentum: float
    decay: float
    betas: tuple[float, float]
    class_weights: tuple[float, ...]


def bytes_a_member(sizes: Sizes, longest: int) -> int:
    """Approximate memory of one member for bags of this many tiles, with half-precision features."""
    inner, rows = sizes.inner, sizes.rows
    tiles = longest * (6 * inner + 8 * rows)
    parts = 4 * (POOL_PARTS + TILE_PARTS) * rows * inner + 4 * STEM_PARTS * inner * sizes.features
    return tiles + parts + 6 * 4 * Layout(sizes).size


class Step:
    """The training step of all members of `weights`, and everything it needs on the device.

    Member p uses bag `order[p, step % n]` in its step `step`; its losses are at the same index of `epoch_losses`.
    All random numbers of a step are a function of the member's key and the number of the step.

    longest: the tiles of the longest training bag
    n_order: the steps of an epoch
    schedule: steps x 2, see `adam_kernel`
    """

    def __init__(
        self,
        weights: Weights,
        bags: ResidentBags,
        settings: StepSettings,
        longest: int,
        n_order: int,
        schedule: Tensor,
    ) -> None:
        self.weights = weights
        self.settings = settings
        members, device, sizes = weights.members, weights.device, weights.sizes
        inner, tokens, heads, rows = sizes.inner, sizes.tokens, sizes.heads, sizes.rows
        self.forward = Forward(weights, bags, members, longest, anchor=settings.anchor_weight is not None)
        self.forward.member.copy_(torch.arange(members))

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(members, *shape, device=device, dtype=dtype)

        self.step = zeros(dtype=torch.int32)
        self.keys = zeros(dtype=torch.int64)
        self.order = zeros(n_order, dtype=torch.int32)
        self.target = zeros(dtype=torch.int32)
        self.losses = zeros(2)
        self.epoch_losses = zeros(n_order, 2)
        self.schedule = schedule.to(device=device, dtype=torch.float32).contiguous()
        self.class_weights = torch.tensor(settings.class_weights, device=device)
        self.d_bag_outputs, self.d_bag_values = zeros(inner), zeros(inner)
        self.d_features, self.d_outputs, self.d_values = (
            zeros(heads, tokens, inner),
            zeros(tokens, inner),
            zeros(tokens, inner),
        )
        self.d_pooled, self.d_pooled_pooled = zeros(rows, inner, dtype=weights.half), zeros(rows)
        self.d_embedded = zeros(self.forward.longest, inner, dtype=weights.half)
        self.d_vectors_parts, self.d_constants_parts = zeros(TILE_PARTS, rows, inner), zeros(TILE_PARTS, rows)
        self._place_gradients()
        self.gradients = zeros(self.gradients_size)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None

    def _place_gradients(self) -> None:
        """The offset of each block's gradient: that of the parameters, or of partial sums stored after them."""
        sizes, layout = self.weights.sizes, self.weights.layout
        inner, heads = sizes.inner, sizes.heads
        token_stride, cls_stride, stem_stride = sizes.tokens * inner, next_power_of_2(inner), inner * sizes.features
        # a program reads whole blocks, even past the end of a parameter
        self.token_parts = layout.size
        self.cls_parts = self.token_parts + heads * token_stride + BLOCK
        self.stem_parts = -(-(self.cls_parts + heads * cls_stride + BLOCK) // BLOCK) * BLOCK
        self.gradients_size = self.stem_parts + STEM_PARTS * stem_stride + BLOCK
        n_blocks = layout.size // BLOCK
        source = torch.arange(n_blocks, dtype=torch.int32) * BLOCK
        parts, stride = torch.ones_like(source), torch.zeros_like(source)
        in_parts = {
            "tokens": (self.token_parts, heads, token_stride),
            "cls": (self.cls_parts, heads, cls_stride),
            FUSED_STEM: (self.stem_parts, STEM_PARTS, stem_stride),
        }
        for name, (start, count, apart) in in_parts.items():
            first, own = layout.start[name] // BLOCK, blocks_of(layout.shapes[name])
            source[first : first + own] = start + torch.arange(own, dtype=torch.int32) * BLOCK
            parts[first : first + own] = count
            stride[first : first + own] = apart
        self.source, self.parts, self.stride = (values.to(self.weights.device) for values in (source, parts, stride))

    def compute_gradients(self) -> None:
        """Losses and gradients of every member for its current bag, target and key."""
        weights, forward, bags = self.weights, self.forward, self.forward.bags
        sizes, start, size = weights.sizes, weights.layout.start, weights.layout.size
        inner, tokens, heads, rows, members = sizes.inner, sizes.tokens, sizes.heads, sizes.rows, weights.members
        dropped, inner_block, head_block = self.settings.dropped, weights.inner_block, weights.head_block
        has_anchor = self.settings.anchor_weight is not None
        anchor_weight = self.settings.anchor_weight or 0.0
        column_blocks = -(-inner // OUTPUT_ROWS)
        tile_rows = 128 if rows <= 64 else 64
        gradients = (self.gradients, self.gradients_size)
        weights.fold()
        forward.pool()
        forward.read_out(dropped)
        forward.launch_head(
            self.target, self.class_weights, self.losses, self.d_bag_outputs, *gradients, dropped.outputs,
            anchor_weight, backward=True,
        )  # fmt: skip
        output_backward_kernel[(column_blocks, 1, members)](
            weights.parameters, size, forward.bag_values, self.d_bag_outputs, self.d_bag_values, *gradients,
            start["bag_block.out_weight"], start["bag_block.out_bias"], 1, inner, OUTPUT_ROWS, inner_block, num_warps=4,
        )  # fmt: skip
        bag_backward_kernel[(heads, members)](
            weights.parameters, size, forward.features, forward.attention, forward.bag_pooled, self.d_bag_values,
            weights.bag_vectors, weights.bag_queries, self.d_features, *gradients, start["cls"],
            start["bag_block.q_weight"], start["bag_block.q_bias"], start["bag_block.k_weight"],
            start["bag_block.k_bias"], start["bag_block.v_weight"], start["bag_block.v_bias"], self.cls_parts,
            weights.scale, inner, next_power_of_2(inner), tokens, next_power_of_2(tokens), heads, sizes.head_width,
            head_block, num_warps=4,
        )  # fmt: skip
        token_norm_backward_kernel[(tokens, members)](
            weights.parameters, size, forward.outputs, self.d_features, self.d_outputs, forward.seed, *gradients,
            start["token_block.norm_weight"], start["token_block.norm_bias"], dropped.outputs,
            inner, next_power_of_2(inner), tokens, heads, num_warps=4,
        )  # fmt: skip
        output_backward_kernel[(column_blocks, tokens, members)](
            weights.parameters, size, forward.values, self.d_outputs, self.d_values, *gradients,
            start["token_block.out_weight"], start["token_block.out_bias"], tokens, inner, OUTPUT_ROWS, inner_block,
            num_warps=4,
        )  # fmt: skip
        value_backward_kernel[(rows, members)](
            weights.parameters, size, forward.pooled, self.d_values, self.d_pooled, self.d_pooled_pooled, *gradients,
            start["token_block.v_weight"], start["token_block.v_bias"], inner, tokens, heads, sizes.head_width,
            head_block, inner_block, num_warps=4,
        )  # fmt: skip
        tile_backward_kernel[(TILE_PARTS, members)](
            forward.embedded, forward.scores, forward.sums, weights.vectors, self.d_pooled, self.d_pooled_pooled,
            anchor_weight / rows, self.d_embedded, self.d_vectors_parts, self.d_constants_parts, forward.bag,
            bags.lengths, forward.longest, inner, rows, TILE_PARTS, tile_rows, inner_block, has_anchor,
            num_warps=8, num_stages=2 if rows <= 64 else 1,
        )  # fmt: skip
        stem_backward_kernel[(-(-inner // STEM_TILE) * -(-sizes.features // STEM_TILE), STEM_PARTS, members)](
            self.d_embedded, bags.features, *gradients, self.stem_parts, forward.bag, bags.offsets, bags.lengths,
            forward.longest, sizes.features, inner, STEM_PARTS, STEM_TILE, STEM_TILE, STEM_ROWS, num_warps=4,
            num_stages=3,
        )  # fmt: skip
        fold_backward_kernel[(rows, members)](
            weights.parameters, size, self.d_vectors_parts, self.d_constants_parts, weights.queries,
            forward.bag, bags.lengths, *gradients,
            start["tokens"], start["token_block.q_weight"], start["token_block.q_bias"],
            start["token_block.k_weight"], start["token_block.k_bias"], self.token_parts, weights.scale,
            inner, tokens, heads, sizes.head_width, head_block, min(inner_block, 64), TILE_PARTS, tile_rows,
            num_warps=4,
        )  # fmt: skip

    def update(self) -> None:
        """Adam step and EMA update of the anchors, with the current gradients."""
        weights, layout, settings = self.weights, self.weights.layout, self.settings
        adam_kernel[(layout.size // BLOCK, weights.members)](
            weights.parameters, weights.mean, weights.square, weights.anchors, weights.stems, self.gradients,
            layout.size, layout.anchor_size, self.gradients_size, self.source, self.parts, self.stride, self.schedule,
            self.step, layout.start[FUSED_STEM], settings.decay, *settings.betas, 1.0 - settings.anchor_momentum,
            weights.sizes.inner * weights.sizes.features, BLOCK, settings.anchor_weight is not None, num_warps=4,
        )  # fmt: skip

    def begin(self) -> None:
        """Prepare the next step of every member; needed after `order`, `step` or `keys` have changed."""
        begin_kernel[(1,)](*self._places(), self.order.shape[1], *self._members())

    def run(self) -> None:
        """One step of every member, prepared by `begin` or by the previous step."""
        self.compute_gradients()
        self.update()
        end_kernel[(1,)](*self._places(), self.losses, self.epoch_losses, self.order.shape[1], *self._members())

    def _places(self) -> tuple[Tensor, ...]:
        forward = self.forward
        return (self.step, self.order, forward.bags.targets, self.keys, forward.bag, self.target, forward.seed)

    def _members(self) -> tuple[int, int]:
        return self.weights.members, next_power_of_2(self.weights.members)

    def record(self) -> None:
        """Compile the kernels and record the step as a CUDA graph; load the weights afterwards."""
        device = self.weights.device
        self.begin()
        self.run()
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            self.run()
        torch.cuda.current_stream(device).wait_stream(self._stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.run()

    def epoch(self) -> Iterator[None]:
        """Start the steps of an epoch, one with each iteration; a recorded step runs in a stream of its own."""
        self.begin()
        if self._graph is None or self._stream is None:
            for _ in range(self.order.shape[1]):
                self.run()
                yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.weights.device))
        for _ in range(self.order.shape[1]):
            with torch.cuda.stream(self._stream):
                self._graph.replay()
            yield

    def wait(self) -> None:
        """Let everything that follows wait for the steps."""
        if self._stream is not None:
            torch.cuda.current_stream(self.weights.device).wait_stream(self._stream)

    def gradient(self, name: str) -> Tensor:
        """The gradient of a parameter, P x its shape, for tests."""
        layout = self.weights.layout
        block, shape = layout.start[name] // BLOCK, layout.shapes[name]
        source, parts, stride = (int(values[block]) for values in (self.source, self.parts, self.stride))
        n = torch.Size(shape).numel()
        pieces = [self.gradients[:, source + k * stride : source + k * stride + n] for k in range(parts)]
        return torch.stack(pieces).sum(dim=0).view(-1, *shape)
