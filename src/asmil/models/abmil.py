"""ABMIL: attention-based deep multiple instance learning (Ilse, Tomczak, Welling, 2018), plain and gated.

    h_i = act(W_e x_i)                                              I wide
    z_i = w . (tanh(V h_i + b_V) * sigmoid(U h_i + b_U)) + b_w      gated; the plain form has no sigmoid factor
    b   = sum_i softmax(z)_i h_i
    logits = W_c b + b_c

b_w cancels in softmax, so it gets no gradient from the bag's loss. It is kept because it shifts the normalized sigmoid
of an anchor and because official checkpoints contain it. Published forms and their presets: docs/methods/abmil.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from pydantic import Field
from torch import Tensor, nn

from asmil.models.attention_pool import AttentionPoolModel
from asmil.models.base import Output
from asmil.models.blocks.embedding import STANDARDIZE_TEXT, UNUSED_NORM, EmbeddingConfig, TileEmbedding
from asmil.models.blocks.layers import start_linear
from asmil.models.blocks.scoring import GATED_ATTENTION, ScoreNetwork
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register
from asmil.models.shared_presets import VLSA_SURVIVAL

LAB_DROPOUT = 0.25
"""Of MIL-Lab's models; published files do not contain it."""


class ABMILConfig(EmbeddingConfig):
    """Architecture of ABMIL."""

    attention: int = Field(128, ge=1, description="L, width of the attention network")
    gated: bool = Field(True, description="gated attention, or plain")
    branches: int = Field(1, ge=1, description="K, the number of attention branches")
    bias: bool = Field(False, description="bias in the embedding")
    activation: Literal["relu", "gelu"] = Field("relu", description="of the embedding")
    further_layers: int = Field(0, ge=0, description="more embedding layers of the same width, after those above")
    dropout: float = Field(0.0, ge=0, lt=1, description="on the embedding")
    dropout_last: bool = Field(True, description="dropout after the last embedding layer, too, not only between layers")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="in the attention network, after tanh and sigmoid")
    standardize: bool = Field(False, description=STANDARDIZE_TEXT)
    init: Literal["default", "kaiming"] = Field("default", description="weights at the start; kaiming: bias 0")


@register(
    "abmil",
    summary="tiles are averaged with weights from a small (gated) attention network",
    paper="Ilse et al., Attention-based Deep Multiple Instance Learning",
    year=2018,
    presets={
        "official": {
            "model": {"inner": 500, "bias": True, "gated": False},
            "training": {"lr": 5e-4, "weight_decay": 1e-4, "epochs": 20, "schedule": "constant"},
        },
        "mil_lab": {
            "model": {"inner": 512, "attention": 384, "bias": True, "attention_dropout": 0.25, "init": "kaiming"}
        },
        "survival": {"model": {"embedding_layers": 0, "gated": False, "attention": 256}, "training": VLSA_SURVIVAL},
        "mil_dropout": {
            "model": {
                "embedding_layers": 3,
                "inner": 128,
                "attention": 64,
                "mil_dropout": 3,
                "mil_dropout_neighbors": 4,
            }
        },
    },
)
class ABMIL(AttentionPoolModel):
    """ABMIL; see the module's text for the formulas."""

    config_type = ABMILConfig
    score_axes = ("branch",)
    config: ABMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: ABMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(
            in_features,
            config,
            bias=config.bias,
            activation=config.activation,
            dropout=config.dropout,
            dropout_last=config.dropout_last,
            further_layers=config.further_layers,
            standardize=config.standardize,
        )
        width = self.embedding.width
        self.attention = ScoreNetwork(
            width, config.attention, config.branches, config.gated, dropout=config.attention_dropout
        )
        self.head = nn.Linear(width * config.branches, n_outputs)
        if config.init == "kaiming":
            start_linear(self, partial(nn.init.kaiming_uniform_, nonlinearity="relu"))

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        embedding = pooled.flatten()
        return Output(self.head(embedding), scores, embedding)


def _convert(
    tensors: Tensors, config: Config, embedding: Sequence[str], others: Mapping[str, str], **options: Any
) -> Converted:
    """Our tensors and settings, given the official names of the embedding layers, and of the others by our names."""
    layers = {f"embedding.layers.{index}": name for index, name in enumerate(embedding)} | dict(others)
    state = renamed(tensors, layers)
    hidden, inner = state["attention.value.weight"].shape
    return converted(
        state,
        state[f"{next(iter(layers))}.weight"].shape[1],
        None if "head" in others else 1,
        **{"embedding_layers": len(embedding)} | options | options_of(config, {"act": "activation"}),
        inner=inner,
        attention=hidden,
        gated="attention.gate" in others,
        branches=len(state["attention.weight.weight"]),
        bias="embedding.layers.0.bias" in state,
    )


def _others(value: str, gate: str | None, weight: str, head: str) -> dict[str, str]:
    """The official names of all layers but the embedding's, by our names."""
    layers = {"attention.value": value, "attention.weight": weight, "head": head}
    return layers if gate is None else layers | {"attention.gate": gate}


def _register_layout(
    embedding: list[str], value: str, gate: str | None, weight: str, head: str, *, drops: bool = False
) -> None:
    """Register a published layout, given the names of its layers.

    drops: MIL-Dropout follows each embedding layer
    """
    others = _others(value, gate, weight, head)

    def convert(tensors: Tensors, config: Config) -> Converted:
        options = {}
        if drops and config.get("dropout_flag", 1):
            options = {"mil_dropout": config.get("topk", 3), "mil_dropout_neighbors": config.get("kernel", 4)}
        return _convert(tensors, config, embedding, others, **options)

    unused = UNUSED_NORM if embedding == ["dimreduction.fc1"] else ()
    register_official("abmil", [*embedding, *others.values()], convert, unused=unused)


def _register_mil_lab(value: str, gate: str | None, weight: str, prefix: str) -> None:
    """Register MIL-Lab's layout: any number of embedding layers, with or without a head (pretrained: FEATHER).

    Dropout is in the attention network and between embedding layers.
    """
    others = {ours: prefix + theirs for ours, theirs in _others(value, gate, weight, "classifier").items()}
    layers = re.compile(rf"{re.escape(prefix)}patch_embed\.(\d+)\.weight")
    body = {ours: theirs for ours, theirs in others.items() if ours != "head"}

    def convert(tensors: Tensors, config: Config) -> Converted:
        numbers = [int(match[1]) for name in tensors if (match := layers.fullmatch(name))]
        embedding = [f"{prefix}patch_embed.{number}" for number in range(0, max(numbers) + 1, 3)]
        basic = min(len(embedding), 2)
        dropout = float(config.get("dropout", LAB_DROPOUT))
        return _convert(
            tensors,
            config,
            embedding,
            others if f"{prefix}classifier.weight" in tensors else body,
            embedding_layers=basic,
            further_layers=len(embedding) - basic,
            dropout=dropout if len(embedding) > 1 else 0.0,
            dropout_last=len(embedding) == 1,  # of a single layer, whose dropout is 0 unless the user sets it
            attention_dropout=dropout,
            init="kaiming",
        )

    register_official("abmil", [f"{prefix}patch_embed.0", *body.values()], convert)


_GATED = ("attention_V.0", "attention_U.0")
_PLAIN = ("attention.0", None, "attention.2", "classifier.0")
for _prefix in ("", "model."):  # bare, and inside its Hugging Face wrapper
    _register_mil_lab(
        "global_attn.attention_a.0", "global_attn.attention_b.0", "global_attn.attention_c", prefix=_prefix
    )
    _register_mil_lab("global_attn.module.0", None, "global_attn.module.3", prefix=_prefix)
_register_layout(["feature_extractor_part2.0"], *_PLAIN)
_register_layout(["feature_extractor_part2.0"], *_GATED, "attention_w", "classifier.0")
_value, _gate, _weight = GATED_ATTENTION.values()
_register_layout(["dimreduction.fc1"], _value, _gate, _weight, "classifier.fc")
_register_layout(["feature.0"], *_PLAIN)
# MIL-Dropout's ABMIL, with and without its dropout layers
for _entries, _drops in (((0, 3, 6), True), ((0, 2, 4), False)):
    _embedding = [f"feature_extractor.{entry}" for entry in _entries]
    _register_layout(_embedding, *_GATED, "attention_weights", "classifier.0", drops=_drops)
    _register_layout(_embedding, *_PLAIN, drops=_drops)
# the survival form, plain and gated
_register_layout([], "sigma.attention.0", None, "sigma.attention.2", "g")
_register_layout([], "sigma.fc1.0", "sigma.score.0", "sigma.fc2", "g")
