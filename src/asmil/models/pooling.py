"""Mean and max pooling, the baselines of every comparison: equal weights for all tiles, or the highest value.

    h_i = dropout(act(W_1 x_i + b_1))                      M wide
    f_i = W_2 h_i + b_2                                    C wide, the tile's own logits

`level` sets what is pooled:

    instance    mean: logits = mean_i f_i         max: logits_c = max_i f_i,c; each class may take another tile
    embedding   mean: logits = W_2 mean_i h_i + b_2        max: logits = W_2 b + b_2 with b_m = max_i h_i,m
    tile        (max only) logits = f_i of one tile: with two classes the one most likely of class 1, with more the one
                with the largest probability of any class, with one output the one with the largest logit

`instance` is the form of the ACMIL and ASMIL studies, `tile` CLAM's max-pooling baseline ("mil"), `embedding` what
Ilse et al. compare with. The head is linear, so for the mean the first two are equal, and one formula serves both.

There is no attention: the heat map is the tile's own probability of the predicted class. See docs/methods/pooling.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.base import MILModel, Output, predicted_column
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.layers import start_linear
from asmil.models.blocks.tile_mean import TileMean
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register

_OFFICIAL = {"training": {"optimizer": "adamw", "weight_decay": 1e-5, "epochs": 100}}
_PAPER = "Ilse et al., Attention-based Deep Multiple Instance Learning"


class PoolingConfig(EmbeddingConfig):
    """What mean and max pooling have in common."""

    activation: Literal["relu", "gelu"] = Field("relu", description="of the embedding")
    dropout: float = Field(0.25, ge=0, lt=1, description="on the embedding")


class MeanPoolingConfig(PoolingConfig):
    """Architecture of mean pooling."""

    level: Literal["instance", "embedding"] = Field(
        "instance", description="average the tiles' logits or their embeddings: the same, as the head is linear"
    )


class MaxPoolingConfig(PoolingConfig):
    """Architecture of max pooling."""

    level: Literal["instance", "embedding", "tile"] = Field(
        "instance", description="the largest logit of each class, the largest embedded values, or one tile's logits"
    )


class PoolingModel(MILModel):
    """Embeds tiles and classifies each of them; a subclass pools."""

    map_kinds = ("probability",)
    config: MeanPoolingConfig | MaxPoolingConfig

    def __init__(self, in_features: int, n_outputs: int, config: MeanPoolingConfig | MaxPoolingConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(in_features, config, activation=config.activation, dropout=config.dropout)
        self.head = nn.Linear(self.embedding.width, n_outputs)
        if config.level != "tile":
            start_linear(self)

    @property
    def can_stream(self) -> bool:
        return True

    @property
    def classifies_tiles(self) -> bool:
        return True

    @property
    def padding_from(self) -> int | None:
        return None if self.embedding.mil_dropout.top else 1

    def forward(self, bag: Bag) -> Output:
        return self.pool([bag.features], bag.mask)

    @torch.no_grad()
    def stream(self, chunks: Iterable[Tensor]) -> Output:
        return self.pool(chunks)

    def pool(self, chunks: Iterable[Tensor], mask: Tensor | None = None) -> Output:
        """The output for a bag that arrives as one chunk or several (n x D each).

        mask: n, false for padding, of a bag that arrives as one chunk
        """
        raise AssertionError("a subclass defines pool")

    def classify(self, chunks: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Chunk by chunk, the embedded tiles (n x M) and their logits (n x C)."""
        for features in chunks:
            embedded = self.embedding(features)
            yield embedded, self.head(embedded)

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        """The tile's own probability of the predicted class (of the positive class for a single output)."""
        assert output.instance_logits is not None
        if self.n_outputs == 1:
            return torch.sigmoid(output.instance_logits[:, 0])
        return predicted_column(output, torch.softmax(output.instance_logits, dim=1))


@register(
    "mean_pooling",
    summary="every tile is classified, and all count alike",
    paper=_PAPER,
    year=2018,
    presets={"official": _OFFICIAL},
)
class MeanPooling(PoolingModel):
    """Mean pooling; see the module's text for the formulas."""

    config_type = MeanPoolingConfig

    def pool(self, chunks: Iterable[Tensor], mask: Tensor | None = None) -> Output:
        pooled, instance_logits = TileMean(), []
        for embedded, logits in self.classify(chunks):
            pooled.add(embedded, mask)
            instance_logits.append(logits)
        mean = pooled.mean(self.head.weight.dtype)
        return Output(self.head(mean), None, mean, torch.cat(instance_logits))


@register(
    "max_pooling",
    summary="every tile is classified, and the strongest decides",
    paper=_PAPER,
    year=2018,
    presets={
        "official": _OFFICIAL,
        "clam": {
            "model": {"level": "tile", "inner": 512},
            "training": {"lr": 2e-4, "weight_decay": 1e-5, "epochs": 200, "schedule": "constant", "select": "loss"},
        },
    },
)
class MaxPooling(PoolingModel):
    """Max pooling; see the module's text for the formulas."""

    config_type = MaxPoolingConfig

    def pool(self, chunks: Iterable[Tensor], mask: Tensor | None = None) -> Output:
        if self.config.level == "embedding":
            return self._largest_values(chunks, mask)
        # Every chunk sends the tiles that would decide if it were the bag; the bag's are among them.
        features, candidates, numbers, instance_logits = [], [], [], []
        seen = 0
        for embedded, logits in self.classify(chunks):
            tiles = self._deciding_tiles(logits, mask)
            features.append(embedded[tiles])
            candidates.append(logits[tiles])
            numbers.append(tiles + seen)
            instance_logits.append(logits)
            seen += logits.shape[0]
        finalists = torch.cat(candidates)
        chosen = self._deciding_tiles(finalists)
        # one row for all classes, or one for each
        logits = finalists.gather(0, chosen.expand(1, self.n_outputs))[0]
        extras = {"deciding_tiles": torch.cat(numbers)[chosen]}
        return Output(logits, None, torch.cat(features)[chosen].flatten(), torch.cat(instance_logits), extras)

    def _deciding_tiles(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        """The tile of every class, or the one tile for all: indices into the n x C logits."""
        if self.config.level == "instance" or self.n_outputs == 1:
            return _without_padding(logits, mask).argmax(dim=0)
        probabilities = _without_padding(torch.softmax(logits.detach(), dim=1), mask)
        likeliest = probabilities[:, 1] if self.n_outputs == 2 else probabilities.amax(dim=1)
        return likeliest.argmax(dim=0, keepdim=True)

    def _largest_values(self, chunks: Iterable[Tensor], mask: Tensor | None) -> Output:
        largest, instance_logits = [], []
        for embedded, logits in self.classify(chunks):
            largest.append(_without_padding(embedded, mask).amax(dim=0))
            instance_logits.append(logits)
        pooled = torch.stack(largest).amax(dim=0)
        return Output(self.head(pooled), None, pooled, torch.cat(instance_logits))


def _without_padding(rows: Tensor, mask: Tensor | None) -> Tensor:
    """The rows, minus infinity for padding."""
    return rows if mask is None else rows.masked_fill(~mask.unsqueeze(1), -torch.inf)


def _register_layout(embedding: str, head: str, level: str) -> None:
    """Register a published layout, given the names of its layers: ACMIL's ("instance") or CLAM's ("tile").

    In ACMIL's layout mean and max have the same tensors: `config["mode"]` decides.
    """
    layers = {"embedding.layers.0": embedding, "head": head}
    required = layers.values()

    def convert(tensors: Tensors, config: Config) -> Converted:
        return converted(renamed(tensors, layers), level=level, **options_of(config, {"act": "activation"}))

    def refuse(tensors: Tensors, config: Config) -> Converted:
        raise AsmilError("mean and max pooling have the same tensors; give config={'mode': 'mean'} or {'mode': 'max'}")

    if level == "tile":
        register_official("max_pooling", required, convert)
        return
    register_official("mean_pooling", required, convert, lambda tensors, config: config.get("mode") == "mean")
    register_official("max_pooling", required, convert, lambda tensors, config: config.get("mode") == "max")
    register_official("mean_pooling", required, refuse)


_register_layout("head.0", "head.3", "instance")
_register_layout("head.0", "head.2", "instance")  # without dropout
_register_layout("fc.0", "classifier", "tile")  # two classes
_register_layout("fc.0", "classifiers", "tile")  # more
