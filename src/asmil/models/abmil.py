"""ABMIL: attention-based deep multiple instance learning (Ilse, Tomczak, Welling, 2018), plain and gated.

    h_i = act(W_e x_i)                                              I wide
    z_i = w . (tanh(V h_i + b_V) * sigmoid(U h_i + b_U)) + b_w      gated; the plain form has no sigmoid factor
    b   = sum_i softmax(z)_i h_i
    logits = W_c b + b_c

b_w cancels in softmax, so it gets no gradient from the bag's loss. It is kept because it shifts the normalized sigmoid
of an anchor and because official checkpoints contain it. Published forms and their presets: docs/methods/abmil.md.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from asmil.models.attention_pool import AttentionPoolModel
from asmil.models.base import Output
from asmil.models.blocks.embedding import UNUSED_NORM, EmbeddingConfig, TileEmbedding
from asmil.models.blocks.scoring import GATED_ATTENTION, ScoreNetwork
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register
from asmil.models.shared_presets import VLSA_SURVIVAL


class ABMILConfig(EmbeddingConfig):
    """Architecture of ABMIL."""

    attention: int = Field(128, ge=1, description="L, width of the attention network")
    gated: bool = Field(True, description="gated attention, or plain")
    branches: int = Field(1, ge=1, description="K, the number of attention branches")
    bias: bool = Field(False, description="bias in the embedding")
    activation: Literal["relu", "gelu"] = Field("relu", description="of the embedding")
    dropout: float = Field(0.0, ge=0, lt=1, description="on the embedding")


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
            in_features, config, bias=config.bias, activation=config.activation, dropout=config.dropout
        )
        width = self.embedding.width
        self.attention = ScoreNetwork(width, config.attention, config.branches, config.gated)
        self.head = nn.Linear(width * config.branches, n_outputs)

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        embedding = pooled.flatten()
        return Output(self.head(embedding), scores, embedding)


def _register_layout(
    embedding: list[str],
    value: str,
    gate: str | None,
    weight: str,
    head: str,
    *,
    drops: bool = False,
    headless: bool = False,
) -> None:
    """Register a published layout, given the names of its layers.

    drops: MIL-Dropout follows each embedding layer; headless: it is published without the head
    """
    layers = {f"embedding.layers.{index}": name for index, name in enumerate(embedding)}
    layers |= {"attention.value": value, "attention.weight": weight}
    if not headless:
        layers["head"] = head
    if gate is not None:
        layers["attention.gate"] = gate

    def convert(tensors: Tensors, config: Config) -> Converted:
        state = renamed(tensors, layers)
        hidden, inner = state["attention.value.weight"].shape
        options = options_of(config, {"act": "activation"})
        if drops and config.get("dropout_flag", 1):
            options |= {"mil_dropout": config.get("topk", 3), "mil_dropout_neighbors": config.get("kernel", 4)}
        return converted(
            state,
            state[f"{next(iter(layers))}.weight"].shape[1],
            1 if headless else None,
            embedding_layers=len(embedding),
            inner=inner,
            attention=hidden,
            gated=gate is not None,
            branches=len(state["attention.weight.weight"]),
            bias="embedding.layers.0.bias" in state,
            **options,
        )

    register_official(
        "abmil",
        layers.values(),
        convert,
        (lambda tensors, _: f"{head}.weight" not in tensors) if headless else None,
        unused=UNUSED_NORM if embedding == ["dimreduction.fc1"] else (),
    )


_GATED = ("attention_V.0", "attention_U.0")
_PLAIN = ("attention.0", None, "attention.2", "classifier.0")
_LAB = ("global_attn.attention_a.0", "global_attn.attention_b.0", "global_attn.attention_c", "classifier")
_LAB_PLAIN = ("global_attn.module.0", None, "global_attn.module.3", "classifier")
# MIL-Lab; its pretrained models (FEATHER) come without a head
for _embedding in (["patch_embed.0"], ["patch_embed.0", "patch_embed.3"]):
    for _layers in (_LAB, _LAB_PLAIN):
        _register_layout(_embedding, *_layers)
        _register_layout(_embedding, *_layers, headless=True)
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
