"""The networks that MHIM masks: embedded tiles to an output, as a student sees them and as a teacher scores them.

Each reads N x I embedded tiles and gives

    forward     the output (logits, scores, bag feature)
    attend      the scores alone
    teach       the bag feature (rows x I) and the ranking by which tiles are masked (A x N, the easiest highest):
                attention, or class-aware (v2) the largest class probability of what a tile brings into the feature
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from asmil.attention.normalizers import Normalizer
from asmil.models.base import Output
from asmil.models.blocks.activations import Activation
from asmil.models.blocks.dual_stream import DualStream, two_stream_output
from asmil.models.blocks.embedding import TileEmbedding
from asmil.models.blocks.initialization import start_xavier
from asmil.models.blocks.mhim_config import MHIMConfig
from asmil.models.blocks.nystrom import NystromAttention, NystromLayer
from asmil.models.blocks.position import PyramidPosition
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.blocks.token_merge import TokenMerge

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
        scores: Tensor = self.attention(embedded)
        return scores

    def forward(self, embedded: Tensor, normalizer: Normalizer) -> Output:
        scores = self.attend(embedded)
        return self.readout(normalizer(scores).to(embedded.dtype) @ embedded, scores)

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        """The output from the bag feature (1 x I)."""
        feature = pooled.flatten()
        return Output(self.head(feature), scores, feature)

    def teach(self, embedded: Tensor, normalizer: Normalizer, class_aware: bool) -> tuple[Tensor, Tensor]:
        scores = self.attend(embedded)
        attention = normalizer(scores)
        pooled = attention.to(embedded.dtype) @ embedded
        if not class_aware:
            return pooled, scores
        # The official code adds one and the same number for the bias to all classes, which changes nothing.
        return pooled, class_margin(attention.t() * (embedded @ self.head.weight.t().to(embedded.dtype)))


class TransformerEncoder(nn.Module):
    """TransMIL as MHIM has it: both layers see the class token and the tiles, no tile is repeated in them.

    The positional block alone lays the tiles out on a square, of side 7 at least. Tiles are ranked by the class
    token's row of layer 1's attention matrix, scores and heat maps come from layer 2, whose class token is classified.
    """

    tilewise: ClassVar[bool] = False

    def __init__(
        self, width: int, n_outputs: int, heads: int, head_width: int | None, landmarks: int | None, iterations: int
    ) -> None:
        super().__init__()

        def layer() -> NystromLayer:
            return NystromLayer(
                width,
                NystromAttention(
                    width,
                    heads,
                    width // 2 if landmarks is None else landmarks,
                    head_width=head_width,
                    iterations=iterations,
                ),
            )

        self.class_token = nn.Parameter(torch.randn(1, width))
        self.layer1 = layer()
        self.position = PyramidPosition(width, at_least=SMALLEST_GRID)
        self.layer2 = layer()
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_outputs)

    def attend(self, embedded: Tensor) -> Tensor:
        return self._scores(self.layer2.norm(self._after_first(embedded)))

    def forward(self, embedded: Tensor, normalizer: Normalizer) -> Output:
        del normalizer
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
        del normalizer
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
        contributions: Tensor = attention.dropout(attention.to_out((values * row.t().unsqueeze(2)).flatten(1)))
        return contributions

    def _after_first(self, embedded: Tensor) -> Tensor:
        """What enters layer 2: (1 + N) x I."""
        return self._after_position(self.layer1(torch.cat([self.class_token, embedded])))

    def _after_position(self, tokens: Tensor) -> Tensor:
        return torch.cat([tokens[:1], self.position(tokens[1:])])

    def _scores(self, normed: Tensor) -> Tensor:
        return self.layer2.attention.row_scores(normed, CLASS_TOKEN)[:, 1:]

    def _feature(self, tokens: Tensor, update: Tensor) -> Tensor:
        feature: Tensor = self.norm(tokens[CLASS_TOKEN] + update)
        return feature


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
        del class_aware
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
            self.encoder = TransformerEncoder(
                width, n_outputs, config.heads, config.head_width, config.landmarks, config.iterations
            )
        else:
            self.encoder = DualStreamEncoder(width, n_outputs)
        self.merge: TokenMerge | None = None
        if merges:
            self.merge = TokenMerge(width, config.merge_k, config.merge_heads, config.merge_head_width)
        start_xavier(self.embedding)
        # The head of the dual stream is a convolution in the official code, and starts like one.
        start_xavier(self.encoder.streams if isinstance(self.encoder, DualStreamEncoder) else self.encoder)
        if self.merge is not None:
            start_xavier(self.merge)

    def with_merged(self, embedded: Tensor) -> Tensor:
        """The tiles, and behind them the tokens made of all of them."""
        assert self.merge is not None
        return torch.cat([embedded, self.merge(embedded)])
