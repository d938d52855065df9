"""ABMIL: attention-based deep multiple instance learning (Ilse, Tomczak, Welling, 2018), plain and gated.

    h_i = act(W_e x_i)                                              I wide
    z_i = w . (tanh(V h_i + b_V) * sigmoid(U h_i + b_U)) + b_w      gated; the plain form has no sigmoid factor
    b   = sum_i softmax(z)_i h_i
    logits = W_c b + b_c

The defaults are the form that the ASMIL study ran on slides: gated, attention 128 wide, embedding without bias and as
wide as the feature width asks. The original (`--preset official`) embeds to 500 with a bias. With several branches
(K > 1) the pooled vectors are joined before the head; the original code fails there.

b_w cancels in softmax, so it gets no gradient from the bag's loss; it stays because it shifts the normalized sigmoid
of an anchor and because official checkpoints hold it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from asmil.models.attention_pool import AttentionPoolModel
from asmil.models.base import Output
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.official import Config, Converted, OfficialForm, Tensors, register_official, renamed
from asmil.models.registry import register


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
        }
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

    def embed(self, features: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(features)
        return embedded

    def score(self, embedded: Tensor) -> Tensor:
        scores: Tensor = self.attention(embedded)
        return scores

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        embedding = pooled.flatten()
        return Output(self.head(embedding), scores, embedding)


def _official(embedding: str, value: str, gate: str | None, weight: str, head: str) -> OfficialForm:
    """A published layout, given the names of its layers."""
    layers = {"attention.value": value, "attention.weight": weight, "head": head}
    if gate is not None:
        layers["attention.gate"] = gate

    def convert(tensors: Tensors, config: Config) -> Converted:
        state = renamed(tensors, {"embedding.layers.0": embedding, **layers})
        inner, in_features = state["embedding.layers.0.weight"].shape
        branches, hidden = state["attention.weight.weight"].shape
        options = {
            "inner": inner,
            "attention": hidden,
            "gated": gate is not None,
            "branches": branches,
            "bias": "embedding.layers.0.bias" in state,
            "activation": config.get("act", "relu"),
        }
        return in_features, state["head.weight"].shape[0], options, state

    required = frozenset(f"{name}.weight" for name in (embedding, *layers.values()))
    return OfficialForm("abmil", required, convert)


register_official(_official("feature_extractor_part2.0", "attention.0", None, "attention.2", "classifier.0"))
register_official(
    _official("feature_extractor_part2.0", "attention_V.0", "attention_U.0", "attention_w", "classifier.0")
)
register_official(
    _official(
        "dimreduction.fc1",
        "attention.attention_V.0",
        "attention.attention_U.0",
        "attention.attention_weights",
        "classifier.fc",
    )
)
register_official(_official("feature.0", "attention.0", None, "attention.2", "classifier.0"))
