"""CLAM: clustering-constrained attention MIL (Lu et al., 2021), with one attention branch (SB) or one per class (MB).

    h_i = dropout(ReLU(W_e x_i + b_e))                                     H = 512 wide
    z_i = W (tanh(V h_i + b_V) * sigmoid(U h_i + b_U)) + b                 SB: one score per tile, MB: one per class
    b_r = sum_i softmax(z_r)_i h_i                                         a row r of scores
    SB:  logits = W_c b + b_c          MB:  logit_c = w_c . b_c + beta_c   each class has its own row
    L   = w L_bag + (1 - w) L_cluster                                      w = 0.7

L_bag is the task's loss (cross-entropy), or the smooth top-1 SVM over the classes (`bag_loss: svm`; it ignores class
weights). L_cluster separates the tiles with most attention from those with least, see `blocks/instance_loss.py`; for
tasks without classes it is omitted and L = L_bag.

The official heat map ranks the raw scores (`percentile`: 100 rank / N, mean ranks for ties); MB shows the row of the
predicted class. Differences from the paper and the official code: docs/methods/clam.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.attention_pool import AttentionPoolModel
from asmil.models.base import Loss, Output, predicted_row
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.instance_loss import InstanceLossConfig, cluster_logits, clustering_loss, smooth_svm
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register
from asmil.tasks.base import Task

ATTENTION_DROPOUT = 0.25


class CLAMConfig(EmbeddingConfig, InstanceLossConfig):
    """Architecture of CLAM."""

    inner: int | None = Field(512, ge=1, description="H, the embedding width; null: from the feature width")
    attention: int = Field(256, ge=1, description="L, width of the attention network (official: 256 small, 384 big)")
    gated: bool = Field(True, description="gated attention, or plain")
    dropout: float = Field(0.25, ge=0, lt=1, description="on the embedding; if not 0, 0.25 in the attention network")
    bag_loss: Literal["ce", "svm"] = Field("ce", description="the task's loss, or the smooth top-1 SVM of the classes")


_PAPER = "Lu et al., Data-efficient and weakly supervised computational pathology on whole-slide images"
OFFICIAL_TRAINING = {
    "lr": 2e-4,
    "weight_decay": 1e-5,
    "epochs": 200,
    "schedule": "constant",
    "sampling": "balanced",
    "select": "loss",
    "early_stopping": 20,
    "early_stopping_from": 50,
}
"""The defaults of CLAM's training script."""
_OFFICIAL = {"model": {"instance_loss": "svm"}, "training": OFFICIAL_TRAINING}


class CLAM(AttentionPoolModel):
    """What both forms share; see the module's text for the formulas."""

    config_type = CLAMConfig
    map_kinds = ("attention", "percentile")
    label_routes_gradients = True
    maps_predicted_class = True
    config: CLAMConfig

    def __init__(self, in_features: int, n_outputs: int, config: CLAMConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        if n_outputs < 2:
            raise AsmilError(
                "CLAM clusters tiles by the slide's class and needs an output for every class, at least two"
            )
        self.embedding = TileEmbedding(in_features, config, dropout=config.dropout)
        width = self.embedding.width
        rows = n_outputs if self.score_axes == ("class",) else 1
        inside = ATTENTION_DROPOUT if config.dropout else 0.0
        self.attention = ScoreNetwork(width, config.attention, rows, config.gated, dropout=inside)
        self.head = nn.Linear(width, n_outputs)
        self.cluster_heads = nn.ModuleList(nn.Linear(width, 2) for _ in range(n_outputs))

    @property
    def padding_from(self) -> int | None:
        return self.padding_for(1)

    def forward(self, bag: Bag) -> Output:
        embedded = self.embed_bag(bag)
        scores, pooled = self.pool_bag(embedded, bag)
        output = self.readout(pooled, scores)
        output.extras |= cluster_logits(embedded, scores, self.cluster_heads, self.config, bag.mask)
        return output

    def loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        logits = torch.stack([output.logits for output in outputs])
        bag_loss = task.loss(logits, targets)
        parts = {task.loss_name: bag_loss}
        classes = task.class_index(targets)
        if classes is None:
            return Loss(bag_loss, parts)
        if self.config.bag_loss == "svm":
            bag_loss = parts["svm"] = smooth_svm(logits, classes).mean()
        parts["cluster"] = clustering_loss(outputs, classes, self.config)
        weight = self.config.bag_weight
        return Loss(weight * bag_loss + (1 - weight) * parts["cluster"], parts)

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        if kind == "percentile":
            return percentiles(predicted_row(output)[0])
        return super().draw_tile_map(output, kind)


@register(
    "clam_sb",
    summary="gated attention; the most and least attended tiles are clustered by the slide's class",
    paper=_PAPER,
    year=2021,
    presets={"official": _OFFICIAL},
)
class CLAMSB(CLAM):
    """CLAM with a single attention branch."""

    score_axes = ("branch",)

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        embedding = pooled.squeeze(0)
        return Output(self.head(embedding), scores, embedding)


@register(
    "clam_mb",
    summary="CLAM with a separate attention branch for every class",
    paper=_PAPER,
    year=2021,
    presets={"official": _OFFICIAL},
)
class CLAMMB(CLAM):
    """CLAM with one attention branch per class; row c of the head reads row c of the pooled features."""

    score_axes = ("class",)

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        logits = (self.head.weight * pooled).sum(dim=1) + self.head.bias
        return Output(logits, scores, pooled.flatten())


def percentiles(scores: Tensor) -> Tensor:
    """N scores -> 100 rank / N, equal scores sharing the mean of their ranks."""
    _, inverse, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks: Tensor = (counts.cumsum(dim=0) - (counts - 1) / 2)[inverse]
    return ranks / len(scores) * 100


UNUSED_LOSS = ("instance_loss_fn",)
"""Constants of the smooth SVM loss, which CLAM itself leaves out when it loads a checkpoint."""
SAME_WORDS = {word: word for word in ("k_sample", "bag_weight", "subtyping")}
_WORDS = SAME_WORDS | {"inst_loss": "instance_loss", "bag_loss": "bag_loss"}
"""Official words, and our options."""


def clam_layouts() -> Iterator[dict[str, str]]:
    """Their names by ours (`embedding.layers.0`, `attention.value`, `.weight` and, if there is one, `.gate`).

    The attention network is entry 3 of a sequence, and entry 2 in old checkpoints without dropout. In the plain form
    dropout moves the last layer from entry 2 to 3.
    """
    for entry, last in product((3, 2), (None, 2, 3)):
        network = f"attention_net.{entry}"
        layers = {"embedding.layers.0": "attention_net.0"}
        if last is None:
            layers |= {
                "attention.value": f"{network}.attention_a.0",
                "attention.gate": f"{network}.attention_b.0",
                "attention.weight": f"{network}.attention_c",
            }
        else:
            layers |= {"attention.value": f"{network}.module.0", "attention.weight": f"{network}.module.{last}"}
        yield layers


def _register_layout(layers: dict[str, str], branches: bool) -> None:
    head = "classifiers.0" if branches else "classifiers"

    def convert(tensors: Tensors, config: Config) -> Converted:
        n_classes = len(tensors[f"{layers['attention.weight'] if branches else head}.weight"])
        cluster_heads = {f"cluster_heads.{c}": f"instance_classifiers.{c}" for c in range(n_classes)}
        state = renamed(tensors, layers | cluster_heads)
        for leaf in ("weight", "bias"):
            rows = [tensors[f"classifiers.{c}.{leaf}"] for c in range(n_classes)] if branches else None
            state[f"head.{leaf}"] = tensors[f"classifiers.{leaf}"] if rows is None else torch.cat(rows)
        attention, gated = len(state["attention.value.weight"]), "attention.gate" in layers
        return converted(state, attention=attention, gated=gated, **options_of(config, _WORDS))

    identifying = (*layers.values(), head, "instance_classifiers.0")
    register_official("clam_mb" if branches else "clam_sb", identifying, convert, unused=UNUSED_LOSS)


for _layers in clam_layouts():
    _register_layout(_layers, branches=False)
    _register_layout(_layers, branches=True)
