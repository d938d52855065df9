"""Cross-attention through a few latent vectors, evaluated without a projection of every tile that can be saved.

The block, for queries Q, keys K, width d and H heads:

    q = W_q Q + b_q        k = W_k K + b_k        v = W_v K + b_v                      first maps
    z_h = (A_q q + a_q)_h . (A_k k + a_k)_h / sqrt(d / H)                              second maps, then heads
    o = q + (A_o [softmax(z_h) (A_v v + a_v)_h]_h + a_o)
    o = norm(o);   o = norm(o + ReLU(W_o o + b_o));   o = o * SiLU(W_g Q + b_g)        norms and gate are optional

One side is always short: r latents or one pooling seed. All maps of the long side that only serve the attention move
to the short side, which is exact because they are linear and a row of attention sums to 1:

    few queries    z = (W_k^T A_k,h^T q_h) . x_i + constant          values of the pooled tiles, not of every tile
    few keys       z = (A_q,h^T k_h) . q_i + constant                out-projected values of the keys, r H of them

A row for every latent and head takes the place of d columns, so this pays while r H <= d; beyond that the attention is
evaluated as it is written. With one key softmax is 1 and there is nothing to score.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.blocks.layers import full_precision


class ProjectedAttention(nn.Module):
    """The parameters of a block, and what follows its attention."""

    def __init__(self, query_width: int, key_width: int, width: int, heads: int, norm: bool, gated: bool) -> None:
        super().__init__()
        self.heads = heads
        self.scale = 1 / math.sqrt(width // heads)
        self.query = nn.Linear(query_width, width)
        self.key = nn.Linear(key_width, width)
        self.value = nn.Linear(key_width, width)
        self.in_weight = nn.Parameter(torch.empty(3, width, width))
        self.in_bias = nn.Parameter(torch.zeros(3, width))
        self.out = nn.Linear(width, width)
        self.norm_attention = nn.LayerNorm(width) if norm else None
        self.feed = nn.Linear(width, width)
        self.norm_feed = nn.LayerNorm(width) if norm else None
        self.gate = nn.Linear(query_width, width) if gated else None
        nn.init.xavier_uniform_(self.in_weight.view(3 * width, width))
        nn.init.zeros_(self.out.bias)
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)

    def finish(self, queries: Tensor, projected: Tensor, attended: Tensor) -> Tensor:
        """What follows the attention: residual with the projected queries, norms, ReLU layer, gate by the queries."""
        x = projected + attended
        x = x if self.norm_attention is None else self.norm_attention(x)
        x = x + functional.relu(self.feed(x))
        x = x if self.norm_feed is None else self.norm_feed(x)
        return x if self.gate is None else x * functional.silu(self.gate(queries))

    def second_map(self, which: int, x: Tensor) -> Tensor:
        """n x d -> n x H x (d / H), by the second map of the queries (0), keys (1) or values (2)."""
        return functional.linear(x, self.in_weight[which], self.in_bias[which]).view(x.shape[0], self.heads, -1)

    def heads_of(self, which: int) -> Tensor:
        """The second map by head, H x (d / H) x d."""
        return self.in_weight[which].view(self.heads, -1, self.in_weight.shape[2])

    def attend_as_written(self, projected: Tensor, keys: Tensor) -> Tensor:
        """The attention's part without moving any map: n_q x d."""
        maps = ((0, projected), (1, self.key(keys)), (2, self.value(keys)))
        q, k, v = (self.second_map(which, x).transpose(0, 1) for which, x in maps)
        attended = functional.scaled_dot_product_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0))
        return self.out(attended[0].transpose(0, 1).flatten(1))


class FewQueries(ProjectedAttention):
    """A few queries (r x d) read many tiles (N x K)."""

    def score(self, queries: Tensor, tiles: Tensor) -> Tensor:
        """Scores of the tiles for every query and head, (r H) x N."""
        with full_precision(tiles):
            mapped, through = self._through_keys(queries)
            constants = through @ self.key.bias + (mapped * self.in_bias[1].view(self.heads, -1)).sum(dim=-1).flatten()
            vectors = through @ self.key.weight
        return torch.addmm(constants.unsqueeze(1).to(tiles.dtype), vectors.to(tiles.dtype), tiles.t())

    def pool(self, queries: Tensor, attention: Tensor, tiles: Tensor) -> Tensor:
        """The block's output, r x d, for given attention ((r H) x N)."""
        pooled = attention.to(tiles.dtype) @ tiles
        with full_precision(tiles):
            values: Tensor = self.value(pooled.to(self.in_weight.dtype))
            by_head = values.view(len(queries), self.heads, -1)
            mapped = torch.einsum("qhd,hed->qhe", by_head, self.heads_of(2)).flatten(1) + self.in_bias[2]
            return self.finish(queries, self.query(queries), self.out(mapped))

    def forward(self, queries: Tensor, tiles: Tensor) -> Tensor:
        if len(queries) * self.heads > self.out.out_features:
            projected = self.query(queries)
            return self.finish(queries, projected, self.attend_as_written(projected, tiles))
        with full_precision(tiles):
            vectors = self._through_keys(queries)[1] @ self.key.weight
        # A constant of a row would cancel in softmax.
        attention = torch.softmax(vectors.to(tiles.dtype) @ tiles.t(), dim=-1)
        return self.pool(queries, attention, tiles)

    def _through_keys(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Queries after both maps, scaled (r x H x d / H), and those through the keys' second map ((r H) x d)."""
        mapped = self.second_map(0, self.query(queries)) * self.scale
        return mapped, torch.einsum("qhe,hed->qhd", mapped, self.heads_of(1)).flatten(0, 1)


class ShortKeyAttention(ProjectedAttention):
    """Many tiles (N x Q) read a few keys (r x d)."""

    def forward(self, tiles: Tensor, keys: Tensor) -> Tensor:
        projected = self.query(tiles)
        if len(keys) == 1:
            with full_precision(tiles):
                attended: Tensor = self.out(self.second_map(2, self.value(keys)).flatten(1))
        elif len(keys) * self.heads > self.out.out_features:
            attended = self.attend_as_written(projected, keys)
        else:
            attended = self._attend(projected, keys)
        return self.finish(tiles, projected, attended)

    def _attend(self, projected: Tensor, keys: Tensor) -> Tensor:
        with full_precision(projected):
            mapped = self.second_map(1, self.key(keys)) * self.scale
            vectors = torch.einsum("khe,hed->hkd", mapped, self.heads_of(0)).flatten(0, 1)
            constants = torch.einsum("khe,he->hk", mapped, self.in_bias[0].view(self.heads, -1)).flatten()
            out_by_head = self.out.weight.view(len(self.out.weight), self.heads, -1)
            values = torch.einsum("khe,dhe->hkd", self.second_map(2, self.value(keys)), out_by_head).flatten(0, 1)
        dtype = projected.dtype
        scores = torch.addmm(constants.to(dtype), projected, vectors.t().to(dtype))
        attention = torch.softmax(scores.view(scores.shape[0], self.heads, -1), dim=-1).flatten(1).to(dtype)
        return torch.addmm(self.out.bias.to(dtype), attention, values.to(dtype))


class LowRankBlock(nn.Module):
    """N x K -> N x d: r latents read the tiles, then the tiles read the latents."""

    def __init__(self, in_width: int, width: int, heads: int, rank: int, norm: bool) -> None:
        super().__init__()
        self.latents = nn.Parameter(xavier_vectors(rank, width))
        self.read_tiles = FewQueries(width, in_width, width, heads, norm, gated=True)
        self.read_latents = ShortKeyAttention(in_width, width, width, heads, norm, gated=True)

    def forward(self, tiles: Tensor) -> Tensor:
        tiles = converted_once(tiles)
        return self.read_latents(tiles, self.read_tiles(self.latents, tiles))


def converted_once(tiles: Tensor) -> Tensor:
    """Under autocast the tiles in its type, converted once instead of for each product."""
    kind = tiles.device.type
    return tiles.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tiles


def xavier_vectors(count: int, width: int) -> Tensor:
    """Vectors at the start: Xavier uniform as for a 1 x count x width tensor (fans count * width and width)."""
    return nn.init.xavier_uniform_(torch.empty(1, count, width))[0]
