"""WiKG: a graph that the tiles' features define, with knowledge-aware attention (Li et al., 2024).

    h_i  = LeakyReLU(W x_i + b),   then h_i <- (h_i + mean of h) / 2                             d wide
    e_i  = W_h h_i + b_h,   t_i = W_t h_i + b_t                                                  head and tail
    j    the k tiles with the largest e_i . t_j, tile i itself allowed
    m_i  = sum_j softmax_j(u_ij) t_j,   u_ij from e_i and t_j: `blocks/knowledge_mix.py`
    v_i  = Dropout(LeakyReLU(W_1 (e_i + m_i) + b_1) + LeakyReLU(W_2 (e_i * m_i) + b_2))          bi-interaction
           Dropout(LeakyReLU(W_1 (e_i + m_i) + b_1))                                             gcn
           Dropout(LeakyReLU(W_1 [e_i, m_i] + b_1))                                              sage
    z_i  = w . LeakyReLU(A v_i + a) + c
    bag  = LayerNorm(sum_i softmax(z)_i v_i)                                                     attention
           LayerNorm(mean of v),   LayerNorm(largest value of every channel)                     mean, max
    logits = W_c bag + b_c

u is a product of two sums in the official code (default), a dot product in the paper. LeakyReLU has the slope 0.01.
Coordinates are not used. Neither the N x N products nor the N x k x d neighbors are kept. Differences from the official
code: docs/methods/wikg.md.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.base import MILModel, Output, masked_scores
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.knowledge_mix import Mixed, mix
from asmil.models.blocks.layers import floating, tile_by_tile
from asmil.models.blocks.randomness import Dropout
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.blocks.similar_tiles import most_similar
from asmil.models.official import Config, Converted, Tensors, converted, register_official, renamed
from asmil.models.registry import register

WIDTH = 512


class WiKGConfig(EmbeddingConfig):
    """Architecture of WiKG."""

    neighbors: int = Field(6, ge=1, description="k, the neighbors of a tile (fewer in a bag of fewer tiles)")
    knowledge: Literal["product_of_sums", "dot_product"] = Field(
        "product_of_sums", description="how a neighbor is scored: as in the official code, or as in the paper"
    )
    aggregation: Literal["bi-interaction", "gcn", "sage"] = Field(
        "bi-interaction", description="how a tile and the mean of its neighbors are joined"
    )
    readout: Literal["attention", "mean", "max"] = Field("attention", description="how the tiles are pooled")
    dropout: float = Field(0.3, ge=0, lt=1, description="on the tiles before the readout")


@register(
    "wikg",
    summary="every tile chooses the tiles that fit it best, mixes them into itself, then attention",
    paper="Li et al., Dynamic Graph Representation with Knowledge-aware Attention for Histopathology Whole Slide Image "
    "Analysis",
    year=2024,
    presets={
        "official": {
            "model": {"readout": "mean"},
            "training": {"lr": 1e-4, "weight_decay": 1e-5, "epochs": 100, "schedule": "constant"},
        }
    },
)
class WiKG(MILModel):
    """WiKG; see the module's text for the formulas."""

    config_type = WiKGConfig
    score_axes: tuple[str, ...] = ("branch",)
    smooths: tuple[str, ...] = ("late",)
    map_kinds: tuple[str, ...] = ("attention", "neighbors")
    records_steps = False  # padding costs N^2 products
    config: WiKGConfig

    def __init__(self, in_features: int, n_outputs: int, config: WiKGConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(in_features, config, default_width=WIDTH, activation="leaky_relu")
        width = self.embedding.width
        self.choosing = nn.Linear(width, width)
        self.chosen = nn.Linear(width, width)
        self.join = nn.Linear(2 * width if config.aggregation == "sage" else width, width)
        self.join_product = nn.Linear(width, width) if config.aggregation == "bi-interaction" else None
        self.dropout = Dropout(config.dropout)
        self.attention: ScoreNetwork | None = None
        if config.readout == "attention":
            self.attention = ScoreNetwork(width, max(1, width // 2), gated=False, activation="leaky_relu")
        else:
            self.score_axes = ()
            self.smooths = ()
            self.map_kinds = ("neighbors", "channels") if config.readout == "max" else ("neighbors",)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_outputs)

    @property
    def padding_from(self) -> int | None:
        # smaller bags have fewer neighbors; without attention, the maps do not know how many tiles there are
        masks = self.attention is not None and not (self.smoothed or self.embedding.mil_dropout.top)
        return self.config.neighbors if masks else None

    def heads_and_tails(self, features: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """e and t of the module's text, N x d each; mask: N, true for tiles."""
        embedded = tile_by_tile(self.embedding, features)
        wide = floating(embedded)
        mean = wide.mean(dim=0) if mask is None else wide.masked_fill(~mask.unsqueeze(1), 0.0).sum(dim=0) / mask.sum()
        mean = mean.to(embedded.dtype)

        def halfway(layer: nn.Linear) -> Tensor:
            return tile_by_tile(lambda rows: layer((rows + mean) * 0.5), embedded)

        return halfway(self.choosing), halfway(self.chosen)

    def mixed(self, heads: Tensor, tails: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Mixed]:
        """The neighbors of every tile (N x k), and what it reads from them."""
        neighbors = most_similar(heads, tails, self.config.neighbors, mask)
        return neighbors, mix(heads, tails, neighbors, self.config.knowledge == "dot_product")

    def nodes(self, heads: Tensor, mixed: Tensor) -> Tensor:
        """v of the module's text, N x d, from e and m."""
        return self.dropout(tile_by_tile(self._joined, heads, mixed))

    def _joined(self, heads: Tensor, mixed: Tensor) -> Tensor:
        mixed = mixed.to(heads.dtype)
        if self.config.aggregation == "sage":
            return functional.leaky_relu(self.join(torch.cat([heads, mixed], dim=1)))
        joined = functional.leaky_relu(self.join(heads + mixed))
        if self.join_product is None:
            return joined
        return joined + functional.leaky_relu(self.join_product(heads * mixed))

    def score(self, nodes: Tensor, bag: Bag) -> Tensor | None:
        """z of the module's text, 1 x N; None without attention."""
        if self.attention is None:
            return None
        return masked_scores(self.smooth_scores(tile_by_tile(self.attention, nodes, dim=1), bag), bag)

    def pool(self, nodes: Tensor, scores: Tensor | None) -> Tensor:
        """The bag before the LayerNorm, d."""
        if scores is not None:
            return (self.normalizer(scores).to(nodes.dtype) @ nodes).squeeze(0)
        if self.config.readout == "max":
            return nodes.amax(dim=0)
        return floating(nodes).mean(dim=0).to(nodes.dtype)

    def attend(self, bag: Bag) -> Tensor:
        heads, tails = self.heads_and_tails(bag.features, bag.mask)
        scores = self.score(self.nodes(heads, self.mixed(heads, tails, bag.mask)[1].tails), bag)
        if scores is None:
            raise AsmilError(f"WiKG with model.readout = {self.config.readout} has no attention, so it has no scores")
        return scores

    def forward(self, bag: Bag) -> Output:
        heads, tails = self.heads_and_tails(bag.features, bag.mask)
        neighbors, mixed = self.mixed(heads, tails, bag.mask)
        nodes = self.nodes(heads, mixed.tails)
        scores = self.score(nodes, bag)
        embedding = self.norm(self.pool(nodes, scores))
        extras = {} if self.training else self._read_weights(neighbors, mixed.attention, nodes, bag.mask)
        return Output(self.head(embedding), scores, embedding, extras=extras)

    @torch.no_grad()
    def _read_weights(
        self, neighbors: Tensor, attention: Tensor, nodes: Tensor, mask: Tensor | None
    ) -> dict[str, Tensor]:
        """What the maps besides the attention show, N each."""
        if mask is not None:
            attention = attention.masked_fill(~mask.unsqueeze(1), 0.0)
        read = attention.new_zeros(nodes.shape[0])
        extras = {"neighbor_weights": read.index_add(0, neighbors.clamp(min=0).flatten(), attention.flatten())}
        if self.config.readout == "max":
            winners = nodes.argmax(dim=0)
            extras["won_channels"] = read.index_add(0, winners, torch.ones_like(winners, dtype=read.dtype))
        return extras

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        """`attention`: of the readout. `neighbors`: the weights with which all tiles read a tile, summed up.

        `channels` (readout max): in how many channels a tile has the largest value.
        """
        if kind == "attention":
            return super().draw_tile_map(output, kind)
        values = output.extras["neighbor_weights" if kind == "neighbors" else "won_channels"]
        return values if output.scores is None else values[: output.scores.shape[1]]


_UNUSED = ("gate_U", "gate_V", "gate_W")
_LAYERS = {"embedding.layers.0": "_fc1.0", "choosing": "W_head", "chosen": "W_tail", "norm": "norm"}
_SCORES = {"attention.value": "readout.gate_nn.0", "attention.weight": "readout.gate_nn.2"}
_READOUTS = {"attn": "attention", "mean": "mean", "max": "max"}


def _register_layout(head: str) -> None:
    """Register a published layout, given the name of its head."""

    def convert(tensors: Tensors, config: Config) -> Converted:
        layers = {**_LAYERS, "head": head}
        if any(name.startswith(("linear1.", "linear2.")) for name in tensors):
            aggregation = "bi-interaction"
            layers |= {"join": "linear1", "join_product": "linear2"}
        else:
            layers["join"] = "linear"
            aggregation = ""
        has_scores = any(name.startswith("readout.") for name in tensors)
        if has_scores:
            layers |= _SCORES
        state = renamed(tensors, layers)
        if not aggregation:
            aggregation = "gcn" if state["join.weight"].shape[-1] == len(state["join.weight"]) else "sage"
        asked = str(config.get("pool", "mean"))
        readout = "attention" if has_scores else _READOUTS.get(asked, asked)
        options = {"knowledge": config["knowledge_reading"]} if "knowledge_reading" in config else {}
        if "topk" in config:
            options["neighbors"] = config["topk"]
        return converted(state, aggregation=aggregation, readout=readout, **options)

    register_official("wikg", (*_LAYERS.values(), head), convert, unused=_UNUSED)


_register_layout("fc")
_register_layout("classifier")  # the authors' later toolbox
