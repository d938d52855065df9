"""The layers of a regional transformer: self-attention within windows (R-MSA), and between windows (CR-MSA).

EPEG, the position encoding of R-MSA, convolves the attention logits E = s q k^T along the query axis, one key at a
time, with one kernel w per head and zero padding:

    (E + Conv(E))_ij = sum_t (w_t + [t = middle]) E_(i + t - middle, j) + b = s (q * w')_i . k_j + b

It is linear in q, so it is applied to the queries, which are narrower than the logits; b is the same for all keys of a
query and cancels in softmax. No n x n matrix is formed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.blocks.exporting import warn_of_fixed_size
from asmil.models.blocks.layers import ACTIVATIONS, Activation, floating
from asmil.models.blocks.randomness import Dropout

BLOCK_TOKENS = 16_384
"""How many tokens of windows are attended at once in inference, so that memory for q, k and v stays small."""


class Epeg(nn.Module):
    """Queries (B x n x H x d) convolved along the tokens as EPEG convolves the logits; the kernel length is odd."""

    def __init__(self, heads: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_normal_(torch.empty(heads, 1, kernel, 1)))
        # It cancels in softmax; official state dicts hold it.
        self.bias = nn.Parameter(torch.zeros(heads))

    def forward(self, queries: Tensor) -> Tensor:
        batch, tokens, heads, width = queries.shape
        middle = self.weight.shape[2] // 2
        residual = torch.zeros_like(self.weight)
        residual[:, :, middle].fill_(1)
        # One channel for each column of each head, channels last: the layout that depth-wise convolution is fast in.
        kernels = (self.weight + residual).repeat_interleave(width, dim=0)
        images = queries.reshape(batch, tokens, 1, heads * width).permute(0, 3, 1, 2)
        convolved = functional.conv2d(images, kernels, padding=(middle, 0), groups=heads * width)
        return convolved.permute(0, 2, 3, 1).reshape(queries.shape)


class SelfAttention(nn.Module):
    """Multi-head self-attention of B sequences: B x n x C -> B x n x C."""

    def __init__(self, width: int, heads: int, dropout: float, epeg_k: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.epeg = Epeg(heads, epeg_k) if epeg_k else None
        self.out = nn.Linear(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).unbind(dim=2)
        if self.epeg is not None:
            q = self.epeg(q)
        attended = functional.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.dropout(self.out(attended.transpose(1, 2).reshape(batch, tokens, width)))


class RegionAttention(nn.Module):
    """R-MSA: L x C -> L x C, every window for itself."""

    def __init__(self, width: int, heads: int, dropout: float, folding: Folding, epeg_k: int) -> None:
        super().__init__()
        self.folding = folding
        self.attention = SelfAttention(width, heads, dropout, epeg_k)

    def forward(self, x: Tensor) -> Tensor:
        windows = self.folding.windows(len(x))
        folded = windows.fold(x)
        if torch.is_grad_enabled() or folded.shape[0] * folded.shape[1] <= BLOCK_TOKENS:
            return windows.unfold(self.attention(folded))
        for block in folded.split(max(1, BLOCK_TOKENS // folded.shape[1])):
            block.copy_(self.attention(block))
        return windows.unfold(folded)


class CrossRegionAttention(nn.Module):
    """CR-MSA: L x C -> L x C, through K representatives of every window.

    G = phi(X_w)          K slots of the tokens of window w
    u = softmax over tokens (G) X_w;   u' = self-attention of the u of all windows, slot by slot
    token p gets sum_k u'_k * minmax_p(G)_k,p * softmax_k(G)_k,p
    """

    def __init__(self, width: int, heads: int, dropout: float, folding: Folding, slots: int, mlp: bool) -> None:
        super().__init__()
        self.folding = folding
        self.attention = SelfAttention(width, heads, dropout)
        self.phi: nn.Module | nn.Parameter
        if mlp:
            hidden = max(1, width // 4)
            self.phi = nn.Sequential(
                nn.Linear(width, hidden, bias=False), nn.Tanh(), nn.Linear(hidden, slots, bias=False)
            )
        else:
            self.phi = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(width, slots), a=math.sqrt(5)))

    def forward(self, x: Tensor) -> Tensor:
        windows = self.folding.windows(len(x))
        if windows.size == 1:
            # A window of one token has no span: its min-max weight is 0, and so is its token's share, without 0 / 1e-8.
            return torch.zeros_like(x)
        folded = windows.fold(x)
        slots = floating(self.phi(folded) if isinstance(self.phi, nn.Module) else folded @ self.phi)
        combine = torch.softmax(slots, dim=1).to(folded.dtype)
        # Windows of padding alone are zero and take part as such.
        empty = windows.per_side**2 - windows.filled
        representatives = functional.pad(combine.transpose(1, 2) @ folded, (0, 0, 0, 0, 0, empty))
        attended: Tensor = self.attention(representatives.transpose(0, 1))
        lowest, highest = slots.amin(dim=1, keepdim=True), slots.amax(dim=1, keepdim=True)
        weights = (slots - lowest) / (highest - lowest + 1e-8) * torch.softmax(slots, dim=2)
        dispatched = weights.to(attended.dtype) @ attended.transpose(0, 1)[: windows.filled]
        return windows.unfold(dispatched)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, tile by tile."""

    def __init__(self, width: int, hidden: int, activation: Activation, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Linear(width, hidden)
        self.activation = ACTIVATIONS[activation]
        self.narrow = nn.Linear(hidden, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.narrow(self.dropout(self.activation(self.widen(x)))))


class RegionalLayer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)), if there is one."""

    def __init__(self, width: int, attention: nn.Module, feed: nn.Module | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = attention
        self.norm_feed = nn.LayerNorm(width) if feed is not None else None
        self.feed = feed

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        if self.feed is not None and self.norm_feed is not None:
            x = x + self.feed(self.norm_feed(x))
        return x


@dataclass(frozen=True)
class Windows:
    """L tokens in a square of `per_side` x `per_side` windows of `size` x `size` tokens.

    They fill the square row by row; its side is the square root of L, rounded up, then up to a whole number of windows;
    what is left at its end is padded with zeros. A window is flattened row by row. Because the padding lies at the end,
    the rows of windows after the last token contain only padding, and are not formed.
    """

    tokens: int
    per_side: int
    size: int

    @property
    def filled(self) -> int:
        """The number of windows in the rows of windows that contain tokens."""
        row = self.per_side * self.size**2
        return self.per_side * -(-self.tokens // row)

    def fold(self, sequence: Tensor) -> Tensor:
        """L x C -> `filled` windows x tokens of a window x C."""
        rows, width = self.filled // self.per_side, sequence.shape[1]
        padded = functional.pad(sequence, (0, 0, 0, self.filled * self.size**2 - self.tokens))
        square = padded.view(rows, self.size, self.per_side, self.size, width)
        return square.transpose(1, 2).reshape(self.filled, self.size**2, width)

    def unfold(self, windows: Tensor) -> Tensor:
        """What `fold` did, undone: back to L x C."""
        rows, width = self.filled // self.per_side, windows.shape[2]
        square = windows.view(rows, self.per_side, self.size, self.size, width)
        return square.transpose(1, 2).reshape(-1, width)[: self.tokens]


@dataclass(frozen=True)
class Folding:
    """The rule that cuts a sequence of any length.

    per_side: windows along a side of the square; size: instead, tokens along a side of a window
    min_tokens, padding_ratio: a sequence below `min_tokens`, or padded by more than L / `padding_ratio` tokens, becomes
    one window of an even side (0 switches either off)
    """

    per_side: int
    size: int | None = None
    min_tokens: int = 0
    padding_ratio: float = 0.0

    def windows(self, tokens: int) -> Windows:
        """How `tokens` tokens are cut."""
        warn_of_fixed_size("its tiles are folded into a square whose side follows from their number")
        side = math.isqrt(tokens - 1) + 1
        unit = self.size or self.per_side
        padded_side = side + -side % unit
        padding = padded_side**2 - tokens
        if tokens < self.min_tokens or padding > tokens / (self.padding_ratio + 1e-8):
            return Windows(tokens, 1, side + side % 2)
        if self.size:
            return Windows(tokens, padded_side // self.size, self.size)
        return Windows(tokens, self.per_side, padded_side // self.per_side)
