"""DSMIL: dual-stream multiple instance learning (Li, Li, Eliceiri, 2021).

    c_i  = W_0 x_i + b_0                               every tile is classified; max logit of class k: max_i c_ik
    m_k  = argmax_i c_ik                               the critical tile of class k (the first of equal ones)
    z_ik = q(x_i) . q(x_{m_k}) / sqrt(Q)               q: tanh(W_2 ReLU(W_1 x + b_1) + b_2), or one linear layer
    B_k  = sum_i softmax(z_:k)_i v(x_i)                v: the identity, or ReLU(W_v dropout(x) + b_v)
    bag logits_k = b_k + sum_k' W_kk' . B_k'           every class reads the bag vectors of all classes

    loss = 1/2 L(bag logits) + 1/2 L(max logits)

The argmax has no gradient, so the instance classifier learns from the second term alone. L is the task's loss, as in
the ASMIL study, or binary cross-entropy against the one-hot class, as in the official code (`loss: bce`). Differences
from the paper and the official code: docs/methods/dsmil.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from asmil.cohort.bag import Bag
from asmil.models.base import Loss, MILModel, ModelConfig, Output
from asmil.models.blocks.dual_stream import (
    LINEAR_QUERY,
    NONLINEAR_QUERY,
    STREAM_LOGITS,
    DualStream,
    LossKind,
    Prediction,
    Query,
    TwoStreams,
    from_official,
    official_layers,
    two_stream_loss,
    two_stream_output,
)
from asmil.models.blocks.layers import start_linear
from asmil.models.official import Config, Converted, Tensors, register_official
from asmil.models.registry import register
from asmil.tasks.base import Task


class DSMILConfig(ModelConfig):
    """Architecture and loss of DSMIL."""

    query: Query = Field("nonlinear", description="two layers with ReLU and tanh, or one linear layer")
    query_width: int = Field(128, ge=1, description="Q, the width of a query")
    query_hidden: int | None = Field(None, ge=1, description="width inside the nonlinear query; by default Q")
    values: bool = Field(False, description="learned values (linear, ReLU) instead of the features themselves")
    dropout: float = Field(0.0, ge=0, lt=1, description="on the features before the learned values")
    loss: LossKind = Field("task", description="the task's loss, or bce against the one-hot class (no class weights)")
    predict: Prediction = Field("bag", description="by the bag logits, or the mean of both streams' probabilities")
    init: Literal["default", "orthogonal"] = Field("default", description="weights at the start; orthogonal: bias 0")


@register(
    "dsmil",
    summary="tiles are pooled by their likeness to the highest-scoring tile of each class",
    paper="Li et al., Dual-stream Multiple Instance Learning Network for Whole Slide Image Classification "
    "with Self-supervised Contrastive Learning",
    year=2021,
    presets={
        "official": {
            "model": {"loss": "bce", "init": "orthogonal"},
            "training": {
                "lr": 1e-4,
                "betas": [0.5, 0.9],
                "weight_decay": 1e-3,
                "lr_min": 5e-6,
                "epochs": 50,
                "early_stopping": 10,
            },
        }
    },
)
class DSMIL(MILModel):
    """DSMIL; see the module's text for the formulas."""

    config_type = DSMILConfig
    score_axes = ("class",)
    smooths = ("late",)
    logits_in_extras = STREAM_LOGITS
    maps_predicted_class = True
    config: DSMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: DSMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.streams = DualStream(
            in_features,
            n_outputs,
            query=config.query,
            query_width=config.query_width,
            query_hidden=config.query_hidden,
            values=config.values,
            dropout=config.dropout,
        )
        self.head = nn.Linear(n_outputs * in_features, n_outputs)
        if config.init == "orthogonal":
            start_linear(self, nn.init.orthogonal_)

    @property
    def classifies_tiles(self) -> bool:
        return True

    @property
    def padding_from(self) -> int | None:
        return None if self.smoothed else 1

    def attend(self, bag: Bag) -> Tensor:
        return self._attended(self.streams.as_computed(bag.features), bag).scores

    def _attended(self, features: Tensor, bag: Bag) -> TwoStreams:
        attended = self.streams.attend(features, bag.mask)
        return replace(attended, scores=self.smooth_scores(attended.scores, bag))

    def forward(self, bag: Bag) -> Output:
        features = self.streams.as_computed(bag.features)
        attended = self._attended(features, bag)
        pooled = self.streams.pool(self.normalizer(attended.scores), features)
        return two_stream_output(attended, pooled, self.head(pooled.flatten()), self.config.predict)

    def loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        return two_stream_loss(outputs, targets, task, self.config.loss)


def _register_layout(query: tuple[str, ...]) -> None:
    def convert(tensors: Tensors, config: Config) -> Converted:
        options, state = from_official(tensors, query)
        n_outputs, in_features = state["streams.instance.weight"].shape
        return in_features, n_outputs, options, state

    register_official("dsmil", official_layers(query), convert)


_register_layout(LINEAR_QUERY)
_register_layout(NONLINEAR_QUERY)
