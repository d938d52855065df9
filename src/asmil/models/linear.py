"""Linear probe: logistic regression on the mean of the tiles, or on a vector that a slide encoder made.

    logits = W mean_i x_i + b = mean_i (W x_i + b)         x_i: the features as they are, D wide; C x D weights in all

It shows how well the features alone solve the task, and is the usual way to evaluate slide encoders (TITAN, CHIEF,
PRISM, ...), whose one vector per slide is a bag of one tile. It is mean pooling without the embedding: only W and b are
learned, by the common loop, so that it is compared under equal conditions. See docs/methods/linear.md.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from asmil.models.pooling import MeanPooling, MeanPoolingConfig
from asmil.models.registry import register


class LinearConfig(MeanPoolingConfig):
    """Architecture of the linear probe: that of mean pooling, without layers before the head."""

    embedding_layers: Literal[0] = Field(0, description="0: the features as they are")
    dropout: float = Field(0.0, ge=0, lt=1, description="on the features")


@register(
    "linear",
    summary="logistic regression on the mean of the tiles, or on slide vectors",
    paper="linear probe",
    year=2026,
    defaults={"training": {"lr": 1e-3}},
)
class Linear(MeanPooling):
    """The linear probe; see the module's text for the formula."""

    config_type = LinearConfig
