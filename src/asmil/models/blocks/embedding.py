"""The first layers of most methods: tile features to embedded tiles."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.errors import AsmilError
from asmil.models.base import ModelConfig, inner_width
from asmil.models.blocks.layers import ACTIVATIONS, Activation, TileLinear
from asmil.models.blocks.mil_dropout import MILDropout
from asmil.models.blocks.randomness import Dropout
from asmil.models.blocks.standardize import Standardize
from asmil.models.blocks.tile_passes import one_pass, relu_dropout

MLP_HIDDEN = 256
UNUSED_NORM = ("dimreduction.bn",)
"""A batch norm that a published embedding class contains and never calls."""
Layers = Literal[0, 1, 2, 3]
LAYERS_TEXT = (
    "0: the features as they are; 1: one layer; 2: two of the same width (small-bag benchmarks); "
    "3: D to D/2 to 256 to inner (MIL-Dropout's models)"
)


class EmbeddingConfig(ModelConfig):
    """Settings of methods that embed tiles."""

    inner: int | None = Field(None, ge=1, description="embedding width; by default the method's, or from the features'")
    embedding_layers: Layers = Field(1, description=LAYERS_TEXT)
    mil_dropout: int = Field(0, ge=0, description="MIL-Dropout after each embedding layer: k, the tiles dropped first")
    mil_dropout_neighbors: int = Field(4, ge=0, description="g, the tiles most similar to each of them that fall too")


STANDARDIZE_TEXT = "standardize every feature with its mean and standard deviation over the training tiles"


class TileEmbedding(nn.Module):
    """N x D -> N x I: linear, activation, dropout (and optionally MIL-Dropout), up to three times.

    default_width: the width if `inner` is not given
    bias: of a single layer; several layers always have one
    dropout_last: whether dropout follows the last layer, too
    further_layers: more layers of the same width, after those of the settings
    standardize: whether features are standardized first
    """

    like: Tensor

    def __init__(
        self,
        in_features: int,
        config: EmbeddingConfig,
        *,
        default_width: int | None = None,
        bias: bool = True,
        activation: Activation = "relu",
        dropout: float = 0.0,
        dropout_last: bool = True,
        further_layers: int = 0,
        standardize: bool = False,
    ) -> None:
        super().__init__()
        asked = config.inner
        if config.embedding_layers == 0:
            _refuse_unembedded(in_features, asked, config.mil_dropout)
            asked = in_features
        self.width = asked or default_width or inner_width(in_features)
        widths = {
            0: [in_features],
            1: [in_features, self.width],
            2: [in_features, self.width, self.width],
            3: [in_features, max(1, in_features // 2), MLP_HIDDEN, self.width],
        }[config.embedding_layers]
        widths += [self.width] * further_layers
        bias = bias or len(widths) > 2
        self.layers = nn.ModuleList(TileLinear(before, after, bias=bias) for before, after in pairwise(widths))
        # Has the type of the model, which cannot be read from a weight if there are no layers.
        self.register_buffer("like", torch.zeros(()), persistent=False)
        # In place, which is safe after a linear layer and saves a copy of N x I.
        self.activation = functional.relu_ if activation == "relu" else ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        self.dropout_last = dropout_last
        self.mil_dropout = MILDropout(config.mil_dropout, config.mil_dropout_neighbors)
        self.standardize = Standardize(in_features) if standardize else None

    def forward(self, features: Tensor) -> Tensor:
        if self.standardize is not None:
            features = self.standardize(features)
        if not self.layers:
            return self.dropout(features.to(self.like.dtype))
        # under autocast the first product converts the features, to what it needs
        autocast = torch.is_autocast_enabled(features.device.type)
        embedded = features if autocast else features.to(self.like.dtype)
        for number, layer in enumerate(self.layers, start=1):
            drops = self.dropout_last or number < len(self.layers)
            embedded = self.mil_dropout(self.layer(layer, embedded, drops))
        return embedded

    def layer(self, linear: nn.Module, rows: Tensor, drops: bool) -> Tensor:
        """A linear layer, activation, and dropout if it `drops`."""
        product = linear(rows)
        if not drops:
            return self.activation(product)
        dropout = self.dropout
        if dropout.p and dropout.training and self.activation is functional.relu_ and one_pass(product):
            return relu_dropout(product, dropout.p, dropout.generator)
        return dropout(self.activation(product))

    def weight_of_single_layer(self) -> Tensor | None:
        """W, if the embedding is ReLU(W x) and nothing else; otherwise None."""
        more = self.dropout.p or self.mil_dropout.top or self.standardize or self.activation is not functional.relu_
        if len(self.layers) != 1 or more:
            return None
        (layer,) = self.layers
        assert isinstance(layer, nn.Linear)
        return layer.weight if layer.bias is None else None


def _refuse_unembedded(in_features: int, asked: int | None, mil_dropout: int) -> None:
    if asked not in (None, in_features):
        raise AsmilError(
            f"model.embedding_layers = 0 keeps the {in_features} features of a tile as they are, but the embedding "
            f"is to be {asked} wide; set model.embedding_layers=1, or leave model.inner out"
        )
    if mil_dropout:
        raise AsmilError(
            f"model.mil_dropout = {mil_dropout} follows embedding layers, and model.embedding_layers = 0 has none; "
            "set model.embedding_layers=3"
        )
