"""TransMIL: a transformer over the tiles with Nystrom attention (Shao et al., 2021).

    h = ReLU(W x + b)                                      N x I
    x = [class token, h, first tiles of h again]           up to 1 + s^2 tokens, s = ceil(sqrt(N))
    x = x + Nystrom(LayerNorm(x))                          layer 1; `blocks/nystrom.py` has the formulas
    x = [class token, PPEG(the s^2 tile tokens)]           convolutions on an s x s grid, `blocks/position.py`
    x = x + Nystrom(LayerNorm(x))                          layer 2, with its own weights
    b = LayerNorm(x)[0]     logits = W_c b + b_c

There is no feed-forward part. Tiles are placed on the grid in the order of the file, so that order matters. Only the
class token leaves layer 2, so only its row is computed there.

Scores. Nystrom attention has no score of the class token for a tile. What it approximates has: q_class . k_i / sqrt(h)
of layer 2, one row per head. These are the scores (the forward pass itself does not use their softmax).
The heat map "attention" is the class token's row of layer 2's attention matrix F1 Z F3: mean over heads, repeated tiles
added to their first occurrence, negative values set to 0, scaled to the sum 1. If no value is positive it falls back
to "scores", the normalized exact scores averaged over heads.

Differences from the paper and the official code: docs/methods/transmil.md.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.base import MILModel, Output, masked_scores, refuse_uneven
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.nystrom import NystromLayer, as_distribution
from asmil.models.blocks.position import PyramidPosition, repeats_to_square, square_side
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register

CLASS_TOKEN = 0
OFFICIAL_WIDTH = 512


class TransMILConfig(EmbeddingConfig):
    """Architecture of TransMIL."""

    heads: int = Field(8, ge=1, description="attention heads; they share the width")
    landmarks: int | None = Field(None, ge=1, description="of the Nystrom attention; null: half the width")
    iterations: int = Field(6, ge=1, description="of the pseudo-inverse")
    dropout: float = Field(0.1, ge=0, lt=1, description="after each attention layer")


@register(
    "transmil",
    summary="a transformer with Nystrom attention and a class token over tiles laid out on a square",
    paper="Shao et al., TransMIL: Transformer based Correlated Multiple Instance Learning for Whole Slide Image "
    "Classification",
    year=2021,
    presets={
        "official": {
            "training": {
                "optimizer": "lookahead_radam",
                "lr": 2e-4,
                "weight_decay": 1e-5,
                "decay": "matrices",
                "schedule": "constant",
                "accumulate": 2,
                "epochs": 200,
                "select": "loss",
                "early_stopping": 10,
            }
        }
    },
)
class TransMIL(MILModel):
    """TransMIL; see the module's text for the formulas."""

    config_type = TransMILConfig
    score_axes = ("head",)
    why_not_smoothed = "its Nystrom attention pools the tiles without their scores, which are computed for maps only"
    map_kinds = ("attention", "scores")
    config: TransMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: TransMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(in_features, config, default_width=OFFICIAL_WIDTH)
        width = self.embedding.width
        refuse_uneven(width, config.heads)
        if config.landmarks is None and width % 2:
            raise AsmilError(
                f"tokens of width {width} have no half to be the number of landmarks; "
                "set model.inner to an even number, or model.landmarks"
            )
        options = {"iterations": config.iterations, "dropout": config.dropout}
        self.layer1 = NystromLayer(width, config.heads, config.landmarks, **options)
        self.position = PyramidPosition(width)
        self.layer2 = NystromLayer(width, config.heads, config.landmarks, **options)
        self.class_token = nn.Parameter(torch.randn(1, width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_outputs)

    @property
    def normalizer_built_in(self) -> bool:
        return True

    def padded_rows(self, tiles: int) -> int:
        return square_side(tiles) ** 2

    def attend(self, bag: Bag) -> Tensor:
        normed = self.layer2.norm(self._after_position(self._tokens(bag)))
        return self._scores(normed, bag)

    def forward(self, bag: Bag) -> Output:
        tokens = self._after_position(self._tokens(bag))
        normed = self.layer2.norm(tokens)
        extras = {}
        if self.training:
            update = self.layer2.attention.row(normed, CLASS_TOKEN)
        else:
            update, extras["class_row"] = self.layer2.attention.row_and_weights(normed, CLASS_TOKEN)
        feature = self._feature(tokens, update)
        return Output(self.head(feature), self._scores(normed, bag), feature, extras=extras)

    def class_rows(self, bag: Bag) -> list[tuple[Tensor, Tensor]]:
        """For both layers, the class token's exact scores and its row of F1 Z F3 (heads x tokens each).

        Tokens are the class token, the tiles, and the first tiles again up to a square.
        """
        first = self._tokens(bag)
        second = self._after_position(first)
        read = []
        for layer, tokens in ((self.layer1, first), (self.layer2, second)):
            normed, attention = layer.norm(tokens), layer.attention
            read.append((attention.row_scores(normed, CLASS_TOKEN), attention.row_weights(normed, CLASS_TOKEN)))
        return read

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        assert output.scores is not None, "forward always gives scores"
        exact: Tensor = self.normalizer(output.scores).mean(dim=0)
        if kind == "scores":
            return exact
        if "class_row" not in output.extras:
            raise AsmilError("the attention map of transmil is computed in eval mode only; call model.eval() first")
        n_tiles = output.scores.shape[1]
        row = output.extras["class_row"].mean(dim=0)[1:]
        repeats = row[n_tiles:]
        weights = row[:n_tiles].clone()
        weights[: len(repeats)] += repeats
        return as_distribution(weights, otherwise=exact)

    def _tokens(self, bag: Bag) -> Tensor:
        """What enters layer 1: the class token and the tiles on their square, (1 + s^2) x I."""
        embedded: Tensor = self.embedding(bag.features)
        if bag.mask is None:
            return torch.cat([self.class_token, embedded, embedded[: repeats_to_square(len(bag))]])
        place = torch.arange(len(bag), device=embedded.device)
        return torch.cat([self.class_token, embedded[torch.where(bag.mask, place, place - bag.mask.sum())]])

    def _after_position(self, tokens: Tensor) -> Tensor:
        """What enters layer 2."""
        tokens = self.layer1(tokens)
        return torch.cat([tokens[:1], self.position(tokens[1:])])

    def _scores(self, normed: Tensor, bag: Bag) -> Tensor:
        return masked_scores(self.layer2.attention.row_scores(normed[: 1 + len(bag)], CLASS_TOKEN)[:, 1:], bag)

    def _feature(self, tokens: Tensor, update: Tensor) -> Tensor:
        return self.norm(tokens[CLASS_TOKEN] + update)


def encoder_layers(prefix: str, position: str) -> dict[str, str]:
    """The official names of both layers, the position block and the norm, by our names.

    prefix: of all names; position: the name of the position block
    """
    layer = {"norm": "norm", "attention.to_qkv": "attn.to_qkv", "attention.to_out": "attn.to_out.0"}
    layer["attention.residual"] = "attn.res_conv"
    convolutions = enumerate(("proj", "proj1", "proj2"))
    return {
        **{f"{name}.{ours}": f"{prefix}{name}.{layer[ours]}" for name in ("layer1", "layer2") for ours in layer},
        **{f"position.convolutions.{i}": f"{prefix}{position}.{name}" for i, name in convolutions},
        "norm": f"{prefix}norm",
    }


LAYERS = {"embedding.layers.0": "_fc1.0", "head": "_fc2", **encoder_layers("", "pos_layer")}
CONFIG_WORDS = {
    **dict.fromkeys(("landmarks", "n_landmarks", "num_landmarks"), "landmarks"),
    **dict.fromkeys(("iterations", "n_iterations", "pinv_iterations"), "iterations"),
}


def _convert(tensors: Tensors, config: Config) -> Converted:
    state = renamed(tensors, LAYERS)
    state["class_token"] = tensors["cls_token"].flatten(0, 1)
    options = {option: int(value) for option, value in options_of(config, CONFIG_WORDS).items()}
    return converted(state, heads=len(state["layer1.attention.residual.weight"]), **options)


register_official("transmil", LAYERS.values(), _convert, names=("cls_token",))
