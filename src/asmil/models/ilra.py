"""ILRA: iterative low-rank attention (Xiang et al., Exploring Low-Rank Property in Multiple Instance Learning, 2023).

    X_0    = the tiles                                                     N x D
    H      = MHA(L, X; gated)       r learned latents read the bag         r x I
    X_l    = MHA(X_l-1, H; gated)   the tiles read the latents             N x I, `blocks` times
    bag    = MHA(S, X)              one learned query pools the bag        I
    logits = W_c bag + b_c

MHA, for queries Q, keys K, width d and H heads, projects each side twice in a row:

    q = W_q Q + b_q        k = W_k K + b_k        v = W_v K + b_v                      first maps
    z_h = (A_q q + a_q)_h . (A_k k + a_k)_h / sqrt(d / H)                              second maps, then heads
    o = q + (A_o [softmax(z_h) (A_v v + a_v)_h]_h + a_o)
    o = norm(o);   o = norm(o + ReLU(W_o o + b_o));   o = o * SiLU(W_g Q + b_g)        norms and gate are optional

N x N attention becomes two N x r ones: one side is always short, r latents or one pooling query. All maps of the long
side that only serve the attention are moved to the short side, so that neither keys nor values of tiles are formed.
This is exact because the maps are linear and a row of attention sums to 1:

    few queries    z = (W_k^T A_k,h^T q_h) . x_i + constant          values of the pooled tiles, not of every tile
    few keys       z = (A_q,h^T k_h) . q_i + constant                out-projected values of the keys, r H of them

A row for every latent and head replaces d columns, so this is faster while r H <= d; beyond that the attention is
computed as it is written. With one key softmax is 1 and there is nothing to score.

Scores are those of the pooling query, one row per head: z_h,i = q_h . k_h,i / sqrt(I / H). A normalizer other than
softmax replaces that of the pooling, not those of the latents.

Differences between the paper, the official code and its copies: docs/methods/ilra.md.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, ModelConfig, Output, masked_scores, refuse_uneven
from asmil.models.blocks.layers import full_precision
from asmil.models.blocks.randomness import draws_batched
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register


class ILRAConfig(ModelConfig):
    """Architecture of ILRA."""

    inner: int = Field(256, ge=1, description="I, width of the tiles after the first block")
    blocks: int = Field(2, ge=1, description="how many times the tiles pass through latents")
    heads: int = Field(8, ge=1, description="H")
    rank: int = Field(2, ge=1, description="r, the latents of a block")
    norm: bool = Field(False, description="LayerNorm in every attention block")


@register(
    "ilra",
    summary="tiles exchange information through a few latent vectors, then one query pools them",
    paper="Xiang et al., Exploring Low-Rank Property in Multiple Instance Learning for Whole Slide Image "
    "Classification",
    year=2023,
    presets={
        "official": {
            "model": {"rank": 1, "norm": True},
            "training": {"lr": 1e-4, "weight_decay": 0.0, "epochs": 100, "schedule": "cosine", "select": "last"},
        }
    },
)
class ILRA(MILModel):
    """ILRA; see the module's text for the formulas."""

    config_type = ILRAConfig
    score_axes = ("head",)
    smooths = ("late",)
    records_steps = False  # not tried on a GPU
    config: ILRAConfig

    def __init__(self, in_features: int, n_outputs: int, config: ILRAConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        refuse_uneven(config.inner, config.heads)
        widths = [in_features, *[config.inner] * (config.blocks - 1)]
        self.blocks = nn.ModuleList(
            LowRankBlock(width, config.inner, config.heads, config.rank, config.norm) for width in widths
        )
        self.seed = nn.Parameter(xavier_vectors(1, config.inner))
        self.pooling = FewQueries(config.inner, config.inner, config.inner, config.heads, config.norm, gated=False)
        self.head = nn.Linear(config.inner, n_outputs)
        nn.init.xavier_normal_(self.head.weight)

    @property
    def padding_from(self) -> int | None:
        return None if self.smoothed else 1

    def reembed(self, bag: Bag) -> Tensor:
        """The tiles after the last block, N x I: what the pooling reads."""
        tiles = bag.features.to(self.seed.dtype)
        for block in self.blocks:
            tiles = block(tiles, bag.mask)
        return converted_once(tiles)

    def attend(self, bag: Bag) -> Tensor:
        return self._score(self.reembed(bag), bag)

    def _score(self, tiles: Tensor, bag: Bag) -> Tensor:
        return masked_scores(self.smooth_scores(self.pooling.score(self.seed, tiles), bag), bag)

    def forward(self, bag: Bag) -> Output:
        tiles = self.reembed(bag)
        scores = self._score(tiles, bag)
        embedding = self.pooling.pool(self.seed, self.normalizer(scores), tiles).squeeze(0)
        return Output(self.head(embedding), scores, embedding)


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

    def attend_as_written(self, projected: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """The attention's part without moving any map: n_q x d; mask: false for keys that are padding."""
        maps = ((0, projected), (1, self.key(keys)), (2, self.value(keys)))
        q, k, v = (self.second_map(which, x).transpose(0, 1) for which, x in maps)
        if mask is None and not draws_batched():
            attended = functional.scaled_dot_product_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0))[0]
        else:
            scores = q @ k.transpose(1, 2) * self.scale
            scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
            attended = torch.softmax(scores, dim=-1) @ v
        return self.out(attended.transpose(0, 1).flatten(1))


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

    def forward(self, queries: Tensor, tiles: Tensor, mask: Tensor | None) -> Tensor:
        if len(queries) * self.heads > self.out.out_features:
            projected = self.query(queries)
            return self.finish(queries, projected, self.attend_as_written(projected, tiles, mask))
        with full_precision(tiles):
            vectors = self._through_keys(queries)[1] @ self.key.weight
        # A constant of a row would cancel in softmax.
        scores = vectors.to(tiles.dtype) @ tiles.t()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return self.pool(queries, torch.softmax(scores, dim=-1), tiles)

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

    def forward(self, tiles: Tensor, mask: Tensor | None = None) -> Tensor:
        tiles = converted_once(tiles)
        return self.read_latents(tiles, self.read_tiles(self.latents, tiles, mask))


def converted_once(tiles: Tensor) -> Tensor:
    """Under autocast the tiles in its type, converted once instead of for each product."""
    kind = tiles.device.type
    return tiles.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tiles


def xavier_vectors(count: int, width: int) -> Tensor:
    """Vectors at the start: Xavier uniform as for a 1 x count x width tensor (fans count * width and width)."""
    return nn.init.xavier_uniform_(torch.empty(1, count, width))[0]


_LAYERS = {"query": "fc_q", "key": "fc_k", "value": "fc_v", "feed": "fc_o"}
_NORMS = {"norm_attention": "ln0", "norm_feed": "ln1"}


def _attention(
    tensors: Tensors, theirs: str, ours: str, inner: str, *, norm: bool, gated: bool = True
) -> dict[str, Tensor]:
    """The tensors of one attention block; `inner` is what the layout calls torch's attention in it."""
    layers = {**_LAYERS, "out": f"{inner}.out_proj", **(_NORMS if norm else {})}
    if gated:
        layers["gate"] = "gate.0"
    state = renamed(tensors, {f"{ours}.{name}": f"{theirs}.{layer}" for name, layer in layers.items()})
    width = state[f"{ours}.out.weight"].shape[0]
    state[f"{ours}.in_weight"] = tensors[f"{theirs}.{inner}.in_proj_weight"].reshape(3, width, -1)
    state[f"{ours}.in_bias"] = tensors[f"{theirs}.{inner}.in_proj_bias"].reshape(3, width)
    return state


def _register_layout(prefix: str, inner: str) -> None:
    """Register a published layout: the prefix of the model in it, and its name for torch's attention."""

    def convert(tensors: Tensors, config: Config) -> Converted:
        state = {"seed": tensors[f"{prefix}pooling.S"][0], **renamed(tensors, {"head": f"{prefix}classifier"})}
        norm = any(name.endswith((".ln0.weight", ".ln1.weight")) for name in tensors)
        state |= _attention(tensors, f"{prefix}pooling.mha", "pooling", inner, norm=norm, gated=False)
        start = f"{prefix}gab_blocks."
        blocks = len({name.removeprefix(start).split(".")[0] for name in tensors if name.startswith(start)})
        for number in range(blocks):
            block, ours = f"{start}{number}", f"blocks.{number}"
            state[f"{ours}.latents"] = tensors[f"{block}.latent"][0]
            state |= _attention(tensors, f"{block}.project_forward", f"{ours}.read_tiles", inner, norm=norm)
            state |= _attention(tensors, f"{block}.project_backward", f"{ours}.read_latents", inner, norm=norm)
        options = {"inner": state["head.weight"].shape[1], "blocks": blocks, "rank": len(state["blocks.0.latents"])}
        options |= options_of(config, dict.fromkeys(("heads", "n_heads", "num_heads"), "heads"))
        return converted(state, state["blocks.0.read_tiles.key.weight"].shape[1], norm=norm, **options)

    names = ("gab_blocks.0.latent", "pooling.S", f"pooling.mha.{inner}.in_proj_weight")
    register_official("ilra", [f"{prefix}classifier"], convert, names=[prefix + name for name in names])


_register_layout("", "multihead_attn")
# MIL-Lab's copy, bare and inside its Hugging Face wrapper.
_register_layout("", "multihead_attention")
_register_layout("model.", "multihead_attention")
