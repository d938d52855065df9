"""Methods whose tiles meet only in a normalized sum: embed, score, pool, read out; whole or in chunks.

    h = embed(x)                N x I
    z = score(h)                A x N
    b = attention(z) h          A x I          attention = softmax of log-weights g(z)
    output = readout(b)

The streamed form visits the tiles in chunks and keeps, for every row, the running maximum of g(z), the sum of
exp(g(z) - maximum) and the weighted sum of h: memory for one chunk, the same result.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, Output


class AttentionPoolModel(MILModel):
    """A method given by `embed`, `score` and `readout`."""

    def embed(self, features: Tensor) -> Tensor:
        """N x D -> N x I, tile by tile."""
        raise AssertionError("a subclass defines embed")

    def score(self, embedded: Tensor) -> Tensor:
        """N x I -> A x N, tile by tile."""
        raise AssertionError("a subclass defines score")

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        """A x I -> the output; `scores` are passed through."""
        raise AssertionError("a subclass defines readout")

    def attend(self, bag: Bag) -> Tensor:
        return self.score(self.embed(bag.features))

    def forward(self, bag: Bag) -> Output:
        embedded = self.embed(bag.features)
        scores = self.score(embedded)
        return self.readout(self.normalizer(scores).to(embedded.dtype) @ embedded, scores)

    @torch.no_grad()
    def stream(self, chunks: Iterable[Tensor]) -> Output:
        """The output for a bag that arrives as chunks of features (n x D each), in the order of its tiles.

        The scores (A x N) are gathered on the CPU; all else needs the memory of one chunk.
        """
        maximum = total = weighted = None
        kept: list[Tensor] = []
        for features in chunks:
            embedded = self.embed(features)
            scores = self.score(embedded)
            kept.append(scores.cpu())
            log_weights = self.normalizer.log_weights(scores)
            highest = log_weights.amax(dim=-1, keepdim=True)
            if maximum is None or total is None or weighted is None:
                maximum = highest
                total = torch.zeros_like(highest)
                weighted = embedded.new_zeros(scores.shape[0], embedded.shape[1])
            new_maximum = torch.maximum(maximum, highest)
            rescale = (maximum - new_maximum).exp()
            weights = (log_weights - new_maximum).exp()
            total = total * rescale + weights.sum(dim=-1, keepdim=True)
            weighted = weighted * rescale + weights.to(embedded.dtype) @ embedded
            maximum = new_maximum
        assert total is not None, "a bag has at least one tile"
        assert weighted is not None
        return self.readout(weighted / total, torch.cat(kept, dim=-1))
