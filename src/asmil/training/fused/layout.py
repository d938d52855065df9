"""The layout of the parameters of an ASMIL model in one flat buffer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from asmil.models.asmil import ASMIL

BLOCK = 1024
"""Number of values that one program updates; every parameter starts at a multiple of it."""
FUSED_STEM = "embedding.layers.0.weight"


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class Sizes:
    """The sizes of an ASMIL model: D features, I inner, T tokens, H heads, C outputs."""

    features: int
    inner: int
    tokens: int
    heads: int
    outputs: int

    @staticmethod
    def of(model: ASMIL) -> Sizes:
        """The sizes of a model."""
        return Sizes(model.in_features, model.tokens.shape[1], model.config.tokens, model.config.heads, model.n_outputs)

    @property
    def rows(self) -> int:
        """A, the rows of the scores. Row a is head a % H of token a // H (the model's own order is head by head)."""
        return self.tokens * self.heads

    @property
    def head_width(self) -> int:
        """d."""
        return self.inner // self.heads


class Layout:
    """Names, shapes and offsets of the parameters; those that the anchor reads come first, ending with the stem."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        inner, tokens, outputs = sizes.inner, sizes.tokens, sizes.outputs
        vectors, matrices = (tokens, inner), (tokens, inner, inner)
        self.shapes: dict[str, tuple[int, ...]] = {
            "tokens": vectors,
            "token_block.q_bias": vectors,
            "token_block.k_bias": vectors,
            "token_block.q_weight": matrices,
            "token_block.k_weight": matrices,
            FUSED_STEM: (inner, sizes.features),
            "token_block.v_weight": matrices,
            "token_block.out_weight": matrices,
            "token_block.v_bias": vectors,
            "token_block.out_bias": vectors,
            "token_block.norm_weight": vectors,
            "token_block.norm_bias": vectors,
            "cls": (1, inner),
            **{f"bag_block.{part}_weight": (1, inner, inner) for part in ("q", "k", "v", "out")},
            **{f"bag_block.{part}_bias": (1, inner) for part in ("q", "k", "v", "out")},
            "bag_block.norm_weight": (1, inner),
            "bag_block.norm_bias": (1, inner),
            "head.weight": (outputs, inner),
            "head.bias": (outputs,),
        }
        self.start: dict[str, int] = {}
        here = 0
        for name, shape in self.shapes.items():
            self.start[name] = here
            here += blocks_of(shape) * BLOCK
        self.size = here

    @cached_property
    def anchor_names(self) -> tuple[str, ...]:
        """The parameters that scores depend on."""
        names = list(self.shapes)
        return tuple(names[: names.index(FUSED_STEM) + 1])

    @cached_property
    def anchor_size(self) -> int:
        """The length of the part of the buffer that contains them."""
        return self.start[FUSED_STEM] + blocks_of(self.shapes[FUSED_STEM]) * BLOCK

    def view(self, flat: Tensor, name: str) -> Tensor:
        """The parameter `name` of every member in `flat` (P x size or P x anchor_size), P x its shape."""
        start, shape = self.start[name], self.shapes[name]
        return flat[:, start : start + math.prod(shape)].view(flat.shape[0], *shape)


def blocks_of(shape: tuple[int, ...]) -> int:
    """The number of blocks of a parameter of this shape."""
    return -(-math.prod(shape) // BLOCK)
