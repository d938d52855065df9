"""SiMLP: the mean of the tile features, then a network of two layers (Li et al., 2025).

    f = mean_i x_i                                     the features as they are, D wide
    logits = W_2 dropout(ReLU(W_1 f + b_1)) + b_2      W_1: H x D, W_2: C x H

With features of a foundation model this is a strong baseline, which every attention method should be compared with.
There is no attention. In eval mode the logits are split exactly among the tiles, since the network is linear where its
ReLUs are fixed:

    c_i = W_2 (m * W_1 x_i) / N                        m: 1 where W_1 f + b_1 > 0, else 0
    sum_i c_i = logits - offset                        offset = W_2 (m * b_1) + b_2

c (N x C) are the instance logits of the output and the map `contribution`; the offset is among its extras. See
docs/methods/simlp.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, ModelConfig, Output, explained_column
from asmil.models.blocks.randomness import Dropout
from asmil.models.blocks.tile_mean import TileMean
from asmil.models.official import Config, Converted, Tensors, register_official, renamed
from asmil.models.registry import register


class SiMLPConfig(ModelConfig):
    """Architecture of SiMLP."""

    hidden: int = Field(512, ge=1, description="H, width of the hidden layer")
    dropout: float = Field(0.25, ge=0, lt=1, description="on the hidden layer")


@register(
    "simlp",
    summary="the mean of the tiles, then a small network; its map is exact",
    paper="Li et al., Can We Simplify Slide-level Fine-tuning of Pathology Foundation Models?",
    year=2025,
    presets={
        "official": {
            "training": {
                "optimizer": "adamw",
                "lr": 1e-4,
                "weight_decay": 1e-4,
                "epochs": 15,
                "schedule": "constant",
            },
        }
    },
)
class SiMLP(MILModel):
    """SiMLP; see the module's text for the formulas."""

    config_type = SiMLPConfig
    records_steps = False  # not tried on a GPU
    map_kinds = ("contribution",)
    weighted_instance_logits = True
    config: SiMLPConfig

    def __init__(self, in_features: int, n_outputs: int, config: SiMLPConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.hidden = nn.Linear(in_features, config.hidden)
        self.dropout = Dropout(config.dropout)
        self.head = nn.Linear(config.hidden, n_outputs)

    @property
    def can_stream(self) -> bool:
        return True

    @property
    def classifies_tiles(self) -> bool:
        return True

    @property
    def padding_from(self) -> int | None:
        return 1

    def forward(self, bag: Bag) -> Output:
        return self._classify([bag.features], bag.mask)

    @torch.no_grad()
    def stream(self, chunks: Iterable[Tensor]) -> Output:
        """The chunks are read twice: for the mean, and for the contributions of the tiles."""
        return self._classify(chunks)

    def _classify(self, chunks: Iterable[Tensor], mask: Tensor | None = None) -> Output:
        pooled = TileMean()
        for features in chunks:
            pooled.add(features, mask)
        mean = pooled.mean(self.head.weight.dtype)
        hidden = self.hidden(mean)
        output = Output(self.head(self.dropout(functional.relu(hidden))), None, mean)
        if not self.training:
            self._split(output, hidden.detach(), chunks, pooled.count)
        return output

    def _split(self, output: Output, hidden: Tensor, chunks: Iterable[Tensor], count: Tensor | int) -> None:
        """Add the contributions of the tiles and the offset to the output."""
        active = self.head.weight.detach() * (hidden > 0)  # C x H
        share = active @ self.hidden.weight.detach() / count
        tiles = [features.detach().to(share.dtype) @ share.t() for features in chunks]
        output.instance_logits = torch.cat(tiles)
        output.extras["offset"] = active @ self.hidden.bias.detach() + self.head.bias.detach()

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        """The contributions to the logit of the predicted class, or to the risk."""
        assert output.instance_logits is not None, "outputs of training have no contributions"
        return explained_column(output, output.instance_logits)


def _convert(tensors: Tensors, config: Config) -> Converted:
    state = renamed(tensors, {"hidden": "mlp.0", "head": "mlp.3"})
    width, in_features = state["hidden.weight"].shape
    return in_features, len(state["head.weight"]), {"hidden": width}, state


register_official("simlp", ("mlp.0", "mlp.3"), _convert)
