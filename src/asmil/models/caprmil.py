"""CAPRMIL: tiles exchange information through soft clusters at linear cost (Lolos et al., 2025).

    h   = dropout(GELU(LayerNorm(W x + b)))                        N x E
    h   = h + Attn(LayerNorm(h))                                   B blocks of these two
    h   = h + MLP(LayerNorm(h))                                    E -> r E, GELU, r E -> E
    bag = mean_n h_n, or sum_n softmax(z)_n h_n                    z: a plain or gated attention network
    logits = W_c bag + b_c

Attn, with H heads of width d = E / H and M clusters, all per head except where shared:

    u = W_x y + b_x      v = W_f y + b_f                           N x d
    S = softmax over clusters of (W_s u + b_s) / tau_h             N x M, shares of a tile in clusters; shared W_s
    c_m = sum_n S_nm v_n / (sum_n S_nm + 1e-5)                     M x d, the means of the clusters
    P = softmax(q k^T / sqrt(d))   c' = P w                        q, k, w: maps of c without bias, shared by all heads
    out_n = sum_m S_nm c'_m,  heads side by side, then a linear layer

Tiles meet only in the sums of the clusters and of the pooling, so a long bag is processed in chunks, of which only h
(N x E) is kept. The head is linear, so the logits are exactly the weighted mean of the tiles' own, W_c h_n + b_c.

Differences from the official code, such as the temperatures tau: docs/methods/caprmil.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, ModelConfig, Output, explained_column, masked_scores, refuse_uneven
from asmil.models.blocks.layers import TileLinear, floating
from asmil.models.blocks.randomness import Dropout
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.official import Config, Converted, Tensors, converted, register_official, renamed
from asmil.models.registry import register

EMPTY_CLUSTER = 1e-5
"""Added to the size of a cluster, so that one without tiles has the mean 0."""


class CAPRMILConfig(ModelConfig):
    """Architecture of CAPRMIL."""

    inner: int = Field(128, ge=1, description="E, width of the tiles")
    heads: int = Field(8, ge=1, description="H; they share the width")
    clusters: int = Field(32, ge=1, description="M, the clusters of each head")
    blocks: int = Field(1, ge=1, description="B")
    mlp_ratio: int = Field(4, ge=1, description="r, the width inside the MLP in units of E")
    pooling: Literal["mean", "attention", "gated"] = Field("mean", description="of the tiles after the last block")
    dropout: float = Field(0.1, ge=0, lt=1, description="on embedding, cluster attention and residual branches")
    attention_dropout: float = Field(0.25, ge=0, lt=1, description="inside the attention network of the pooling")
    learn_temperature: bool = Field(True, description="train tau; false: it is 1")
    min_temperature: float | None = Field(0.01, gt=0, description="smaller tau count as this; null: no limit")


@register(
    "caprmil",
    summary="tiles exchange information through soft clusters, and all count alike",
    paper="Lolos et al., CAPRMIL: Context-Aware Patch Representations for Multiple Instance Learning",
    year=2025,
    presets={
        "official": {
            "model": {"clusters": 4, "min_temperature": None},
            "training": {
                "optimizer": "adamw",
                "lr": 2e-4,
                "lr_min": 1e-7,
                "weight_decay": 1e-5,
                "warmup_epochs": 6,
                "epochs": 30,
                "early_stopping": 20,
                "precision": "fp32",
            },
        }
    },
)
class CAPRMIL(MILModel):
    """CAPRMIL; see the module's text for the formulas."""

    config_type = CAPRMILConfig
    records_steps = False  # not tried on a GPU
    config: CAPRMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: CAPRMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        width = config.inner
        refuse_uneven(width, config.heads)
        self.embedding = TileLinear(in_features, width)
        self.embedding_norm = nn.LayerNorm(width)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(ClusterBlock(config) for _ in range(config.blocks))
        self.attention: ScoreNetwork | None = None
        if config.pooling == "mean":
            self.map_kinds = ("contribution",)
        else:
            self.score_axes, self.map_kinds = ("branch",), ("attention", "contribution")
            self.smooths = ("late",)
            is_gated = config.pooling == "gated"
            self.attention = ScoreNetwork(width, width, gated=is_gated, dropout=config.attention_dropout)
        self.head = nn.Linear(width, n_outputs)

    @property
    def can_stream(self) -> bool:
        return not self.smoothed

    @property
    def classifies_tiles(self) -> bool:
        return True

    @property
    def padding_from(self) -> int | None:
        return None if self.smoothed else 1

    def attend(self, bag: Bag) -> Tensor:
        if self.attention is None:
            return super().attend(bag)
        (tiles,) = self.contextualize([bag.features], bag.mask)
        return masked_scores(self.smooth_scores(self.attention(tiles), bag), bag)

    def forward(self, bag: Bag) -> Output:
        return self._pool(self.contextualize([bag.features], bag.mask), bag)

    @torch.no_grad()
    def stream(self, chunks: Iterable[Tensor]) -> Output:
        return self._pool(self.contextualize(chunks, None))

    def contextualize(self, chunks: Iterable[Tensor], mask: Tensor | None) -> list[Tensor]:
        """h after the last block, n x E for each chunk of features (n x D); mask: of a bag that is one chunk."""
        tiles = [self._embed(features) for features in chunks]
        for block in self.blocks:
            block(tiles, mask)
        return tiles

    def clusters(self, bag: Bag) -> Iterator[tuple[Tensor, Tensor]]:
        """For every block, the shares S of tiles in clusters (H x N x M) and the clusters' attention P (H x M x M)."""
        tiles = [self._embed(bag.features)]
        for block in self.blocks:
            assert isinstance(block, ClusterBlock)
            yield block.clusters(tiles, bag.mask)
            block(tiles, bag.mask)

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        """`contribution`: the tile's share of the logit of the predicted class, or of the risk; they add up to it."""
        if kind == "attention":
            return super().draw_tile_map(output, kind)
        assert output.instance_logits is not None, "forward always gives the tiles' logits"
        column = explained_column(output, output.instance_logits)
        return column / _rows(column) if output.scores is None else column * self.normalizer(output.scores)[0]

    def _embed(self, features: Tensor) -> Tensor:
        autocast = torch.is_autocast_enabled(features.device.type)
        embedded = self.embedding(features if autocast else features.to(self.embedding.weight.dtype))
        return self.dropout(functional.gelu(self.embedding_norm(embedded)))

    def _pool(self, chunks: list[Tensor], bag: Bag | None = None) -> Output:
        """bag: what the only chunk was computed from; None: the bag is streamed."""
        scores: Tensor | None = None
        mask = None if bag is None else bag.mask
        if self.attention is None:
            masked = chunks if mask is None else [tiles * mask.unsqueeze(1) for tiles in chunks]
            sums = [tiles.sum(dim=0, dtype=floating(tiles).dtype) for tiles in masked]
            pooled = torch.stack(sums).sum(dim=0) / (sum(map(_rows, chunks)) if mask is None else mask.sum())
        else:
            scores = torch.cat([self.attention(tiles) for tiles in chunks], dim=1)
            scores = scores if bag is None else masked_scores(self.smooth_scores(scores, bag), bag)
            weights = self.normalizer(scores).split([_rows(tiles) for tiles in chunks], dim=1)
            parts = [share.to(tiles.dtype) @ tiles for share, tiles in zip(weights, chunks, strict=True)]
            pooled = torch.stack(parts).sum(dim=0).squeeze(0)
        embedding = pooled.to(self.head.weight.dtype)
        instance_logits = torch.cat([self.head(tiles) for tiles in chunks])
        return Output(self.head(embedding), scores, embedding, instance_logits)


def _rows(tiles: Tensor) -> int:
    return tiles.shape[0]


class ClusterBlock(nn.Module):
    """Attention through clusters and an MLP, both as residuals, on the tiles of a bag in chunks."""

    temperature: Tensor

    def __init__(self, config: CAPRMILConfig) -> None:
        super().__init__()
        width, head_width = config.inner, config.inner // config.heads
        self.heads, self.min_temperature = config.heads, config.min_temperature
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.assigned, self.value = TileLinear(width, width), TileLinear(width, width)
        self.assign = nn.Linear(head_width, config.clusters)
        nn.init.orthogonal_(self.assign.weight)
        if config.learn_temperature:
            self.temperature = nn.Parameter(torch.full((config.heads,), 0.5))
        else:
            self.register_buffer("temperature", torch.ones(config.heads))
        self.cluster_query, self.cluster_key, self.cluster_value = (
            nn.Linear(head_width, head_width, bias=False) for _ in range(3)
        )
        self.out = TileLinear(width, width)
        self.widen = TileLinear(width, config.mlp_ratio * width)
        self.narrow = TileLinear(config.mlp_ratio * width, width)
        self.dropout = Dropout(config.dropout)

    def forward(self, chunks: list[Tensor], mask: Tensor | None) -> None:
        """Replace h of every chunk (n x E)."""
        is_whole = len(chunks) == 1
        shares, means = self._means(chunks, mask)
        attention, values = self._exchange(means)
        mixed = self.dropout(attention) @ values
        for index, tiles in enumerate(chunks):
            share = shares if is_whole else self._shares(self.attention_norm(tiles))
            # as in the official code, dropout follows the layer and then acts on the residual branch again
            spread = self.out((share @ mixed.to(share.dtype)).transpose(0, 1).flatten(1).to(tiles.dtype))
            tiles = tiles + self.dropout(self.dropout(spread))
            inside = functional.gelu(self.widen(self.mlp_norm(tiles)))
            chunks[index] = tiles + self.dropout(self.dropout(self.narrow(inside)))

    def clusters(self, chunks: list[Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """S of the last chunk, and P."""
        shares, means = self._means(chunks, mask)
        return shares, self._exchange(means)[0]

    def _means(self, chunks: list[Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """S of the last chunk (H x n x M), and c over all chunks (H x M x d)."""
        sizes, sums = [], []
        for tiles in chunks:
            normed = self.attention_norm(tiles)
            shares = self._shares(normed)
            counted = shares if mask is None else shares * mask.unsqueeze(1)
            sizes.append(counted.sum(dim=1))
            values = self._by_head(self.value(normed))
            sums.append(floating(counted.transpose(1, 2).to(values.dtype) @ values))
        total = torch.stack(sums).sum(dim=0)
        return shares, total / (torch.stack(sizes).sum(dim=0).unsqueeze(2) + EMPTY_CLUSTER)

    def _shares(self, normed: Tensor) -> Tensor:
        """S, H x n x M, in float32 at least."""
        temperature = floating(self.temperature)
        if self.min_temperature is not None:
            temperature = temperature.clamp(min=self.min_temperature)
        logits = floating(self.assign(self._by_head(self.assigned(normed))))
        return torch.softmax(logits / temperature.view(-1, 1, 1), dim=-1)

    def _exchange(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """P (H x M x M) and w (H x M x d)."""
        means = means.to(self.cluster_query.weight.dtype)
        query, key, values = self.cluster_query(means), self.cluster_key(means), self.cluster_value(means)
        return torch.softmax(query @ key.transpose(1, 2) * means.shape[-1] ** -0.5, dim=-1), values

    def _by_head(self, tiles: Tensor) -> Tensor:
        """n x E -> H x n x d."""
        return tiles.view(tiles.shape[0], self.heads, -1).transpose(0, 1)


BLOCK_LAYERS = {
    "attention_norm": "ln1",
    "mlp_norm": "ln2",
    "assigned": "attn.in_project_x",
    "value": "attn.in_project_fx",
    "assign": "attn.in_project_slice",
    "cluster_query": "attn.to_q",
    "cluster_key": "attn.to_k",
    "cluster_value": "attn.to_v",
    "out": "attn.to_out.0",
    "widen": "mlp.0",
    "narrow": "mlp.2",
}
OUTER_LAYERS = {"embedding": "input_proj.0", "embedding_norm": "input_proj.1", "head": "classifier"}
POOLINGS = {
    "mean": {},
    "attention": {"attention.value": "aggregator.attn.0", "attention.weight": "aggregator.attn.3"},
    "gated": {
        "attention.value": "aggregator.attn.attention_a.0",
        "attention.gate": "aggregator.attn.attention_b.0",
        "attention.weight": "aggregator.attn.attention_c",
    },
}


def _block_layers(number: int) -> dict[str, str]:
    return {f"blocks.{number}.{ours}": f"blocks.{number}.{theirs}" for ours, theirs in BLOCK_LAYERS.items()}


def _register_layout(pooling: str) -> None:
    outer = {**OUTER_LAYERS, **POOLINGS[pooling]}

    def convert(tensors: Tensors, config: Config) -> Converted:
        blocks = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blocks."))
        layers = dict(outer)
        for number in range(blocks):
            layers |= _block_layers(number)
        state = renamed(tensors, layers)
        for number in range(blocks):
            state[f"blocks.{number}.temperature"] = tensors[f"blocks.{number}.attn.temperature"].flatten()
        inner, in_features = state["embedding.weight"].shape
        return converted(
            state,
            in_features,
            inner=inner,
            heads=len(state["blocks.0.temperature"]),
            clusters=len(state["blocks.0.assign.weight"]),
            blocks=blocks,
            mlp_ratio=len(state["blocks.0.widen.weight"]) // inner,
            pooling=pooling,
            learn_temperature=bool(config.get("use_temperature", True)),
            min_temperature=None,
        )

    register_official("caprmil", (*outer.values(), *_block_layers(0).values()), convert)


for _pooling in POOLINGS:
    _register_layout(_pooling)
