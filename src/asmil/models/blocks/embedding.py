"""The first layers of most methods: tile features to embedded tiles."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.base import ModelConfig, inner_width
from asmil.models.blocks.activations import ACTIVATIONS, Activation
from asmil.models.blocks.mil_dropout import MILDropout
from asmil.models.blocks.randomness import Dropout

MLP_HIDDEN = 256


class EmbeddingConfig(ModelConfig):
    """Settings of methods that embed tiles."""

    inner: int | None = Field(None, ge=1, description="embedding width; by default from the feature width")
    embedding_layers: Literal[1, 3] = Field(
        1, description="one layer, or three (D to D/2 to 256 to inner) as in MIL-Dropout's models"
    )
    mil_dropout: int = Field(0, ge=0, description="MIL-Dropout after each embedding layer: k, the tiles dropped first")
    mil_dropout_neighbors: int = Field(4, ge=0, description="g, the tiles most similar to each of them that fall too")


class TileEmbedding(nn.Module):
    """N x D -> N x I: linear, activation, dropout (and MIL-Dropout where asked for), once or three times.

    The one layer's bias follows `bias`; the three layers always have one.
    """

    def __init__(
        self,
        in_features: int,
        config: EmbeddingConfig,
        *,
        width: int | None = None,
        bias: bool = True,
        activation: Activation = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.width = width or config.inner or inner_width(in_features)
        widths = [in_features, self.width]
        if config.embedding_layers == 3:
            widths = [in_features, max(1, in_features // 2), MLP_HIDDEN, self.width]
            bias = True
        self.layers = nn.ModuleList(nn.Linear(before, after, bias=bias) for before, after in pairwise(widths))
        # In place where that is safe: nothing else reads a linear layer's output, and a copy of N x I costs time.
        self.activation = functional.relu_ if activation == "relu" else ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        self.mil_dropout = MILDropout(config.mil_dropout, config.mil_dropout_neighbors)

    def forward(self, features: Tensor) -> Tensor:
        embedded = features.to(next(self.parameters()).dtype)
        for layer in self.layers:
            embedded = self.mil_dropout(self.dropout(self.activation(layer(embedded))))
        return embedded
