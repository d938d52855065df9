"""DGR-MIL: diverse global representations (Zhu et al., 2024). A class token and lesion vectors read the encoded tiles.

    f(x)  = ReLU(W_2 ReLU(W_1 x + b_1) + b_2)              shared by tiles and lesion vectors
    x_i   = f(tile i)                                      N x I
    r_k   = f(R_k)                                         K x I, K learned lesion vectors R (K x D)
    H     = LayerNorm(x + Nystrom(LayerNorm(x)))           tiles; `blocks/nystrom.py` has the formulas
    T     = LayerNorm(y + Nystrom(LayerNorm(y)))           tokens y = [class token; r], own weights, (1 + K) x I
    z_h,i = (W_q T_0 + b_q)_h . (W_k H_i + b_k)_h / sqrt(I / heads)                        class token T_0, H heads
    c     = W_o [sum_i softmax(z_h)_i (W_v H_i + b_v)_h]_h + b_o
    b     = LayerNorm(W_f c + b_f)        logits = W_c b + b_c

Only the class token reaches the head, so lesion vectors act on the logits through the token encoder alone. The class
token meets the tiles as few queries, so that neither keys nor values of tiles are formed:

    z_h,i = (W_k,h^T q_h) . H_i + q_h . b_k,h
    sum_i a_i (W_v H_i + b_v) = W_v (sum_i a_i H_i) + b_v sum_i a_i

Training adds two losses from a share `losses_from` of the steps on:

    diversity = -log det(G + 1e-10 I)                      G: cosines between the lesion vectors r, K x K
    triplet   = mean_k max(0, cos(r_k, c_neg) - cos(r_k, c_pos) + 1)
    loss      = L(logits) + 0.1 diversity + 0.1 triplet

The centers are no parameters: the mean of the tiles x of a training bag moves that of its kind, c <- 0.4 c + 0.6 mean,
c_neg for class 0 and c_pos for all others, and the loss of that bag uses the moved centers. L is the task's loss, or
binary cross-entropy against the one-hot class, as in the official code (`loss: bce`).

Scores are those of the class token, one row per head. Differences from the official code: docs/methods/dgr_mil.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.base import Loss, MILModel, ModelConfig, Output, refuse_uneven
from asmil.models.blocks.dual_stream import LossKind, logits_loss
from asmil.models.blocks.layers import TileLinear, full_precision, tile_by_tile
from asmil.models.blocks.nystrom import NystromLayer
from asmil.models.blocks.randomness import Dropout, TileDropout
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register
from asmil.tasks.base import Task

CENTER_MOMENTUM = 0.4
JITTER = 1e-10
LESIONS, TILE_MEAN, LESION_ATTENTION = "lesions", "tile_mean", "lesion_attention"


class DGRMILConfig(ModelConfig):
    """Architecture and losses of DGR-MIL."""

    inner: int = Field(512, ge=2, description="I, width of tiles and tokens")
    lesions: int = Field(11, ge=1, description="K, the lesion vectors")
    heads: int = Field(8, ge=1, description="of all attention layers; they share the width")
    landmarks: int | None = Field(None, ge=1, description="of the Nystrom attention; null: half the width")
    dropout: float = Field(0.0, ge=0, lt=1, description="whole tokens after both encoders, and attention weights")
    tile_dropout: float = Field(0.0, ge=0, lt=1, description="whole tiles after each layer of the projection")
    loss: LossKind = Field("task", description="the task's loss, or bce against the one-hot class (no class weights)")
    diversity: float = Field(0.1, ge=0, description="weight of the diversity loss")
    triplet: float = Field(0.1, ge=0, description="weight of the triplet loss, which needs classes")
    losses_from: float = Field(0.2, ge=0, le=1, description="share of the steps after which these two losses count")


@register(
    "dgr_mil",
    summary="a class token reads the tiles beside learned lesion vectors that are kept apart",
    paper="Zhu et al., DGR-MIL: Exploring Diverse Global Representation in Multiple Instance Learning for Whole Slide "
    "Image Classification",
    year=2024,
    presets={
        "official": {
            "model": {"lesions": 5, "dropout": 0.4, "tile_dropout": 0.1, "loss": "bce", "losses_from": 0.05},
            "training": {
                "optimizer": "sgd",
                "lr": 5e-4,
                "lr_min": 1e-5,
                "weight_decay": 1e-4,
                "warmup_epochs": 10,
                "epochs": 200,
            },
        }
    },
)
class DGRMIL(MILModel):
    """DGR-MIL; see the module's text for the formulas."""

    config_type = DGRMILConfig
    score_axes = ("head",)
    smooths = ("late",)
    config: DGRMILConfig
    centers: Tensor
    """2 x I: of tiles of class 0, and of all other classes."""

    def __init__(self, in_features: int, n_outputs: int, config: DGRMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        width, heads = config.inner, config.heads
        refuse_uneven(width, heads)
        self.map_kinds = ("attention", *(f"lesion_{number}" for number in range(1, config.lesions + 1)))
        self.lesions = nn.Parameter(torch.randn(config.lesions, in_features))
        self.class_token = nn.Parameter(torch.randn(1, width))
        self.register_buffer("centers", torch.randn(2, width))
        self.projection = nn.ModuleList((TileLinear(in_features, width), TileLinear(width, width)))
        self.tile_dropout = TileDropout(config.tile_dropout)
        self.tile_encoder = NystromLayer(width, heads, config.landmarks, dropout=TileDropout(config.dropout))
        self.tile_norm = nn.LayerNorm(width)
        self.token_encoder = NystromLayer(width, heads, config.landmarks, dropout=TileDropout(config.dropout))
        self.token_norm = nn.LayerNorm(width)
        self.attention = TokenAttention(width, heads)
        self.attention_dropout = Dropout(config.dropout)
        self.feed = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_outputs)
        self._counts = 1.0  # factor of the two further losses: 0 or 1

    def attend(self, bag: Bag) -> Tensor:
        tokens, tiles = self.encode_tokens(self.project_lesions()), self.encode(self.project(bag))
        return self.smooth_scores(self.attention.score(tokens[:1], tiles), bag)

    def forward(self, bag: Bag) -> Output:
        tiles = self.project(bag)
        lesions = self.project_lesions()
        extras = {}
        if self.training:
            extras = {LESIONS: lesions, TILE_MEAN: tiles.detach().mean(dim=0)}
        encoded = self.encode(tiles)
        tokens = self.encode_tokens(lesions)
        scores = self.smooth_scores(self.attention.score(tokens[:1], encoded), bag)
        if not self.training:
            extras[LESION_ATTENTION] = self._lesion_attention(tokens[1:], encoded)
        pooled = self.attention.pool(self.attention_dropout(self.normalizer(scores)), encoded)
        embedding = self.norm(self.feed(pooled))
        return Output(self.head(embedding), scores, embedding, extras=extras)

    def project(self, bag: Bag) -> Tensor:
        """x, N x I."""
        return tile_by_tile(self._projected, bag.features)

    def project_lesions(self) -> Tensor:
        """r, K x I; no dropout."""
        rows: Tensor = self.lesions
        for layer in self.projection:
            rows = functional.relu(layer(rows))
        return rows

    def encode(self, tiles: Tensor) -> Tensor:
        """H, N x I, from x."""
        return tile_by_tile(self.tile_norm, self.tile_encoder(tiles))

    def encode_tokens(self, lesions: Tensor) -> Tensor:
        """T, (1 + K) x I, from r."""
        tokens = torch.cat([self.class_token, lesions.to(self.class_token.dtype)])
        encoded: Tensor = self.token_norm(self.token_encoder(tokens))
        return encoded

    def loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        kind = self.config.loss
        name = task.loss_name if kind == "task" else kind
        total = logits_loss(kind, torch.stack([output.logits for output in outputs]), targets, task)
        parts = {name: total}
        if LESIONS not in outputs[0].extras:
            return Loss(total, parts)
        # They are recorded from the first step on; the lesion vectors do not depend on the bag.
        lesions = outputs[0].extras[LESIONS]
        parts["diversity"] = diversity_loss(lesions)
        total = total + self._counts * self.config.diversity * parts["diversity"]
        classes = task.class_index(targets)
        if classes is not None:
            centers = self.centers
            losses = []
            for output, label in zip(outputs, classes, strict=True):
                centers = moved_centers(centers, output.extras[TILE_MEAN], label)
                losses.append(triplet_loss(lesions, centers))
            parts["triplet"] = torch.stack(losses).mean()
            total = total + self._counts * self.config.triplet * parts["triplet"]
        return Loss(total, parts)

    def before_step(self, step: int, steps: int) -> None:
        self._counts = (step >= self.config.losses_from * steps) * 1.0

    @torch.no_grad()
    def after_step(self, bag: Bag, output: Output, target: Tensor) -> None:
        """Move the center of the bag's class; targets that are no class, or outputs of inference, move none."""
        if TILE_MEAN in output.extras and target.shape == (1,) and not target.is_floating_point():
            self.centers.copy_(moved_centers(self.centers, output.extras[TILE_MEAN], target[0]))

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        """`attention`: of the class token. `lesion_k`: of lesion vector k, counted from 1."""
        if kind == "attention":
            return super().draw_tile_map(output, kind)
        if LESION_ATTENTION not in output.extras:
            raise AsmilError("the lesion maps of dgr_mil are computed in eval mode only; call model.eval() first")
        return output.extras[LESION_ATTENTION][self.map_kinds.index(kind) - 1]

    def _projected(self, features: Tensor) -> Tensor:
        autocast = torch.is_autocast_enabled(features.device.type)
        rows = features if autocast else features.to(self.class_token.dtype)
        for layer in self.projection:
            rows = self.tile_dropout(functional.relu_(layer(rows)))
        return rows

    def _lesion_attention(self, tokens: Tensor, encoded: Tensor) -> Tensor:
        """K x N, mean over heads; one lesion vector at a time, so that only its rows are in memory."""
        rows = [self.normalizer(self.attention.score(token, encoded)).mean(dim=0) for token in tokens.split(1)]
        return torch.stack(rows)


class TokenAttention(nn.Module):
    """Attention of a token to the tiles, with the key and value projections on the side of the token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = 1 / math.sqrt(width // heads)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        for layer in (self.query, self.key, self.value):
            nn.init.xavier_uniform_(layer.weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def score(self, token: Tensor, tiles: Tensor) -> Tensor:
        """1 x I, N x I -> scores, H x N."""
        with full_precision(tiles):
            queries = (self.query(token.to(self.query.weight.dtype)) * self.scale).view(self.heads, 1, -1)
            vectors = (queries @ self.key.weight.view(self.heads, -1, tiles.shape[1])).squeeze(1)
            constants = queries.squeeze(1).mul(self.key.bias.view(self.heads, -1)).sum(dim=1, keepdim=True)
        return torch.addmm(constants.to(tiles.dtype), vectors.to(tiles.dtype), tiles.t())

    def pool(self, attention: Tensor, tiles: Tensor) -> Tensor:
        """Attention H x N (a row may not sum to 1 after dropout), tiles N x I -> the projected bag, I."""
        pooled = attention.to(tiles.dtype) @ tiles
        with full_precision(tiles):
            rows = pooled.to(self.value.weight.dtype).unsqueeze(2)
            values = self.value.weight.view(self.heads, -1, tiles.shape[1]) @ rows
            totals = attention.sum(dim=1).to(values.dtype).view(-1, 1, 1)
            joined = values + self.value.bias.view(self.heads, -1, 1) * totals
            projected: Tensor = self.out(joined.flatten())
            return projected


def diversity_loss(lesions: Tensor) -> Tensor:
    """-log det of the cosines between rows (K x I), plus 1e-10 on the diagonal: 0 if all are orthogonal.

    In float64, where the small term keeps the matrix positive definite even if rows are equal or zero.
    """
    with full_precision(lesions):
        rows = functional.normalize(lesions.double(), dim=1)
        gram = rows @ rows.t() + JITTER * torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
        return -_log_det(gram).float()


def _log_det(matrix: Tensor) -> Tensor:
    """The logarithm of the determinant of a positive definite matrix.

    By elimination: a factorization by a library cannot be recorded as a CUDA graph.
    """
    pivots = []
    for _ in range(len(matrix)):
        pivot, column = matrix[0, 0], matrix[1:, :1]
        pivots.append(pivot)
        matrix = matrix[1:, 1:] - column * column.t() / pivot
    return torch.stack(pivots).log().sum()


def triplet_loss(lesions: Tensor, centers: Tensor) -> Tensor:
    """Mean over the lesion vectors (K x I) of how far they are from being nearer to the positive center by 1."""
    with full_precision(lesions):
        cosines = functional.normalize(lesions.to(centers.dtype), dim=1) @ functional.normalize(centers, dim=1).t()
        return functional.relu(cosines[:, 0] - cosines[:, 1] + 1).mean()


def moved_centers(centers: Tensor, tile_mean: Tensor, label: Tensor) -> Tensor:
    """The centers (2 x I) after a bag with this mean (I) and class: class 0 moves the first, others the second."""
    moved = torch.lerp(tile_mean.to(centers.dtype).expand_as(centers), centers, CENTER_MOMENTUM)
    rows = torch.arange(2, device=centers.device).unsqueeze(1)
    return torch.where(rows == label.clamp(max=1), moved, centers)


def _encoder(name: str, official: str) -> dict[str, str]:
    """The official names of an encoder, by ours; its norm after the layer is `<name>_norm`."""
    ours = f"{name}_encoder"
    return {
        f"{ours}.norm": f"{official}.0.norm",
        f"{ours}.attention.to_qkv": f"{official}.0.attn.to_qkv",
        f"{ours}.attention.to_out": f"{official}.0.attn.to_out.0",
        f"{ours}.attention.residual": f"{official}.0.attn.res_conv",
        f"{name}_norm": f"{official}.1",
    }


LAYERS = {
    "projection.0": "triple_optimizer.fc1",
    "projection.1": "triple_optimizer.fc2",
    **_encoder("tile", "encoder_instances"),
    **_encoder("token", "encoder_globalLesion"),
    "attention.query": "crossattention.attn.q_proj",
    "attention.key": "crossattention.attn.k_proj",
    "attention.value": "crossattention.attn.v_proj",
    "attention.out": "crossattention.attn.out_proj",
    "feed": "crossffn.0",
    "norm": "crossffn.1",
    "head": "classifier.0",
}
NEGATIVE, POSITIVE = "normalcenter", "postivecenter"


def _convert(tensors: Tensors, config: Config) -> Converted:
    state = renamed(tensors, LAYERS)
    state["lesions"] = tensors["lesionRrepresentation"].flatten(0, 1)
    state["class_token"] = tensors["token"].flatten(0, 1)
    state["centers"] = torch.cat([tensors[NEGATIVE], tensors[POSITIVE]])
    inner, in_features = state["projection.0.weight"].shape
    landmarks = options_of(config, {"n_landmarks": "landmarks"})
    return converted(
        state,
        in_features,
        inner=inner,
        lesions=len(state["lesions"]),
        heads=len(state["tile_encoder.attention.residual.weight"]),
        loss="bce",
        **{option: int(value) for option, value in landmarks.items()},
    )


register_official(
    "dgr_mil",
    LAYERS.values(),
    _convert,
    names=("lesionRrepresentation", "token", NEGATIVE, POSITIVE),
    unused=("crossattention.attn.compress_k", "crossattention.attn.compress_v"),
)
