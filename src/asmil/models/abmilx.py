"""ABMILX: attention pooling by several heads whose scores are refined by those of similar tiles (Tang et al., 2025).

    h_i   = act(W x_i + b)                                                  E wide, in H slices h_i^k of width d = E / H
    r_ki  = w . GELU(V h_i^k + b_V) + b_w                                   the same network for every head
    u_i   = LayerNorm(h_i^k),   q_i, k_i = W_q u_i, W_k u_i                 the same for every head, no biases
    z_ki  = r_ki + s sum_j softmax_j(q_i . k_j / sqrt(d)) r_kj              s: one number
    f_k   = sum_i softmax(z_k)_i h_i^k
    f     = W_p [f_1, .., f_H] + b_p
    logits = W_c f + b_c

joint: V, the LayerNorm and W_q, W_k read all of h_i instead of a slice; w has one row per head.
norm: a LayerNorm of x_i before W, and one of f before W_c.
feed_forward: f <- f + W_b GELU(W_a n(f) + b_a) + b_b, 4 E wide; n is a LayerNorm, or nothing with `norm`.

A refined score depends on all tiles and costs H N^2 products; no N x N matrix is kept (`blocks/score_attention.py`). s
starts as a standard normal number, so its sign is random: at the start, similar tiles add to a score or subtract from
it. Differences from the official code: docs/methods/abmilx.md.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, Output, masked_scores, refuse_uneven
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.layers import start_linear, tile_by_tile
from asmil.models.blocks.score_attention import attend_to_scores
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register

WIDTH = 512


class ABMILXConfig(EmbeddingConfig):
    """Architecture of ABMILX."""

    heads: int = Field(8, ge=1, description="H, the number of heads")
    attention: int | None = Field(None, ge=1, description="width of the score network; by default as wide as its input")
    refine: bool = Field(True, description="refine the scores by those of similar tiles, or pool with the raw scores")
    joint: bool = Field(False, description="score and compare whole embeddings, or the slice of each head")
    bias: bool = Field(False, description="biases of embedding, projection and head, and of the norms of `norm`")
    attention_bias: bool = Field(False, description="biases of the score network")
    norm: bool = Field(False, description="LayerNorm of the features and of the bag embedding")
    feed_forward: bool = Field(False, description="a feed-forward block after the projection")
    activation: Literal["relu", "gelu"] = Field("gelu", description="of the embedding")
    dropout: float = Field(0.25, ge=0, lt=1, description="on the embedding")


@register(
    "abmilx",
    summary="attention pooling by several heads; each score is refined by those of similar tiles",
    paper="Tang et al., Revisiting End-to-End Learning with Slide-level Supervision in Computational Pathology",
    year=2025,
    presets={
        "official": {
            "model": {"bias": True, "attention_bias": True, "activation": "relu"},
            "training": {
                "optimizer": "adamw",
                "lr": 1e-4,
                "weight_decay": 0.0,
                "epochs": 75,
                "early_stopping": 20,
            },
        }
    },
)
class ABMILX(MILModel):
    """ABMILX; see the module's text for the formulas."""

    config_type = ABMILXConfig
    score_axes = ("head",)
    smooths = ("late",)
    records_steps = False  # padding costs N^2 products; bags without padding have fused attention
    config: ABMILXConfig

    def __init__(self, in_features: int, n_outputs: int, config: ABMILXConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.feature_norm = nn.LayerNorm(in_features, bias=config.bias) if config.norm else None
        self.embedding = TileEmbedding(
            in_features,
            config,
            default_width=WIDTH,
            bias=config.bias,
            activation=config.activation,
            dropout=config.dropout,
        )
        width = self.embedding.width
        refuse_uneven(width, config.heads)
        self.head_width = width // config.heads
        scored = width if config.joint else self.head_width
        self.attention = ScoreNetwork(
            scored,
            config.attention or scored,
            config.heads if config.joint else 1,
            gated=False,
            bias=config.attention_bias,
            activation="gelu",
        )
        self.similarity = Similarity(scored, self.head_width) if config.refine else None
        self.projection = nn.Linear(width, width, bias=config.bias)
        self.feed_forward = FeedForward(width, norm=not config.norm) if config.feed_forward else None
        self.bag_norm = nn.LayerNorm(width, bias=config.bias) if config.norm else None
        self.head = nn.Linear(width, n_outputs, bias=config.bias)
        start_linear(self)

    @property
    def padding_from(self) -> int | None:
        return None if self.smoothed or self.embedding.mil_dropout.top else 1

    def embed(self, features: Tensor) -> Tensor:
        """h of the module's text, N x E."""
        if self.feature_norm is not None:
            features = self.feature_norm(features.to(self.feature_norm.weight.dtype))
        return self.embedding(features)

    def raw_scores(self, embedded: Tensor) -> Tensor:
        """r of the module's text, H x N, from h."""
        if self.config.joint:
            return self.attention(embedded)
        slices = embedded.reshape(-1, self.head_width)
        return self.attention(slices).view(-1, self.config.heads).t()

    def scores(self, embedded: Tensor, bag: Bag) -> Tensor:
        """z of the module's text, H x N, from h."""
        raw = tile_by_tile(self.raw_scores, embedded, dim=1)
        if self.similarity is not None:
            raw = raw + self.similarity(embedded, raw, bag.mask).to(raw.dtype)
        return masked_scores(self.smooth_scores(raw, bag), bag)

    def attend(self, bag: Bag) -> Tensor:
        return self.scores(tile_by_tile(self.embed, bag.features), bag)

    def forward(self, bag: Bag) -> Output:
        embedded = tile_by_tile(self.embed, bag.features)
        scores = self.scores(embedded, bag)
        attention = self.normalizer(scores).to(embedded.dtype)
        slices = embedded.view(-1, self.config.heads, self.head_width)
        pooled = torch.matmul(attention.unsqueeze(1), slices.transpose(0, 1)).flatten()
        embedding = self.projection(pooled)
        if self.feed_forward is not None:
            embedding = embedding + self.feed_forward(embedding)
        if self.bag_norm is not None:
            embedding = self.bag_norm(embedding)
        return Output(self.head(embedding), scores, embedding)


class Similarity(nn.Module):
    """s P r of the module's text: H x N, from h (N x E) and r (H x N).

    width: what is normalized and compared, a slice of the embedding or all of it
    """

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query_key = nn.Linear(width, 2 * width, bias=False)
        self.strength = nn.Linear(1, 1, bias=False)
        self.head_width = head_width

    def forward(self, embedded: Tensor, raw: Tensor, mask: Tensor | None) -> Tensor:
        queries, keys = tile_by_tile(self._queries_and_keys, embedded, dim=2)
        return attend_to_scores(queries, keys, raw * self.strength.weight[0, 0], mask)

    def _queries_and_keys(self, embedded: Tensor) -> Tensor:
        """2 x H x N x d, in blocks of tiles."""
        rows = embedded.reshape(-1, self.query_key.in_features)
        both = self.query_key(self.norm(rows)).view(embedded.shape[0], -1, 2, self.query_key.in_features)
        return both.permute(2, 0, 1, 3).reshape(2, embedded.shape[0], -1, self.head_width).transpose(1, 2)


class FeedForward(nn.Module):
    """W_b GELU(W_a n(f) + b_a) + b_b, with a LayerNorm as n if `norm`."""

    def __init__(self, width: int, norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm else None
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, embedding: Tensor) -> Tensor:
        rows = embedding if self.norm is None else self.norm(embedding)
        return self.narrow(functional.gelu(self.widen(rows)))


_LAYERS = {
    "attention.value": "attention.fc1",
    "attention.weight": "attention.fc2",
    "projection": "proj",
    "head": "classifier",
}
_SIMILARITY = {
    "similarity.norm": "attn_plus_fn.norm_x",
    "similarity.query_key": "attn_plus_fn.qk",
    "similarity.strength": "attn_plus_fn.v",
}
_FEED_FORWARD = {"feed_forward.widen": "mlp.fc1", "feed_forward.narrow": "mlp.fc2"}


def _convert(tensors: Tensors, config: Config) -> Converted:
    layers = dict(_LAYERS)
    norm = "norm1.weight" in tensors or "feature.1.weight" in tensors
    refine, feed_forward = "attn_plus_fn.qk.weight" in tensors, "mlp.fc1.weight" in tensors
    if norm:
        layers |= {"feature_norm": "feature.0", "embedding.layers.0": "feature.1", "bag_norm": "norm1"}
    else:
        layers["embedding.layers.0"] = "feature.0"
    if refine:
        layers |= _SIMILARITY
    if feed_forward:
        layers |= _FEED_FORWARD if norm else {**_FEED_FORWARD, "feed_forward.norm": "norm_ffn"}
    state = renamed(tensors, layers)
    inner, in_features = len(state["projection.weight"]), state["embedding.layers.0.weight"].shape[-1]
    hidden, scored = state["attention.value.weight"].shape
    outputs = len(state["attention.weight.weight"])
    heads = inner // scored if outputs == 1 and scored < inner else outputs
    return converted(
        state,
        in_features,
        inner=inner,
        heads=heads,
        attention=hidden,
        refine=refine,
        joint=scored == inner and heads > 1,
        bias="projection.bias" in state,
        attention_bias="attention.value.bias" in state,
        norm=norm,
        feed_forward=feed_forward,
        **options_of(config, {"act": "activation"}),
    )


register_official("abmilx", _LAYERS.values(), _convert)
