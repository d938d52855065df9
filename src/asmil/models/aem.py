"""AEM: attention entropy maximization (Zhang et al., 2024), a term in the loss of another method.

    loss = L_base + lambda * sum_i a_i log a_i          a = softmax(z), mean over the rows of z

The second factor is the negative entropy of the attention (-log N ... 0, natural logarithm, not divided by log N): a
positive lambda rewards attention that is spread out. Nothing is added to the network, nothing changes in inference.

Bases:
    abmil   gated ABMIL: z_i = w . (tanh(V h_i) * sigmoid(U h_i)), h = ReLU(W_e x) without bias; one row
    mha     a learned query with 8 heads over h (`QueryPool`); one row per head
    dsmil   DSMIL with one linear query; L_base = half the bag's and half the critical tiles' loss; prediction = mean
            of both streams' probabilities; one row per class

The final paper lowers lambda along a cosine, lambda (1 + cos(pi t / T)) / 2; the released code keeps it constant, and
so does the default here (`annealing`). Differences from the released code: docs/methods/aem.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from asmil.attention.divergences import negative_entropy
from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.abmil import ABMIL, ABMILConfig
from asmil.models.attention_pool import FoldedPoolModel
from asmil.models.base import Loss, MILModel, ModelOnBase, Output, inner_width, refuse_uneven
from asmil.models.blocks.dual_stream import LINEAR_QUERY, STREAM_LOGITS, from_official, official_layers
from asmil.models.blocks.embedding import UNUSED_NORM, EmbeddingConfig, TileEmbedding
from asmil.models.blocks.folded import FoldedProjections, folded_state
from asmil.models.blocks.scoring import GATED_ATTENTION
from asmil.models.dsmil import DSMIL, DSMILConfig
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register
from asmil.tasks.base import Task


class QueryPoolConfig(EmbeddingConfig):
    """Architecture of a query pool."""

    heads: int = Field(8, ge=1, description="H")
    dropout: float = Field(0.1, ge=0, lt=1, description="on the output of the attention block")
    init_std: float = Field(1e-6, ge=0, description="standard deviation of the query at the start")


class QueryPool(FoldedPoolModel):
    """Attention of one learned query with several heads, the base that the authors of ACMIL and AEM call MHA.

        h_i  = act(W_e x_i)
        z_ik = (W_q p + b_q)_k . (W_k h_i + b_k)_k / sqrt(d)                 head k, query p, d = I / H
        b    = LayerNorm(Dropout(W_o [sum_i softmax(z_:k)_i (W_v h_i + b_v)_k]_k + b_o))
        logits = W_c b + b_c

    The query does not depend on the bag, so no key and no value of a tile is formed (`blocks/folded.py`). It is not
    registered as a method.
    """

    config_type = QueryPoolConfig
    score_axes = ("head",)
    config: QueryPoolConfig

    def __init__(self, in_features: int, n_outputs: int, config: QueryPoolConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(in_features, config, bias=False)
        width = self.embedding.width
        refuse_uneven(width, config.heads)
        self.query = nn.Parameter(config.init_std * torch.randn(1, width))
        self.block = FoldedProjections(1, width, config.heads, config.dropout)
        self.head = nn.Linear(width, n_outputs)

    @property
    def queries(self) -> tuple[FoldedProjections, Tensor]:
        return self.block, self.query

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        embedding = self.block.project_pooled(pooled).squeeze(0)
        return Output(self.head(embedding), scores, embedding)


class AEMConfig(EmbeddingConfig):
    """Architecture and loss of AEM."""

    base: Literal["abmil", "mha", "dsmil"] = Field("abmil", description="the method that the term is added to")
    weight: float = Field(0.1, ge=0, description="lambda, the factor of the negative entropy")
    annealing: Literal["constant", "cosine"] = Field("constant", description="lambda over the training; cosine: to 0")
    attention: int = Field(128, ge=1, description="width of the attention network (base abmil)")
    heads: int = Field(8, ge=1, description="of the attention (base mha)")
    dropout: float = Field(0.1, ge=0, lt=1, description="on the output of the attention block (base mha)")
    init_std: float = Field(1e-6, ge=0, description="standard deviation of the query at the start (base mha)")


@register(
    "aem",
    summary="a base method (ABMIL, multi-head attention or DSMIL) whose attention is rewarded for its entropy",
    paper="Zhang et al., AEM: Attention Entropy Maximization for Multiple Instance Learning based Whole Slide Image "
    "Classification",
    year=2024,
    presets={"official": {"training": {"optimizer": "adamw", "lr": 1e-4, "weight_decay": 1e-5, "epochs": 50}}},
)
class AEM(ModelOnBase):
    """AEM; see the module's text for the formulas. The rows of the scores are the base's."""

    config_type = AEMConfig
    own_stabilizers: ClassVar[Mapping[str, str]] = {"entropy": "model.weight"}
    score_axes = ("row",)
    logits_in_extras = STREAM_LOGITS
    config: AEMConfig

    def __init__(self, in_features: int, n_outputs: int, config: AEMConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.base = _build_base(in_features, n_outputs, config)
        self.weight: float | Tensor = config.weight

    def forward(self, bag: Bag) -> Output:
        return self.current_base()(bag)

    def stream(self, chunks: Iterable[Tensor]) -> Output:
        return self.current_base().stream(chunks)

    @property
    def steps_alike(self) -> bool:
        return self.config.annealing == "constant"

    def before_step(self, step: int, steps: int) -> None:
        if self.config.annealing == "cosine":
            share = torch.as_tensor(step / steps, dtype=torch.float32)
            self.weight = self.config.weight * (1 + torch.cos(math.pi * share)) / 2

    def loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        base = self.base.loss(outputs, targets, task)
        entropy = torch.stack([self.negative_entropy(output) for output in outputs]).mean()
        return Loss(base.total + self.weight * entropy, {**base.parts, "negative_entropy": entropy})

    def negative_entropy(self, output: Output) -> Tensor:
        """Of the attention, mean over its rows."""
        assert output.scores is not None
        return negative_entropy(self.normalizer.log(output.scores)).mean()


def _build_base(in_features: int, n_outputs: int, config: AEMConfig) -> MILModel:
    embedding = {name: getattr(config, name) for name in EmbeddingConfig.model_fields}
    if config.base == "abmil":
        return ABMIL(in_features, n_outputs, ABMILConfig(**embedding, attention=config.attention))
    if config.base == "mha":
        options = QueryPoolConfig(**embedding, heads=config.heads, dropout=config.dropout, init_std=config.init_std)
        return QueryPool(in_features, n_outputs, options)
    if config.embedding_layers != 1 or config.mil_dropout:
        raise AsmilError(
            "model.base = dsmil reads the features as they are; leave model.embedding_layers and model.mil_dropout out"
        )
    width = config.inner or inner_width(in_features)
    return DSMIL(in_features, n_outputs, DSMILConfig(query="linear", query_width=width, predict="mean"))


_LAMBDA = dict.fromkeys(("lamda", "lambda", "lambda_"), "weight")
"""The words for the weight of the term; tensors with the names of a base are AEM's where one of them is given."""


def _has_weight(tensors: Tensors, config: Config) -> bool:
    return any(word in config for word in _LAMBDA)


def _converted(base: str, state: dict[str, Tensor], config: Config, **options: Any) -> Converted:
    """State of the base to ours, with the options that all bases share."""
    in_features = state["streams.instance.weight" if base == "dsmil" else "embedding.layers.0.weight"].shape[1]
    ours = {f"base.{name}": tensor for name, tensor in state.items()}
    n_outputs = len(state["head.bias"])
    return converted(ours, in_features, n_outputs, base=base, **options, **options_of(config, _LAMBDA))


_MHA = {"embedding.layers.0": "dimreduction.fc1", "head": "classifier.fc"}
_ABMIL = _MHA | GATED_ATTENTION


def _convert_abmil(tensors: Tensors, config: Config) -> Converted:
    state = renamed(tensors, _ABMIL)
    inner, attention = len(state["embedding.layers.0.weight"]), len(state["attention.value.weight"])
    return _converted("abmil", state, config, inner=inner, attention=attention)


def _convert_mha(tensors: Tensors, config: Config) -> Converted:
    state = {"query": tensors["q"][0], **renamed(tensors, _MHA), **folded_state(tensors, "block", ["attention"])}
    heads = options_of(config, {"n_heads": "heads", "heads": "heads"})
    return _converted("mha", state, config, inner=len(state["embedding.layers.0.weight"]), **heads)


def _convert_dsmil(tensors: Tensors, config: Config) -> Converted:
    options, state = from_official(tensors, LINEAR_QUERY)
    return _converted("dsmil", state, config, inner=options["query_width"])


register_official("aem", _ABMIL.values(), _convert_abmil, _has_weight, unused=UNUSED_NORM)
register_official("aem", ("dimreduction.fc1", "attention.q_proj"), _convert_mha, names=("q",), unused=UNUSED_NORM)
register_official("aem", official_layers(LINEAR_QUERY), _convert_dsmil, _has_weight)
