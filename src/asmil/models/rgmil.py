"""RGMIL: regressor-guided pooling (Du et al., 2023). The layer that classifies the bag also scores its tiles.

    h_i = ReLU(W_2 ReLU(W_1 x_i + b_1) + b_2)                       both layers M = 512 wide
    l_i = h_i R                                                     R: M x 2, no bias;  margin d_i = l_i[1] - l_i[0]
    u_i = (d_i - mean(d)) / sqrt(var(d) + 1e-5)                     over the bag, population variance
    b   = sum_i softmax(u)_i h_i
    logits = b R                                                    the same R

Since u is standardized, the attention does not depend on the scale of R, and |u_i| <= sqrt(N - 1). The bag's margin is
the weighted mean of the tiles' margins. The scores are u, so their softmax is the attention.

R is not trained in the published runs (see docs/methods/rgmil.md): it is a fixed random projection, drawn uniformly
from +-sqrt(3) (Kaiming with a fan-in of 2), and only the embedding learns. `train_regressor` trains it as described.

The official code supports two classes. Here:
- two outputs: as above, one stream whose attention looks for class 1
- one output: the same stream, and the logit is the bag's margin
- C > 2 outputs: one stream per class (this class against the rest), each with its own R_c and attention over the same
  h; the logit of class c is the margin of its stream. This is our extension.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, Output, masked_scores
from asmil.models.blocks.embedding import LAYERS_TEXT, EmbeddingConfig, Layers, TileEmbedding
from asmil.models.official import Config, Converted, Tensors, converted, register_official, renamed
from asmil.models.registry import register

WIDTH = 512
EPSILON = 1e-5


class RGMILConfig(EmbeddingConfig):
    """Architecture of RGMIL."""

    embedding_layers: Layers = Field(2, description=LAYERS_TEXT)
    train_regressor: bool = Field(False, description="train R; in the published runs it keeps its random start")


@register(
    "rgmil",
    summary="the bag classifier itself scores the tiles, by margins standardized within the bag",
    paper="Du et al., RGMIL: Guide Your Multiple-Instance Learning Model with Regressor",
    year=2023,
    presets={"official": {"training": {"lr": 5e-5, "weight_decay": 0.0, "epochs": 40, "schedule": "constant"}}},
)
class RGMIL(MILModel):
    """RGMIL; see the module's text for the formulas."""

    config_type = RGMILConfig
    score_axes = ("stream",)
    smooths = ("late",)
    maps_predicted_class = True
    records_steps = False  # not tried on a GPU
    config: RGMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: RGMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(in_features, config, default_width=WIDTH)
        streams = n_outputs if n_outputs > 2 else 1
        bound = math.sqrt(3)
        start = torch.empty(streams, self.embedding.width, 2).uniform_(-bound, bound)
        self.regressor = nn.Parameter(start, requires_grad=config.train_regressor)

    @property
    def padding_from(self) -> int | None:
        return None if self.smoothed or self.embedding.mil_dropout.top else 1

    def attend(self, bag: Bag) -> Tensor:
        return self._score(self.embedding(bag.features) @ self._columns(), bag)

    def forward(self, bag: Bag) -> Output:
        embedded: Tensor = self.embedding(bag.features)
        columns = self._columns()
        instance_logits = embedded @ columns
        scores = self._score(instance_logits, bag)
        pooled = self.normalizer(scores).to(embedded.dtype) @ embedded
        logits = pooled[0] @ columns if self.n_outputs == 2 else (pooled * columns.t()).sum(dim=1)
        return Output(logits, scores, pooled.flatten(), instance_logits)

    @property
    def classifies_tiles(self) -> bool:
        return True

    def _columns(self) -> Tensor:
        """M x C, what turns an embedded tile or bag into logits: R for two outputs, else the margins' directions."""
        if self.n_outputs == 2:
            return self.regressor[0]
        return (self.regressor[:, :, 1] - self.regressor[:, :, 0]).t()

    def _score(self, instance_logits: Tensor, bag: Bag) -> Tensor:
        """N x C -> the standardized margins of the streams, S x N."""
        margins = instance_logits[:, 1:] - instance_logits[:, :1] if self.n_outputs == 2 else instance_logits
        return masked_scores(self.smooth_scores(standardized_rows(margins.t(), bag.mask), bag), bag)


def standardized_rows(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Rows (S x N) minus their mean over the tiles, divided by their standard deviation; mask: N, true for tiles."""
    if mask is None:
        return functional.layer_norm(rows, rows.shape[1:], eps=EPSILON)
    tiles = mask.sum()
    centered = (rows - rows.masked_fill(~mask, 0.0).sum(dim=1, keepdim=True) / tiles).masked_fill(~mask, 0.0)
    return centered * torch.rsqrt(centered.square().sum(dim=1, keepdim=True) / tiles + EPSILON)


def _convert(tensors: Tensors, config: Config) -> Converted:
    state = renamed(tensors, {"embedding.layers.0": "stem.stem.0", "embedding.layers.1": "stem.stem.2"})
    state["regressor"] = tensors["linear"].unsqueeze(0)
    trained = bool(config.get("train_regressor", False))
    return converted(state, n_outputs=tensors["linear"].shape[1], train_regressor=trained)


register_official("rgmil", ("stem.stem.0", "stem.stem.2"), _convert, names=("linear",))
