"""Patch-GCN: graph convolutions over neighboring tiles, then gated attention (Chen et al., 2021).

    edges       every tile -> its 8 nearest tiles by coordinates; a tile receives from those that list it
    x_0 = Dropout(ReLU(W x + b))                                     N x d
    x_1 = GENConv(x_0)                                               the first graph layer without norm and residual
    x_l = Dropout(x_{l-1} + ReLU(LayerNorm(GENConv(x_{l-1}))))       l = 2 .. L
    h   = Dropout(ReLU(W_p [x_0, x_1, .., x_L] + b_p))
    z_i = w . (Dropout(tanh(V h_i + b_V)) * Dropout(sigmoid(U h_i + b_U))) + b_w
    g   = sum_i softmax(z)_i h_i
    logits = W_c ReLU(W_r g + b_r) + b_c                             vlsa: W_c g + b_c

GENConv is in `blocks/graph.py`. Variants:
- official (mahmoodlab/Patch-GCN): d = 128, L = 3 (`num_layers=4` there), h (L + 1) d wide, a layer W_r before the head
- vlsa (liupei101/VLSA, the survival baseline): d = 256, h is d wide, no W_r

Differences from the paper and the official code: docs/methods/patch_gcn.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, Output
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.graph import GENConv, ResidualGENConv, adjacency
from asmil.models.blocks.layers import tile_by_tile
from asmil.models.blocks.neighbors import given_edges, nearest_edges
from asmil.models.blocks.randomness import Dropout
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.official import Config, Converted, Tensors, converted, register_official, renamed
from asmil.models.registry import register
from asmil.models.shared_presets import VLSA_SURVIVAL

WIDTHS = {"official": 128, "vlsa": 256}


class PatchGCNConfig(EmbeddingConfig):
    """Architecture of Patch-GCN."""

    variant: Literal["official", "vlsa"] = Field("official", description="which published network")
    inner: int | None = Field(None, ge=1, description="d, width of a graph layer; by default 128 (vlsa: 256)")
    layers: int = Field(3, ge=1, description="L, the number of graph layers")
    neighbors: int = Field(8, ge=1, description="nearest tiles that a tile sends to")
    conv_bias: bool = Field(False, description="bias in the linear layers of the graph convolutions")
    dropout: float = Field(0.25, ge=0, lt=1, description="on embedded tiles and in the attention network")
    graph_dropout: float = Field(0.1, ge=0, lt=1, description="after a graph layer (all but the first)")


@register(
    "patch_gcn",
    summary="graph convolutions over neighboring tiles, then gated attention",
    paper="Chen et al., Whole Slide Images are 2D Point Clouds: Context-Aware Survival Prediction using Patch-based "
    "Graph Convolutional Networks",
    year=2021,
    presets={
        "official": {"training": {**VLSA_SURVIVAL, "epochs": 20, "sampling": "balanced"}},
        "vlsa": {"model": {"variant": "vlsa"}, "training": VLSA_SURVIVAL},
    },
)
class PatchGCN(MILModel):
    """Patch-GCN; see the module's text for the formulas.

    A bag may have its own `extras["edges"]` (2 x E, [center, neighbor]); `prepare` adds `extras["adjacency"]`, the
    same edges as a sparse matrix (row: the receiving tile).
    """

    config_type = PatchGCNConfig
    score_axes = ("branch",)
    smooths = ("late",)
    config: PatchGCNConfig

    def __init__(self, in_features: int, n_outputs: int, config: PatchGCNConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(
            in_features, config, default_width=WIDTHS[config.variant], dropout=config.dropout
        )
        width = self.embedding.width
        joined = width * (config.layers + 1)
        pooled = joined if config.variant == "official" else width
        self.first = GENConv(width, config.conv_bias)
        self.further = nn.ModuleList(
            ResidualGENConv(width, config.conv_bias, config.graph_dropout) for _ in range(config.layers - 1)
        )
        self.join = nn.Linear(joined, pooled)
        self.attention = ScoreNetwork(pooled, pooled, dropout=config.dropout)
        self.rho = nn.Linear(pooled, pooled) if config.variant == "official" else None
        self.head = nn.Linear(pooled, n_outputs)
        self.dropout = Dropout(config.dropout)

    def prepare(self, bag: Bag) -> Bag:
        bag = super().prepare(bag)
        if "adjacency" in bag.extras:
            return bag
        edges = given_edges(bag)
        if edges is None:
            edges = nearest_edges(bag, self.config.neighbors, "Patch-GCN")
        centers, neighbors = edges
        matrix = adjacency(rows=neighbors, columns=centers, n_tiles=len(bag))
        return replace(bag, extras={**bag.extras, "adjacency": matrix})

    def graph_maps(self, bag: Bag) -> list[Tensor]:
        """x_0, x_1, .., x_L of the module's text, N x d each."""
        matrix = self.prepare(bag).extras["adjacency"]
        maps = [tile_by_tile(self.embedding, bag.features)]
        maps.append(self.first(maps[0], matrix))
        for layer in self.further:
            maps.append(layer(maps[-1], matrix))
        return maps

    def tiles(self, maps: list[Tensor]) -> Tensor:
        """h of the module's text, from `graph_maps`."""
        joined = torch.cat(maps, dim=1)
        return tile_by_tile(lambda rows: self.dropout(functional.relu(self.join(rows))), joined)

    def attend(self, bag: Bag) -> Tensor:
        return self.smooth_scores(tile_by_tile(self.attention, self.tiles(self.graph_maps(bag)), dim=1), bag)

    def forward(self, bag: Bag) -> Output:
        tiles = self.tiles(self.graph_maps(bag))
        scores = self.smooth_scores(tile_by_tile(self.attention, tiles, dim=1), bag)
        pooled = (self.normalizer(scores).to(tiles.dtype) @ tiles).squeeze(0)
        embedding = pooled if self.rho is None else functional.relu(self.rho(pooled))
        return Output(self.head(embedding), scores, embedding)


def _register_layout(variant: str, attention: dict[str, str], head: str) -> None:
    """Register a published layout, given the names of its attention layers and its head."""
    outer = {"embedding.layers.0": "fc.0", "join": "path_phi.0", "head": head}
    outer |= {f"attention.{ours}": f"path_attention_head.{theirs}" for ours, theirs in attention.items()}
    if variant == "official":
        outer["rho"] = "path_rho.0"

    def convert(tensors: Tensors, config: Config) -> Converted:
        layers = dict(outer)
        state = {}
        n_layers = len({name.split(".")[1] for name in tensors if name.startswith("layers.")})
        for layer in range(n_layers):
            ours = "first" if layer == 0 else f"further.{layer - 1}.conv"
            theirs = f"layers.{layer}.conv"
            layers |= {f"{ours}.{name}": f"{theirs}.mlp.{i}" for name, i in (("widen", 0), ("norm", 1), ("narrow", 4))}
            # Old releases of torch_geometric keep t on the layer itself.
            old = f"{theirs}.t"
            state[f"{ours}.t"] = tensors[old if old in tensors else f"{theirs}.aggr_module.t"].reshape(1)
            if layer > 0:
                layers[f"further.{layer - 1}.norm"] = f"layers.{layer}.norm"
        state |= renamed(tensors, layers)
        return converted(state, variant=variant, layers=n_layers, conv_bias="first.widen.bias" in state)

    # the first layer is called without its norm
    register_official("patch_gcn", (*outer.values(), "layers.0.conv.mlp.0"), convert, unused=("layers.0.norm",))


_register_layout("official", {"value": "attention_a.0", "gate": "attention_b.0", "weight": "attention_c"}, "classifier")
_register_layout("vlsa", {"value": "fc1.0", "gate": "score.0", "weight": "fc2"}, "output_layer")
