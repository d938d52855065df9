"""R2T-MIL: re-embedded regional transformer (Tang et al., Feature Re-Embedding, 2024).

    x = Dropout(act(W_e t_i + b_e))                                  I wide
    x <- x + R-MSA(LayerNorm(x))                                     `layers` - 1 times: attention within windows, EPEG
    x <- x + CR-MSA(LayerNorm(x))                                    once: attention between windows
    x <- LayerNorm(x [+ the encoder's input, with all_shortcut])     the re-embedded tiles
    z_i = w . act(W_1 x_i);   bag = sum_i softmax(z)_i x_i;   logits = W_c bag + b_c

The layers are in `r2t_regional.py`. Coordinates are not used: the tiles are folded into a square in the order of the
file, row by row, and the square is cut into windows (8 x 8 of them), padded with zero tokens that are keys and values
like any other. So the order matters; the slides of a patient are folded as one sequence. Scores are the pooling's.
Differences from the paper and the official code, and edge cases: docs/methods/r2t.md.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.base import MILModel, Output, refuse_uneven
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.layers import Activation, start_linear
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.r2t_regional import CrossRegionAttention, FeedForward, Folding, RegionalLayer, RegionAttention
from asmil.models.registry import register
from asmil.models.shared_presets import MHIM_AND_R2T

WIDTH = 512


class R2TConfig(EmbeddingConfig):
    """Architecture of R2T-MIL; the embedding is 512 wide unless `inner` is given."""

    activation: Literal["relu", "gelu"] = Field("relu", description="of the embedding")
    dropout: float = Field(0.25, ge=0, lt=1, description="on the embedding")
    layers: int = Field(2, ge=1, description="the last one is CR-MSA, those before it are R-MSA")
    heads: int = Field(8, ge=1, description="of R-MSA")
    region_num: int = Field(
        8, ge=1, description="windows along a side of the square, in R-MSA; 16 or more for long bags"
    )
    region_size: int | None = Field(None, ge=1, description="instead: tiles along a side of a window")
    min_region_num: int = Field(0, ge=0, description="bags of fewer tiles are one window in R-MSA")
    min_region_ratio: float = Field(
        0.0, ge=0, description="f: so are bags padded by more than 1/f of their tiles; 0: none"
    )
    epeg_k: int = Field(15, ge=0, description="kernel of the position encoding of R-MSA, odd; 0: none")
    crmsa_k: int = Field(3, ge=1, description="representatives of a window in CR-MSA")
    crmsa_heads: int = Field(8, ge=1, description="of CR-MSA")
    crmsa_mlp: bool = Field(False, description="representatives from a small network, not a matrix")
    crmsa_regions: int = Field(8, ge=1, description="windows along a side of the square, in CR-MSA")
    all_shortcut: bool = Field(False, description="add the encoder's input to its output")
    layer_dropout: float = Field(0.1, ge=0, lt=1, description="on the output of attention and feed-forward layers")
    ffn: bool = Field(False, description="a feed-forward layer after every attention")
    ffn_ratio: float = Field(4.0, gt=0, description="its width, as a multiple of the embedding's")
    ffn_activation: Literal["relu", "gelu"] = Field("gelu", description="its activation")
    attention: int = Field(128, ge=1, description="width of the pooling's attention network")
    attention_activation: Activation = Field("tanh", description="its activation")
    attention_bias: bool = Field(False, description="biases in it")
    gated: bool = Field(False, description="with a sigmoid gate")


@register(
    "r2t",
    summary="tiles are re-embedded by attention within and between windows of the sequence, then pooled by attention",
    paper="Tang et al., Feature Re-Embedding: Towards Foundation Model-Level Performance in Computational Pathology",
    year=2024,
    presets={"official": {"model": {"crmsa_k": 1, "all_shortcut": True}, "training": MHIM_AND_R2T}},
)
class R2T(MILModel):
    """R2T-MIL; see the module's text for the formulas."""

    config_type = R2TConfig
    score_axes = ("branch",)
    smooths = ("late",)
    config: R2TConfig

    def __init__(self, in_features: int, n_outputs: int, config: R2TConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(
            in_features, config, default_width=WIDTH, activation=config.activation, dropout=config.dropout
        )
        width = self.embedding.width
        refuse_uneven(width, config.heads)
        refuse_uneven(width, config.crmsa_heads, "crmsa_heads")
        if config.epeg_k and config.epeg_k % 2 == 0:
            raise AsmilError(
                f"model.epeg_k = {config.epeg_k}: an even kernel has no middle; choose {config.epeg_k - 1} or "
                f"{config.epeg_k + 1}, or 0 for none"
            )
        heads, dropout = (config.heads, config.crmsa_heads), config.layer_dropout
        folding = Folding(config.region_num, config.region_size, config.min_region_num, config.min_region_ratio)
        self.regional = nn.Sequential(
            *(
                _layer(RegionAttention(width, heads[0], dropout, folding, config.epeg_k), width, config)
                for _ in range(config.layers - 1)
            )
        )
        cross_folding = Folding(config.crmsa_regions)
        cross = CrossRegionAttention(width, heads[1], dropout, cross_folding, config.crmsa_k, config.crmsa_mlp)
        self.cross = _layer(cross, width, config)
        self.norm = nn.LayerNorm(width)
        self.attention = ScoreNetwork(
            width,
            config.attention,
            gated=config.gated,
            bias=config.attention_bias,
            activation=config.attention_activation,
        )
        self.head = nn.Linear(width, n_outputs)
        start_linear(self)

    def reembed(self, bag: Bag) -> Tensor:
        """The tiles after the encoder, N x I: what the pooling reads."""
        embedded: Tensor = self.embedding(bag.features)
        x = self.cross(self.regional(embedded))
        return self.norm(x + embedded if self.config.all_shortcut else x)

    def attend(self, bag: Bag) -> Tensor:
        return self.smooth_scores(self.attention(self.reembed(bag)), bag)

    def forward(self, bag: Bag) -> Output:
        tiles = self.reembed(bag)
        scores = self.smooth_scores(self.attention(tiles), bag)
        embedding = (self.normalizer(scores).to(tiles.dtype) @ tiles).squeeze(0)
        return Output(self.head(embedding), scores, embedding)


def _layer(attention: nn.Module, width: int, config: R2TConfig) -> RegionalLayer:
    hidden = round(width * config.ffn_ratio)
    feed = FeedForward(width, hidden, config.ffn_activation, config.layer_dropout) if config.ffn else None
    return RegionalLayer(width, attention, feed)


_LAYER = {"norm": "norm", "attention.attention.qkv": "attn.attn.qkv", "attention.attention.out": "attn.attn.proj"}
_OPTIONAL_LAYERS = {
    "attention.attention.epeg": "attn.attn.pe",
    "attention.phi.0": "attn.phi.0",
    "attention.phi.2": "attn.phi.2",
    "norm_feed": "norm2",
    "feed.widen": "mlp.fc1",
    "feed.narrow": "mlp.fc2",
}
_POOLING = {"attention.value": "attention.attention.0", "attention.weight": "attention.attention.2"}
_GATED_POOLING = {
    "attention.value": "attention.attention_a.0",
    "attention.gate": "attention.attention_b.0",
    "attention.weight": "attention.attention_c",
}


def _layer_state(tensors: Tensors, ours: str, theirs: str) -> dict[str, Tensor]:
    """The tensors of one layer of the encoder."""
    optional = {name: layer for name, layer in _OPTIONAL_LAYERS.items() if f"{theirs}.{layer}.weight" in tensors}
    return renamed(tensors, {f"{ours}.{name}": f"{theirs}.{layer}" for name, layer in {**_LAYER, **optional}.items()})


def _convert(tensors: Tensors, config: Config) -> Converted:
    gated = "pool_fn.attention.attention_c.weight" in tensors
    pooling = {ours: f"pool_fn.{theirs}" for ours, theirs in (_GATED_POOLING if gated else _POOLING).items()}
    encoder = "online_encoder"
    layers = {"embedding.layers.0": "patch_to_emb.0", "norm": f"{encoder}.norm", "head": "predictor", **pooling}
    state = renamed(tensors, layers)
    regional = 0
    while f"{encoder}.layers.{regional}.norm.weight" in tensors:
        state |= _layer_state(tensors, f"regional.{regional}", f"{encoder}.layers.{regional}")
        regional += 1
    state |= _layer_state(tensors, "cross", f"{encoder}.cr_msa")
    mlp = "cross.attention.phi.2.weight" in state
    if not mlp:
        state["cross.attention.phi"] = tensors[f"{encoder}.cr_msa.attn.phi"]
    options = {"attention_activation": "relu", **options_of(config, _WORDS)}
    options["activation"] = str(config.get("act", "relu")).lower()
    options["region_size"] = config.get("region_size") or None
    if (epeg := state.get("regional.0.attention.attention.epeg.weight")) is not None:
        options["heads"] = len(epeg)
    if (feed := state.get("cross.feed.widen.weight")) is not None:
        options |= {"ffn": True, "ffn_ratio": len(feed) / feed.shape[1]}
    return converted(
        state,
        layers=regional + 1,
        epeg_k=0 if epeg is None else epeg.shape[2],
        crmsa_k=len(state["cross.attention.phi.2.weight"]) if mlp else state["cross.attention.phi"].shape[1],
        crmsa_mlp=mlp,
        attention=len(state["attention.value.weight"]),
        attention_bias="attention.value.bias" in state,
        gated=gated,
        **options,
    )


_SAME_WORDS = ("region_num", "min_region_num", "min_region_ratio", "crmsa_heads", "all_shortcut")
_WORDS = {word: word for word in _SAME_WORDS} | {
    "num_heads": "heads",
    "n_heads": "heads",
    "ffn_act": "ffn_activation",
    "da_act": "attention_activation",
}
register_official("r2t", ("patch_to_emb.0", "online_encoder.cr_msa.norm", "predictor"), _convert)
