"""Many tiles merged into a few tokens by cross-attention of learned-by-average queries (MHIM v2).

    u = LN(x), p = LN(g)                                       x: n tiles, g: k queries, one LayerNorm for both
    a = softmax over tiles of (W_q p)_h . (W_k u_i)_h / sqrt(d)      head h of width d, no bias
    token = W_o [sum_i a_i (W_v u_i)_h]_h + b_o                dropout on a and on the token; no residual

The queries have no gradient: they follow the tokens they make, g <- m g + (1 - m) token. They do not depend on the
bag, so W_k is applied to them and W_v to the pooled tiles, and no key and no value of a tile is formed: per tile
2 k H I products instead of 2 H d I (k = 5, H = 8, d = 64: 80 I instead of 1024 I).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from asmil.models.blocks.randomness import Dropout

DROPOUT = 0.1
QUERY_FAN = 3 * 16 * 16
"""The fan-in that the official code's start of the queries assumes (patches of 16 x 16 pixels)."""


class TokenMerge(nn.Module):
    """n x I tiles -> k x I tokens; see the module's text."""

    def __init__(self, width: int, tokens: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_width = head_width
        bound = math.sqrt(6 / (QUERY_FAN + width))
        self.query = nn.Parameter(torch.empty(tokens, width).uniform_(-bound, bound), requires_grad=False)
        self.norm = nn.LayerNorm(width)
        self.to_q = nn.Linear(width, heads * head_width, bias=False)
        self.to_kv = nn.Linear(width, 2 * heads * head_width, bias=False)
        self.to_out = nn.Linear(heads * head_width, width)
        self.dropout = Dropout(DROPOUT)

    def forward(self, tiles: Tensor) -> Tensor:
        n_tokens, width = self.query.shape
        normed = self.norm(tiles)
        to_key, to_value = self.to_kv.weight.view(2, self.heads, self.head_width, width)
        queries = self.to_q(self.norm(self.query)).view(n_tokens, self.heads, self.head_width).transpose(0, 1)
        vectors = (queries @ to_key).flatten(0, 1) * self.head_width**-0.5
        attention = self.dropout(torch.softmax(vectors.to(normed.dtype) @ normed.t(), dim=-1))
        pooled = (attention.to(normed.dtype) @ normed).view(self.heads, n_tokens, width)
        values = (pooled @ to_value.transpose(1, 2)).transpose(0, 1).flatten(1)
        tokens: Tensor = self.dropout(self.to_out(values))
        return tokens

    @torch.no_grad()
    def follow(self, tokens: Tensor, momentum: float) -> None:
        """Move the queries towards the tokens they made."""
        self.query.lerp_(tokens.to(self.query.dtype), 1.0 - momentum)
