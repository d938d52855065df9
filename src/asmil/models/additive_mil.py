"""Additive MIL: every attended tile is classified, and the results are added (Javed et al., 2022).

    z_i = s(x_i)                       s: two times (linear, batch norm, leaky ReLU with slope 0.2), D -> H -> H, linear
    c_i = g(a_i x_i)                   a = softmax(z); g: linear, ReLU, linear, ReLU, linear, D -> H -> H -> C
    logits = sum_i c_i                 neither a mean nor a bias follows

Attention and classifier read the features as they are. c_i (the instance logits) is what tile i adds to the logits: an
exact split of this forward pass. It is not what removing the tile would change, since the attention depends on all
tiles.

A tile with a_i = 0 still adds g(0), so the logits contain about N g(0) and depend on the NUMBER of tiles. The map
`contribution` shows c_i, `net_contribution` shows c_i - g(0).

Batch norm uses the tiles of the bag in training and running statistics in eval mode; a bag of one tile uses the
running statistics in training, too. The first layer of g is applied before the weights, W (a_i x_i) = a_i (W x_i),
which saves a copy of the bag. See docs/methods/additive_mil.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, ModelConfig, Output, explained_column, masked_scores
from asmil.models.blocks.layers import TileLinear, floating, linear_over_tiles
from asmil.models.official import Config, Converted, Tensors, register_official, renamed
from asmil.models.registry import register

SLOPE = 0.2
_LINEAR = {
    **{f"scorer.{index}": f"pointer.model.{index}" for index in (0, 3, 6)},
    **{f"classifier.{index}": f"classifier.model.{index}" for index in (0, 2, 4)},
}
_NORMS = {f"scorer.{index}": f"pointer.model.{index}" for index in (1, 4)}
_OF_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


class AdditiveMILConfig(ModelConfig):
    """Architecture of Additive MIL."""

    hidden: int = Field(256, ge=1, description="H, width of all hidden layers")


class TileNorm(nn.BatchNorm1d):
    """Batch norm over the tiles of a bag; a bag of one tile, which has no variance, uses the running statistics."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, tiles: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.training and mask is not None:
            return self._of_padded(tiles, mask)
        if self.training and tiles.shape[0] == 1:
            return functional.batch_norm(
                tiles, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(tiles)

    def _of_padded(self, tiles: Tensor, mask: Tensor) -> Tensor:
        """The same for the tiles in a mask, without reading their number."""
        rows, is_tile, count = floating(tiles), mask.unsqueeze(1), mask.sum()
        has_variance = count > 1
        mean = (rows * is_tile).sum(dim=0) / count
        variance = ((rows - mean) * is_tile).square().sum(dim=0) / count
        with torch.no_grad():
            share = self.momentum * has_variance.to(mean.dtype)
            self.running_mean.lerp_(mean, share)
            self.running_var.lerp_(variance * (count / (count - 1).clamp_min(1)), share)
            self.num_batches_tracked.add_(has_variance)
        mean = torch.where(has_variance, mean, self.running_mean)
        variance = torch.where(has_variance, variance, self.running_var)
        return ((rows - mean) * ((variance + self.eps).rsqrt() * self.weight) + self.bias).to(tiles.dtype)


@register(
    "additive_mil",
    summary="every attended tile is classified, and the results add up to the logits: an exact map",
    paper="Javed et al., Additive MIL: Intrinsically Interpretable Multiple Instance Learning for Pathology",
    year=2022,
    presets={
        "official": {
            "data": {"max_tiles": 2048},
            "training": {
                "lr": 2e-3,
                "weight_decay": 0.0,
                "epochs": 1000,
                "schedule": "constant",
                "accumulate": 32,
                "early_stopping": 100,
            },
        }
    },
)
class AdditiveMIL(MILModel):
    """Additive MIL; see the module's text for the formulas."""

    config_type = AdditiveMILConfig
    score_axes = ("branch",)
    smooths = ("late",)
    map_kinds = ("attention", "contribution", "net_contribution")
    weighted_instance_logits = True
    config: AdditiveMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: AdditiveMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        width = config.hidden
        self.scorer = nn.Sequential(
            *(TileLinear(in_features, width), TileNorm(width), nn.LeakyReLU(SLOPE, inplace=True)),
            *(TileLinear(width, width), TileNorm(width), nn.LeakyReLU(SLOPE, inplace=True)),
            TileLinear(width, 1),
        )
        self.classifier = nn.Sequential(
            *(TileLinear(in_features, width), nn.ReLU(inplace=True)),
            *(TileLinear(width, width), nn.ReLU(inplace=True)),
            TileLinear(width, n_outputs),
        )

    @property
    def padding_from(self) -> int | None:
        return None if self.smoothed else 1

    @property
    def can_stream(self) -> bool:
        return not self.smoothed

    @property
    def classifies_tiles(self) -> bool:
        return True

    def attend(self, bag: Bag) -> Tensor:
        return masked_scores(self.smooth_scores(self._score(bag.features, bag.mask), bag), bag)

    def forward(self, bag: Bag) -> Output:
        return self._add([bag.features], self.attend(bag), bag.mask)

    @torch.no_grad()
    def stream(self, chunks: Iterable[Tensor]) -> Output:
        """The chunks are read twice: for the scores, and for the contributions."""
        return self._add(chunks, torch.cat([self._score(features) for features in chunks], dim=-1))

    def _score(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """N x D -> 1 x N."""
        rows = self._as_computed(features)
        for layer in self.scorer:
            rows = layer(rows, mask) if isinstance(layer, TileNorm) else layer(rows)
        return rows.t()

    def _add(self, chunks: Iterable[Tensor], scores: Tensor, mask: Tensor | None = None) -> Output:
        """mask: of a bag that is one chunk."""
        attention = self.normalizer(scores)[0]
        contributions, hidden, seen = [], [], 0
        for features in chunks:
            weights = attention.narrow(0, seen, features.shape[0])
            last = self._last_hidden(self._as_computed(features), weights)
            added = self.classifier[-1](last)
            if mask is not None:
                last, added = last * mask.unsqueeze(1), added * mask.unsqueeze(1)
            contributions.append(added)
            hidden.append(floating(last).sum(dim=0))
            seen += features.shape[0]
        tiles = torch.cat(contributions)
        dtype = self._dtype
        mean = torch.stack(hidden).sum(dim=0) / (seen if mask is None else mask.sum())
        return Output(floating(tiles).sum(dim=0).to(dtype), scores, mean.to(dtype), tiles)

    def _last_hidden(self, features: Tensor, weights: Tensor) -> Tensor:
        """n x H, of the classifier, for n x D features and n weights."""
        first, activation, *others, _ = self.classifier
        assert isinstance(first, nn.Linear)
        product = linear_over_tiles(features, first.weight, None)
        hidden = activation(weights.unsqueeze(1).to(product.dtype) * product + first.bias.to(product.dtype))
        for layer in others:
            hidden = layer(hidden)
        return hidden

    def _as_computed(self, features: Tensor) -> Tensor:
        """The features in the type of the weights; under autocast the first product converts them."""
        if torch.is_autocast_enabled(features.device.type):
            return features
        return features.to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.scorer.parameters()).dtype

    def empty_tile(self) -> Tensor:
        """g(0), C: the contribution of a tile without attention."""
        first = self.classifier[0]
        assert isinstance(first, nn.Linear)
        contribution: Tensor = self.classifier[1:](first.bias.clone())
        return contribution

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        """The attention, or the contributions to the logit of the predicted class or to the risk."""
        if kind == "attention":
            return super().draw_tile_map(output, kind)
        assert output.instance_logits is not None
        empty = self.empty_tile().to(output.instance_logits.device) if kind == "net_contribution" else 0
        return explained_column(output, output.instance_logits - empty)


def _convert(tensors: Tensors, config: Config) -> Converted:
    state = renamed(tensors, _LINEAR) | renamed(tensors, _NORMS, _OF_NORM)
    width, in_features = state["classifier.0.weight"].shape
    return in_features, len(state["classifier.4.weight"]), {"hidden": width}, state


register_official("additive_mil", _LINEAR.values(), _convert)
