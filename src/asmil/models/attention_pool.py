"""Methods whose tiles meet only in a normalized sum: embed, score, pool, read out; whole or in chunks.

    h = embed(x)                N x I
    z = score(h)                A x N
    b = attention(z) h          A x I          attention = softmax of log-weights g(z)
    output = readout(b)

The streamed form visits the tiles in chunks and keeps running sums (`RunningPool`): the same result in the
memory of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, Output, masked_scores
from asmil.models.blocks.embedding import TileEmbedding
from asmil.models.blocks.folded import FoldedProjections, embed_and_attend, single_layer


class AttentionPoolModel(MILModel):
    """A method given by `embed`, `score` and `readout`; most have `embedding` and `attention` for the first two."""

    smooths: tuple[str, ...] = ("early", "late")
    embedding: TileEmbedding
    attention: nn.Module

    def embed(self, features: Tensor) -> Tensor:
        """N x D -> N x I, tile by tile."""
        return self.embedding(features)

    def score(self, embedded: Tensor) -> Tensor:
        """N x I -> A x N, tile by tile."""
        return self.attention(embedded)

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        """A x I -> the output; `scores` are passed through."""
        raise AssertionError("a subclass defines readout")

    @property
    def padding_from(self) -> int | None:
        own, base = type(self), AttentionPoolModel
        masks = own.attend is base.attend and own.forward is base.forward and own.loss is base.loss
        return self.padding_for(1) if masks else None

    def padding_for(self, fewest: int) -> int | None:
        """`padding_from` of a method that masks the scores of padding: `fewest`, unless its embedding mixes tiles."""
        return None if self.smoothed or self.embedding.mil_dropout.top else fewest

    def embed_bag(self, bag: Bag) -> Tensor:
        """The embedded tiles of a bag, N x I, smoothed if they are to be."""
        return self.smooth_tiles(self.embed(bag.features), bag)

    def score_bag(self, embedded: Tensor, bag: Bag) -> Tensor:
        """The scores of a bag's embedded tiles, A x N, smoothed if they are to be."""
        return masked_scores(self.smooth_scores(self.score(embedded), bag), bag)

    def pool_bag(self, embedded: Tensor, bag: Bag) -> tuple[Tensor, Tensor]:
        """The scores of a bag's embedded tiles, A x N, and the tiles' means with the attention as weights, A x I."""
        scores = self.score_bag(embedded, bag)
        return scores, self.normalizer(scores).to(embedded.dtype) @ embedded

    def attend(self, bag: Bag) -> Tensor:
        return self.score_bag(self.embed_bag(bag), bag)

    def forward(self, bag: Bag) -> Output:
        scores, pooled = self.pool_bag(self.embed_bag(bag), bag)
        return self.readout(pooled, scores)

    @property
    def can_stream(self) -> bool:
        return self.normalizer.streams and not self.smoothed

    @torch.no_grad()
    def stream(self, chunks: Iterable[Tensor]) -> Output:
        """The scores (A x N) are gathered on the CPU; all else needs the memory of one chunk."""
        pool = RunningPool()
        kept: list[Tensor] = []
        for features in chunks:
            embedded = self.embed(features)
            scores = self.score(embedded)
            kept.append(scores.cpu())
            pool.add(self.normalizer.log_weights(scores), embedded)
        return self.readout(pool.mean(), torch.cat(kept, dim=-1))


class FoldedPoolModel(AttentionPoolModel):
    """A method whose tiles are scored by queries that do not depend on the bag, see `blocks/folded.py`."""

    @property
    def queries(self) -> tuple[FoldedProjections, Tensor]:
        """The block that scores and pools the tiles, and its queries, T x I."""
        raise AssertionError("a subclass defines queries")

    @property
    def padding_from(self) -> int | None:
        return self.padding_for(1)

    def score(self, embedded: Tensor) -> Tensor:
        block, queries = self.queries
        return block.score(queries, embedded)

    def forward(self, bag: Bag) -> Output:
        weight = None if self.smoothed else single_layer(self.embedding, self.normalizer, bag)
        if weight is None:
            return super().forward(bag)
        block, queries = self.queries
        scores, pooled = embed_and_attend(bag.features.to(weight.dtype), weight, *block.fold_queries(queries))
        return self.readout(pooled, scores)


class RunningPool:
    """softmax(g) h for A rows of log-weights g, over all chunks added so far.

    Kept for every row: the largest g, the sum of exp(g - largest) and the sum of exp(g - largest) h. The largest only
    scales the two sums alike, so that nothing overflows.
    """

    def __init__(self) -> None:
        self._sums: tuple[Tensor, Tensor, Tensor] | None = None
        self._dtype = torch.float32

    def add(self, log_weights: Tensor, embedded: Tensor) -> None:
        """A x n log-weights (-inf leaves a tile out) and n x I embedded tiles."""
        largest = log_weights.amax(dim=-1, keepdim=True)
        if self._sums is not None:
            largest = torch.maximum(largest, self._sums[0])
        weights = (log_weights - largest).exp()
        total = weights.sum(dim=-1, keepdim=True)
        weighted = weights.to(embedded.dtype) @ embedded
        if self._sums is not None:
            before, total_before, weighted_before = self._sums
            rescale = (before - largest).exp()
            total = total + total_before * rescale
            weighted = weighted + weighted_before * rescale
        self._sums, self._dtype = (largest, total, weighted), embedded.dtype

    def mean(self) -> Tensor:
        """A x I, in the type of the embedded tiles."""
        assert self._sums is not None, "a bag has at least one tile"
        _, total, weighted = self._sums
        return (weighted / total).to(self._dtype)
