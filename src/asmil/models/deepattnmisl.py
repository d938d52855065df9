"""DeepAttnMISL: attention over clusters of similar tiles (Yao et al., 2020).

    clusters    k-means on the features of a bag's tiles, C clusters; tiles of cluster c: n_c
    e_i = ReLU(W x_i + b)                            N x d
    h_c = mean of e_i over the tiles of cluster c
    a   = softmax(s) over the clusters that have tiles

                  official                                       vlsa
    g_c           h_c                                            Dropout(ReLU(W_g h_c + b_g))
    s_c           w . tanh(V g_c + b_V) + b_w                    w . (tanh(V g_c + b_V) * sigmoid(U g_c + b_U)) + b_w
    bag           sum_c a_c g_c                                  sum_c a_c g_c
    logits        W_2 Dropout(ReLU(W_1 bag + b_1)) + b_2         W_c bag + b_c

- official (uta-smile/DeepAttnMISL): d = 64, C = 10, V and W_1 32 wide; one output, a Cox log-risk
- vlsa (liupei101/VLSA, the survival baseline): d = 256, C = 8, V and U d wide with dropout; outputs are time bins

The attention weights clusters. The score of a tile is z_i = s_c(i) - log n_c(i): its softmax is a_c / n_c, the tile's
weight in the bag, and the weights of a cluster's tiles sum to a_c. Edge cases: docs/methods/deepattnmisl.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.base import MILModel, Output, masked_scores, refuse_padding
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.kmeans import cluster
from asmil.models.blocks.layers import floating, tile_by_tile
from asmil.models.blocks.randomness import Dropout
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register
from asmil.models.shared_presets import VLSA_SURVIVAL

CLUSTERS = "clusters"
"""The extras of a bag that hold the cluster of each tile, N numbers from 0."""


class DeepAttnMISLConfig(EmbeddingConfig):
    """Architecture of DeepAttnMISL."""

    variant: Literal["official", "vlsa"] = Field("official", description="which published network")
    clusters: int | None = Field(None, ge=1, description="C; by default 10 (vlsa: 8)")
    inner: int | None = Field(None, ge=1, description="d, width of embedded tiles; by default 64 (vlsa: 256)")
    attention: int | None = Field(None, ge=1, description="width of the attention network; by default 32 (vlsa: d)")
    head: int = Field(32, ge=1, description="width of the official head's hidden layer")
    dropout: float | None = Field(None, ge=0, lt=1, description="by default 0.5 in the head (vlsa: 0.25 in attention)")
    mask_empty: bool = Field(True, description="keep clusters without tiles out of the attention")
    fit_tiles: int = Field(5000, ge=1, description="tiles of a bag that k-means is fitted on, at most")
    cluster_restarts: int = Field(1, ge=1, description="starts of k-means; the best is kept")
    cluster_seed: int = Field(0, ge=0, description="seed of k-means")


@register(
    "deepattnmisl",
    summary="tiles are clustered, and attention weighs the clusters",
    paper="Yao et al., Whole Slide Images based Cancer Survival Prediction using Attention Guided Deep Multiple "
    "Instance Learning Networks",
    year=2020,
    presets={
        "official": {
            "training": {
                "lr": 1e-4,
                "weight_decay": 5e-4,
                "epochs": 100,
                "schedule": "constant",
                "accumulate": 16,
                "select": "loss",
                "early_stopping": 15,
            }
        },
        "vlsa": {"model": {"variant": "vlsa"}, "training": VLSA_SURVIVAL},
    },
)
class DeepAttnMISL(MILModel):
    """DeepAttnMISL; see the module's text for the formulas.

    A bag may have its own `extras["clusters"]` (N, cluster of each tile from 0); otherwise `prepare` adds them.
    """

    config_type = DeepAttnMISLConfig
    score_axes = ("branch",)
    why_not_smoothed = "it scores clusters of tiles, not tiles"
    map_kinds = ("attention", "clusters")
    config: DeepAttnMISLConfig

    def __init__(self, in_features: int, n_outputs: int, config: DeepAttnMISLConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        official = config.variant == "official"
        self.clusters = config.clusters or (10 if official else 8)
        self.embedding = TileEmbedding(in_features, config, default_width=64 if official else 256)
        width = self.embedding.width
        hidden = config.attention or (32 if official else width)
        dropout = config.dropout if config.dropout is not None else (0.5 if official else 0.25)
        self.dropout = Dropout(dropout)
        self.mix = None if official else nn.Linear(width, width)
        self.attention = ScoreNetwork(width, hidden, gated=not official, dropout=0.0 if official else dropout)
        self.hidden = nn.Linear(width, config.head) if official else None
        self.head = nn.Linear(config.head if official else width, n_outputs)

    @property
    def tile_tables(self) -> tuple[str, ...]:
        return (CLUSTERS,)

    @property
    def padding_from(self) -> int | None:
        return None if self.embedding.mil_dropout.top else 1

    def prepare(self, bag: Bag) -> Bag:
        given = bag.extras.get(CLUSTERS)
        if given is None:
            refuse_padding(bag)
            settings = self.config
            labels = cluster(
                bag.features, self.clusters, settings.cluster_seed, settings.cluster_restarts, settings.fit_tiles
            )
            return replace(bag, extras={**bag.extras, CLUSTERS: labels.to(bag.features.device)})
        given = torch.as_tensor(given, dtype=torch.int64)
        if len(given) != len(bag):
            raise AsmilError(f"{bag.id}: {len(given)} cluster numbers for {len(bag)} tiles; they must match")
        if not 0 <= int(given.min()) <= int(given.max()) < self.clusters:
            raise AsmilError(
                f"{bag.id}: its clusters are numbered {int(given.min())} to {int(given.max())}, the model takes 0 to "
                f"{self.clusters - 1}; set model.clusters, or leave the clusters out"
            )
        return replace(bag, extras={**bag.extras, CLUSTERS: given})

    def attend(self, bag: Bag) -> Tensor:
        return self._score(bag)[0]

    def forward(self, bag: Bag) -> Output:
        scores, labels, members, means, groups, cluster_scores = self._score(bag)
        shares = self._shares(scores, members, cluster_scores).to(groups.dtype)
        pooled = (shares @ groups).squeeze(0)
        read = pooled if self.hidden is None else self.dropout(functional.relu(self.hidden(pooled)))
        extras = {
            CLUSTERS: labels,
            "cluster_scores": cluster_scores.squeeze(0),
            "cluster_attention": shares.squeeze(0),
            "cluster_features": means,
        }
        return Output(self.head(read), scores, pooled, extras=extras)

    def _score(self, bag: Bag) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Scores z (1 x N), clusters (N), which tile is in which (N x C), h and g (C x d), and scores s (1 x C)."""
        labels = (bag if CLUSTERS in bag.extras else self.prepare(bag)).extras[CLUSTERS]
        embedded = tile_by_tile(self.embedding, bag.features)
        members = labels.unsqueeze(1) == torch.arange(self.clusters, device=labels.device)
        if bag.mask is not None:
            members = members & bag.mask.unsqueeze(1)
        counts = members.sum(dim=0).to(torch.promote_types(embedded.dtype, torch.float32))
        # In float32 at least: float16 cannot hold the sum of many tiles.
        sums = members.to(counts.dtype).t() @ floating(embedded)
        means = (sums / counts.clamp_min(1).unsqueeze(1)).to(self.attention.value.weight.dtype)
        if self.mix is None:
            # Official code feeds a zero tile to an empty cluster.
            no_tile = self.embedding(bag.features.new_zeros(1, self.in_features)).to(means.dtype)
            means = torch.where(counts.unsqueeze(1) == 0, no_tile, means)
            groups = means
        else:
            groups = self.dropout(functional.relu(self.mix(means)))
        cluster_scores: Tensor = self.attention(groups)
        per_tile = cluster_scores - counts.clamp_min(1).log()
        scores = masked_scores((per_tile * members).sum(dim=1).unsqueeze(0), bag)
        return scores, labels, members, means, groups, cluster_scores

    def _shares(self, scores: Tensor, members: Tensor, cluster_scores: Tensor) -> Tensor:
        """The attention of every cluster, 1 x C: the summed weights of its tiles."""
        if not self.config.mask_empty:
            # one more row per cluster, which counts if the cluster is empty
            scores = torch.cat([scores, cluster_scores.masked_fill(members.any(dim=0), -torch.inf)], dim=1)
            members = torch.cat([members, torch.eye(self.clusters, dtype=torch.bool, device=members.device)])
        weights: Tensor = self.normalizer(scores)
        # Not a matrix product, which autocast would round.
        return (weights.t() * members).sum(dim=0, keepdim=True)

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        """`attention`: a_c / n_c, a tile's weight in the bag. `clusters`: a_c, the attention of the tile's cluster."""
        if kind == "clusters":
            assert output.scores is not None
            return output.extras["cluster_attention"][output.extras[CLUSTERS][: output.scores.shape[1]]]
        return super().draw_tile_map(output, kind)


def _register_layout(variant: str, layers: dict[str, str]) -> None:
    """Register a published layout, given the official names of the layers by ours."""

    def convert(tensors: Tensors, config: Config) -> Converted:
        state = renamed(tensors, layers)
        # The embedding is stored as a convolution with a kernel of one tile.
        state["embedding.layers.0.weight"] = state["embedding.layers.0.weight"].flatten(1)
        sizes = {"attention": len(state["attention.value.weight"]), "head": state["head.weight"].shape[1]}
        words = dict.fromkeys(("num_clusters", "cluster_num"), "clusters")
        return converted(state, variant=variant, **sizes, **options_of(config, words))

    register_official("deepattnmisl", layers.values(), convert)


_register_layout(
    "official",
    {
        "embedding.layers.0": "embedding_net.0",
        "attention.value": "attention.0",
        "attention.weight": "attention.2",
        "hidden": "fc6.0",
        "head": "fc6.3",
    },
)
_register_layout(
    "vlsa",
    {
        "embedding.layers.0": "phis.0",
        "mix": "attention_net.0",
        "attention.value": "attention_net.3.fc1.0",
        "attention.gate": "attention_net.3.score.0",
        "attention.weight": "attention_net.3.fc2",
        "head": "output_layer",
    },
)
