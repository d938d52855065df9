"""SmABMIL: ABMIL whose scores are smoothed over neighboring tiles (Castro-Macias et al., 2024).

    h_i = x_i                                           the features, or embedded tiles (`embedding_layers`)
    early:  h <- Sm(h),   z_i = w . act(V h_i + b_V)
    mid:    z_i = w . act(Sm(V h + b_V)_i)
    late:   z_i = Sm(w . act(V h + b_V))_i
    b   = sum_i softmax(z)_i h_i                        early: of the smoothed tiles
    logits = W_c b + b_c

Sm is in `blocks/smoothing.py`. spectral_norm: V and w are divided by their largest singular values where they follow
Sm, so that smoothness survives them (early: V and w; mid: w; late: none). Differences from the released code:
docs/methods/sm_abmil.md.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.base import MILModel, Output
from asmil.models.blocks.embedding import LAYERS_TEXT, EmbeddingConfig, Layers, TileEmbedding
from asmil.models.blocks.layers import ACTIVATIONS, TileLinear, linear_over_tiles, tile_by_tile
from asmil.models.blocks.smoothing import GRAPH, Smoothing, with_graph
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register

FIRST_ITERATIONS = 15


class SmABMILConfig(EmbeddingConfig):
    """Architecture of SmABMIL."""

    embedding_layers: Layers = Field(0, description=LAYERS_TEXT)
    attention: int = Field(128, ge=1, description="L, width of the attention network")
    activation: Literal["tanh", "relu", "gelu"] = Field("tanh", description="of the attention network")
    where: Literal["early", "mid", "late"] = Field("early", description="what is smoothed: tiles, hidden layer, scores")
    alpha: float = Field(0.5, gt=0, lt=1, description="how strongly neighbors count; the start of a trainable alpha")
    train_alpha: bool = Field(True, description="learn alpha, or keep it")
    steps: int = Field(10, ge=1, description="T, steps of the approximate form")
    exact: bool = Field(False, description="solve the smoothing exactly instead of `steps` steps")
    spectral_norm: bool = Field(False, description="spectral normalization of the layers after the smoothing")

    @model_validator(mode="after")
    def _check(self) -> SmABMILConfig:
        if self.exact and self.steps != type(self).model_fields["steps"].default:
            raise ValueError("steps belongs to the approximate form; leave it out, or set exact to false")
        return self


@register(
    "sm_abmil",
    summary="attention pooling whose tiles or scores are smoothed over neighboring tiles",
    paper="Castro-Macias et al., Sm: enhanced localization in Multiple Instance Learning for medical imaging "
    "classification",
    year=2024,
    presets={"official": {"training": {"lr": 1e-4, "weight_decay": 0.0, "epochs": 10, "schedule": "constant"}}},
)
class SmABMIL(MILModel):
    """SmABMIL; see the module's text for the formulas.

    A bag may have its own `extras["edges"]` (2 x E, [center, neighbor], both directions) and `extras["edge_weights"]`
    (E, all of A); `prepare` adds A.
    """

    config_type = SmABMILConfig
    score_axes = ("branch",)
    why_not_smoothed = "it smooths already; set model.where instead"
    config: SmABMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: SmABMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(in_features, config)
        width, spectral = self.embedding.width, config.spectral_norm
        self.value = _layer(width, config.attention, bias=True, spectral=spectral and config.where == "early")
        self.weight = _layer(config.attention, 1, bias=False, spectral=spectral and config.where != "late")
        self.smoothing = Smoothing(config.alpha, config.steps, exact=config.exact, trainable=config.train_alpha)
        self.activation = ACTIVATIONS[config.activation]
        self.head = nn.Linear(width, n_outputs)

    @property
    def steps_alike(self) -> bool:
        return super().steps_alike and not self.config.spectral_norm

    def prepare(self, bag: Bag) -> Bag:
        return with_graph(bag, "SmABMIL", own_edges=True)

    def _smooth(self, values: Tensor, bag: Bag) -> Tensor:
        return self.smoothing(values, bag.extras[GRAPH]).to(values.dtype)

    def tiles_and_scores(self, bag: Bag) -> tuple[Tensor, Tensor]:
        """h (N x I) and z (1 x N) of the module's text."""
        bag, where = self.prepare(bag), self.config.where
        tiles = tile_by_tile(self.embedding, bag.features)
        if where == "early":
            tiles = self._smooth(tiles, bag)
        if where == "mid":
            hidden = self._smooth(tile_by_tile(self.value, tiles), bag)
            scores = self.weight(self.activation(hidden))
        else:
            scores = tile_by_tile(lambda rows: self.weight(self.activation(self.value(rows))), tiles)
        if where == "late":
            scores = self._smooth(scores, bag)
        return tiles, scores.t()

    def attend(self, bag: Bag) -> Tensor:
        return self.tiles_and_scores(bag)[1]

    def forward(self, bag: Bag) -> Output:
        tiles, scores = self.tiles_and_scores(bag)
        embedding = (self.normalizer(scores).to(tiles.dtype) @ tiles).squeeze(0)
        return Output(self.head(embedding), scores, embedding)


def _layer(width: int, outputs: int, *, bias: bool, spectral: bool) -> nn.Linear:
    return (SpectralLinear if spectral else TileLinear)(width, outputs, bias=bias)


class SpectralLinear(nn.Linear):
    """A linear layer whose weight W is divided by an estimate u . W v of its largest singular value.

    A training pass first updates u = W v / |W v|, then v = W^T u / |W^T u|.
    """

    u: Tensor
    v: Tensor

    def __init__(self, width: int, outputs: int, bias: bool = True) -> None:
        super().__init__(width, outputs, bias=bias)
        self.register_buffer("u", functional.normalize(torch.randn(outputs), dim=0))
        self.register_buffer("v", functional.normalize(torch.randn(width), dim=0))
        for _ in range(FIRST_ITERATIONS):
            self._iterate()

    @torch.no_grad()
    def _iterate(self) -> None:
        self.u.copy_(functional.normalize(self.weight @ self.v, dim=0))
        self.v.copy_(functional.normalize(self.weight.t() @ self.u, dim=0))

    def forward(self, tiles: Tensor) -> Tensor:
        if self.training:
            self._iterate()
        # copies, since the next pass changes u and v in place
        scale = self.u.clone() @ self.weight @ self.v.clone()
        return linear_over_tiles(tiles, self.weight / scale, self.bias)


def _official_layer(tensors: Tensors, ours: str, theirs: str) -> dict[str, Tensor]:
    """A linear layer, with or without spectral normalization."""
    spectral = f"{theirs}.parametrizations.weight"
    if not any(name.startswith(spectral) for name in tensors):
        return renamed(tensors, {ours: theirs})
    state = {
        f"{ours}.weight": tensors[f"{spectral}.original"],
        f"{ours}.u": tensors[f"{spectral}.0._u"],
        f"{ours}.v": tensors[f"{spectral}.0._v"],
    }
    return state | ({f"{ours}.bias": tensors[f"{theirs}.bias"]} if f"{theirs}.bias" in tensors else {})


def _convert(tensors: Tensors, config: Config) -> Converted:
    state = _official_layer(tensors, "value", "pool.proj1") | _official_layer(tensors, "weight", "pool.proj2")
    state |= renamed(tensors, {"head": "last_layer"})
    exact = config.get("sm_mode", "approx") == "exact"
    options: dict[str, Any] = options_of(config, {"att_act": "activation", "sm_steps": "steps", "sm_where": "where"})
    alpha = config.get("sm_alpha", "trainable")
    trainable = "pool.sm.sm.coef" in tensors or alpha == "trainable"
    if trainable:
        coefficient = float(tensors["pool.sm.sm.coef"])
        if not 0 < coefficient < math.inf:
            raise AsmilError(
                f"the state dict looks like sm_abmil but its coefficient pool.sm.sm.coef is {coefficient:.4g}; it must "
                "be positive, so that alpha is between 0 and 1"
            )
        alpha = coefficient / (1 + coefficient)
    # the released approximate form has alpha and 1 - alpha exchanged
    logit = math.log(alpha) - math.log1p(-alpha)
    state["smoothing.logit"] = torch.tensor(logit if exact else -logit)
    return converted(
        state,
        state["value.weight"].shape[-1],
        attention=len(state["value.weight"]),
        alpha=alpha if exact else 1 - alpha,
        train_alpha=trainable,
        exact=exact,
        spectral_norm=bool(config.get("spectral_norm", "weight.u" in state)),
        **options,
    )


register_official("sm_abmil", ("last_layer",), _convert, names=("pool.proj1.bias",))
