"""The settings of MHIM-MIL, and the networks that it masks, as a student sees tiles and as a teacher scores them.

Each reads N x I embedded tiles and gives

    forward     the output (logits, scores, bag feature)
    attend      the scores alone
    teach       the bag feature (rows x I) and the ranking by which tiles are masked (A x N, the easiest highest):
                attention, or class-aware (v2) the largest class probability of what a tile contributes to the feature
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from asmil.attention.normalizers import Normalizer
from asmil.models.base import Output
from asmil.models.blocks.dual_stream import DualStream, two_stream_output
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.layers import Activation, start_linear
from asmil.models.blocks.nystrom import NystromLayer
from asmil.models.blocks.position import PyramidPosition
from asmil.models.blocks.randomness import Dropout
from asmil.models.blocks.scoring import ScoreNetwork

Schedule = Literal["constant", "cosine"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings whose official values depend on version and base; the names are those of `MHIMConfig`."""

    mask_random: float
    mask_low: float
    mask_high: float
    high_share: float
    high_decay: bool
    consistency_weight: float
    momentum: float
    momentum_schedule: Schedule
    activation: Literal["relu", "gelu"]


CAMELYON16_ABMIL = Recipe(0.5, 0.0, 0.01, 0.5, True, 0.1, 0.9999, "constant", "relu")
CAMELYON16_TRANSMIL = Recipe(0.0, 0.8, 0.03, 0.5, True, 0.1, 0.9999, "cosine", "relu")
SECOND_VERSION = Recipe(0.0, 0.0, 0.03, 1.0, False, 0.5, 0.9997, "constant", "gelu")
"""The authors search the high ratio in 0.01, 0.03, 0.05, `merge_ratio` in 0.8, 0.9 and `merge_k` in 1, 5, 10."""


class MHIMConfig(EmbeddingConfig):
    """Architecture and masking of MHIM-MIL; null is the official choice for `version` and `base`."""

    version: Literal[1, 2] = Field(1, description="1: rank by attention; 2: rank class-aware and merge tiles")
    base: Literal["abmil", "transmil", "dsmil"] = Field("abmil", description="the network that is masked")
    activation: Literal["relu", "gelu"] | None = Field(None, description="of the embedding; null: v1 relu, v2 gelu")
    dropout: float = Field(0.25, ge=0, lt=1, description="on the embedded tiles")
    attention: int = Field(128, ge=1, description="abmil: width of the attention network")
    attention_activation: Activation = Field("relu", description="abmil: in the attention network")
    heads: int = Field(8, ge=1, description="transmil: attention heads")
    head_width: int | None = Field(None, ge=1, description="transmil: width of a head; null: they share the tokens'")
    landmarks: int | None = Field(None, ge=1, description="transmil: of the Nystrom attention; null: half the width")
    iterations: int = Field(6, ge=1, description="transmil: of the pseudo-inverse")
    mask_random: float | None = Field(None, ge=0, le=1, description="r, ratio of the tiles masked at random")
    mask_low: float | None = Field(None, ge=0, le=1, description="l, ratio of the lowest tiles, which are masked")
    mask_high: float | None = Field(None, ge=0, le=1, description="h, ratio of the highest tiles, which are masked")
    high_share: float | None = Field(
        None, gt=0, le=1, description="s: not the h highest are masked but a random share s of the h / s highest"
    )
    high_decay: bool | None = Field(None, description="h falls to 0 over the training, along a cosine")
    consistency_weight: float | None = Field(None, ge=0, description="alpha, of the pull towards the teacher's feature")
    teacher_temperature: float = Field(0.1, gt=0, description="t_T")
    student_temperature: float = Field(1.0, gt=0, description="t_S")
    momentum: float | None = Field(None, ge=0, le=1, description="mm, of the teacher")
    momentum_schedule: Schedule | None = Field(None, description="cosine: mm rises to 1 over the training")
    pretrain: bool = Field(True, description="train the network alone first, and start the teacher from it")
    merge_k: int = Field(5, ge=0, description="v2: tokens that the merged tiles become; 0 merges none")
    merge_ratio: float = Field(0.9, ge=0, le=1, description="v2: share of the kept tiles that are not merged")
    merge_momentum: float = Field(0.9999, ge=0, le=1, description="v2: of the merging queries")
    merge_heads: int = Field(8, ge=1, description="v2: heads of the merging attention")
    merge_head_width: int = Field(64, ge=1, description="v2: width of such a head")
    merge_test: bool = Field(False, description="v2: at inference add tokens made of all tiles")

    @property
    def merges(self) -> bool:
        """Whether tiles are merged into tokens."""
        return self.version == 2 and self.merge_k > 0

    def recipe(self) -> Recipe:
        """The official settings for version and base, overridden by the given ones."""
        official = CAMELYON16_TRANSMIL if self.base == "transmil" else CAMELYON16_ABMIL
        if self.version == 2:
            official = SECOND_VERSION
        given = {name: getattr(self, name) for name in asdict(official)}
        return replace(official, **{name: value for name, value in given.items() if value is not None})


DROPOUT = 0.1
QUERY_FAN = 3 * 16 * 16
"""The fan-in that the official code's start of the queries assumes (patches of 16 x 16 pixels)."""


class TokenMerge(nn.Module):
    """Many tiles merged into a few tokens (MHIM v2): n x I -> k x I, by cross-attention of averaged queries.

        u = LN(x), p = LN(g)                                       x: n tiles, g: k queries, one LayerNorm for both
        a = softmax over tiles of (W_q p)_h . (W_k u_i)_h / sqrt(d)      head h of width d, no bias
        token = W_o [sum_i a_i (W_v u_i)_h]_h + b_o                dropout on a and on the token; no residual

    The queries have no gradient: they follow the tokens they make, g <- m g + (1 - m) token. They do not depend on the
    bag, so W_k is applied to them and W_v to the pooled tiles, and no key and no value of a tile is formed: per tile
    2 k H I products instead of 2 H d I (k = 5, H = 8, d = 64: 80 I instead of 1024 I).
    """

    def __init__(self, width: int, tokens: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_width = head_width
        bound = math.sqrt(6 / (QUERY_FAN + width))
        self.query = nn.Parameter(torch.empty(tokens, width).uniform_(-bound, bound), requires_grad=False)
        self.norm = nn.LayerNorm(width)
        self.to_q = nn.Linear(width, heads * head_width, bias=False)
        self.to_kv = nn.Linear(width, 2 * heads * head_width, bias=False)
        self.to_out = nn.Linear(heads * head_width, width)
        self.dropout = Dropout(DROPOUT)

    def forward(self, tiles: Tensor) -> Tensor:
        n_tokens, width = self.query.shape
        normed = self.norm(tiles)
        to_key, to_value = self.to_kv.weight.view(2, self.heads, self.head_width, width)
        queries = self.to_q(self.norm(self.query)).view(n_tokens, self.heads, self.head_width).transpose(0, 1)
        vectors = (queries @ to_key).flatten(0, 1) * self.head_width**-0.5
        attention = self.dropout(torch.softmax(vectors.to(normed.dtype) @ normed.t(), dim=-1))
        pooled = (attention.to(normed.dtype) @ normed).view(self.heads, n_tokens, width)
        values = (pooled @ to_value.transpose(1, 2)).transpose(0, 1).flatten(1)
        return self.dropout(self.to_out(values))

    @torch.no_grad()
    def follow(self, tokens: Tensor, momentum: float) -> None:
        """Move the queries towards the tokens they made."""
        self.query.lerp_(tokens.to(self.query.dtype), 1.0 - momentum)


CLASS_TOKEN = 0
SMALLEST_GRID = 7
"""The side of the grid that the positional block of MHIM lays a small bag out on."""


class Encoder(Protocol):
    """What MHIM needs of a network; `tilewise`: a tile's score does not depend on other tiles."""

    tilewise: ClassVar[bool]

    def __call__(self, embedded: Tensor, normalizer: Normalizer) -> Output: ...

    def attend(self, embedded: Tensor) -> Tensor: ...

    def teach(self, embedded: Tensor, normalizer: Normalizer, class_aware: bool) -> tuple[Tensor, Tensor]: ...


def class_margin(logits: Tensor) -> Tensor:
    """A number that rises with the largest of the class probabilities softmax(logits), N x C -> 1 x N.

    u = sum_j (1 - exp(l_j - l_max)), so that the largest probability is 1 / (C - u). The logits of single tiles are
    close to 0 in a long bag and all probabilities close to 1 / C; u still separates them. A single output is the
    logit of the second of two classes.
    """
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    below = logits - logits.amax(dim=1, keepdim=True)
    return -torch.expm1(below).sum(dim=1).unsqueeze(0)


def largest_probability(margin: Tensor, n_outputs: int) -> Tensor:
    """The largest class probability that corresponds to a `class_margin` of this many outputs."""
    return 1 / (max(2, n_outputs) - margin)


class AttentionEncoder(nn.Module):
    """ABMIL: z_i = w . act(V h_i), without biases; the bag feature is the attention-weighted mean of the tiles."""

    tilewise: ClassVar[bool] = True

    def __init__(self, width: int, n_outputs: int, hidden: int, activation: Activation) -> None:
        super().__init__()
        self.attention = ScoreNetwork(width, hidden, gated=False, bias=False, activation=activation)
        self.head = nn.Linear(width, n_outputs)

    def attend(self, embedded: Tensor) -> Tensor:
        return self.attention(embedded)

    def forward(self, embedded: Tensor, normalizer: Normalizer, kept: Tensor | None = None) -> Output:
        """The output for all tiles, or for those that are kept (N booleans); its scores are those of all."""
        scores = self.attend(embedded)
        return self.readout(normalizer(_only(scores, kept)).to(embedded.dtype) @ embedded, scores)

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        """The output from the bag feature (1 x I)."""
        feature = pooled.flatten()
        return Output(self.head(feature), scores, feature)

    def teach(
        self, embedded: Tensor, normalizer: Normalizer, class_aware: bool, tiles: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Bag feature and ranking; tiles: N, false for padding."""
        scores = self.attend(embedded)
        attention = normalizer(_only(scores, tiles))
        pooled = attention.to(embedded.dtype) @ embedded
        if not class_aware:
            return pooled, scores
        # The official code adds one and the same number for the bias to all classes, which changes nothing.
        return pooled, class_margin(attention.t() * (embedded @ self.head.weight.t().to(embedded.dtype)))


def _only(scores: Tensor, kept: Tensor | None) -> Tensor:
    return scores if kept is None else scores.masked_fill(~kept, -torch.inf)


class TransformerEncoder(nn.Module):
    """TransMIL as MHIM has it: both layers see the class token and the tiles, no tile is repeated in them.

    The positional block alone lays the tiles out on a square, of side 7 at least. Tiles are ranked by the class
    token's row of layer 1's attention matrix, scores and heat maps come from layer 2, whose class token is classified.
    """

    tilewise: ClassVar[bool] = False

    def __init__(self, width: int, n_outputs: int, config: MHIMConfig) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.randn(1, width))
        options = {"head_width": config.head_width, "iterations": config.iterations}
        self.layer1 = NystromLayer(width, config.heads, config.landmarks, **options)
        self.position = PyramidPosition(width, at_least=SMALLEST_GRID)
        self.layer2 = NystromLayer(width, config.heads, config.landmarks, **options)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_outputs)

    def attend(self, embedded: Tensor) -> Tensor:
        return self._scores(self.layer2.norm(self._after_first(embedded)))

    def forward(self, embedded: Tensor, normalizer: Normalizer) -> Output:
        tokens = self._after_first(embedded)
        normed, attention = self.layer2.norm(tokens), self.layer2.attention
        extras = {}
        if self.training:
            update = attention.row(normed, CLASS_TOKEN)
        else:
            update, row = attention.row_and_weights(normed, CLASS_TOKEN)
            extras["class_row"] = row[:, 1:]
        feature = self._feature(tokens, update)
        return Output(self.head(feature), self._scores(normed), feature, extras=extras)

    def teach(self, embedded: Tensor, normalizer: Normalizer, class_aware: bool) -> tuple[Tensor, Tensor]:
        tokens = torch.cat([self.class_token, embedded])
        normed = self.layer1.norm(tokens)
        update, row = self.layer1.attention.with_row_weights(normed, CLASS_TOKEN)
        ranking = row[:, 1:]
        if class_aware:
            ranking = class_margin(self._contributions(normed[1:], ranking) @ self.head.weight.t())
        tokens = self._after_position(tokens + update)
        update = self.layer2.attention.row(self.layer2.norm(tokens), CLASS_TOKEN)
        return self._feature(tokens, update).unsqueeze(0), ranking

    def class_rows(self, embedded: Tensor) -> list[Tensor]:
        """The class token's row of both layers' attention matrices at the tiles, heads x N each."""
        first = torch.cat([self.class_token, embedded])
        second = self._after_first(embedded)
        layers = ((self.layer1, first), (self.layer2, second))
        return [layer.attention.row_weights(layer.norm(tokens), CLASS_TOKEN)[:, 1:] for layer, tokens in layers]

    def _contributions(self, normed: Tensor, row: Tensor) -> Tensor:
        """What every tile alone adds to the class token in layer 1: its weighted values, projected, N x I."""
        attention = self.layer1.attention
        to_value = attention.to_qkv.weight.chunk(3)[2]
        values = (normed @ to_value.t()).view(len(normed), attention.heads, attention.head_width)
        return attention.dropout(attention.to_out((values * row.t().unsqueeze(2)).flatten(1)))

    def _after_first(self, embedded: Tensor) -> Tensor:
        """What enters layer 2: (1 + N) x I."""
        return self._after_position(self.layer1(torch.cat([self.class_token, embedded])))

    def _after_position(self, tokens: Tensor) -> Tensor:
        return torch.cat([tokens[:1], self.position(tokens[1:])])

    def _scores(self, normed: Tensor) -> Tensor:
        return self.layer2.attention.row_scores(normed, CLASS_TOKEN)[:, 1:]

    def _feature(self, tokens: Tensor, update: Tensor) -> Tensor:
        return self.norm(tokens[CLASS_TOKEN] + update)


class DualStreamEncoder(nn.Module):
    """DSMIL: tiles are ranked by their largest class logit, class-aware or not; one bag feature per class."""

    tilewise: ClassVar[bool] = False

    def __init__(self, width: int, n_outputs: int) -> None:
        super().__init__()
        self.streams = DualStream(width, n_outputs, values=True)
        self.head = nn.Linear(n_outputs * width, n_outputs)

    def attend(self, embedded: Tensor) -> Tensor:
        return self.streams.attend(self.streams.as_computed(embedded)).scores

    def forward(self, embedded: Tensor, normalizer: Normalizer) -> Output:
        attended, pooled = self.streams(embedded, normalizer)
        return two_stream_output(attended, pooled, self.head(pooled.flatten()), "mean")

    def teach(self, embedded: Tensor, normalizer: Normalizer, class_aware: bool) -> tuple[Tensor, Tensor]:
        attended, pooled = self.streams(embedded, normalizer)
        return pooled, attended.instance_logits.amax(dim=1).unsqueeze(0)


class Network(nn.Module):
    """Embedding, encoder and, where tiles are merged, their merging: the student of MHIM and its teacher."""

    def __init__(self, in_features: int, n_outputs: int, config: MHIMConfig, merges: bool) -> None:
        super().__init__()
        activation = config.recipe().activation
        self.embedding = TileEmbedding(in_features, config, activation=activation, dropout=config.dropout)
        width = self.embedding.width
        self.encoder: Encoder
        if config.base == "abmil":
            self.encoder = AttentionEncoder(width, n_outputs, config.attention, config.attention_activation)
        elif config.base == "transmil":
            self.encoder = TransformerEncoder(width, n_outputs, config)
        else:
            self.encoder = DualStreamEncoder(width, n_outputs)
        self.merge: TokenMerge | None = None
        if merges:
            self.merge = TokenMerge(width, config.merge_k, config.merge_heads, config.merge_head_width)
        start_linear(self.embedding)
        # The head of the dual stream is a convolution in the official code, and starts like one.
        start_linear(self.encoder.streams if isinstance(self.encoder, DualStreamEncoder) else self.encoder)
        if self.merge is not None:
            start_linear(self.merge)
