"""Attention of fixed queries, with the key and value projections folded away (exact, not an approximation).

A query that does not depend on the bag can be sent through the key projection once, and a value projection can be
applied to the pooled vector instead of every tile:

    q . (W_k h_i + b_k) = (W_k^T q) . h_i + q . b_k          sum_i a_i (W_v h_i + b_v) = W_v (sum_i a_i h_i) + b_v
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.attention.normalizers import Normalizer, Softmax
from asmil.cohort.bag import Bag
from asmil.models.blocks.embedding import TileEmbedding
from asmil.models.blocks.exporting import is_exporting
from asmil.models.blocks.randomness import Dropout

OFFICIAL_LAYERS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj", "norm": "layer_norm"}
"""The layers of a block as the official code of ACMIL, AEM and ASMIL names them, by our names."""


def folded_state(
    tensors: Mapping[str, Tensor], name: str, blocks: Sequence[str], *, queries: bool = True
) -> dict[str, Tensor]:
    """The state of the `FoldedProjections` with this name, from the official blocks."""
    return {
        f"{name}.{ours}_{leaf}": torch.stack([tensors[f"{block}.{theirs}.{leaf}"] for block in blocks])
        for ours, theirs in OFFICIAL_LAYERS.items()
        for leaf in ("weight", "bias")
        if queries or ours not in ("q", "k")
    }


class FoldedProjections(nn.Module):
    """The q, k, v and output projections and LayerNorm of S attention blocks, stacked.

    S is the number of tokens, or 1 for a set that all tokens share. Weights are S x I x I, (out, in) like Linear's,
    and start like Linear's. A block that pools with the scores of another one has no q and k (`queries=False`).
    """

    q_weight: nn.Parameter
    q_bias: nn.Parameter
    k_weight: nn.Parameter
    k_bias: nn.Parameter
    v_weight: nn.Parameter
    v_bias: nn.Parameter
    out_weight: nn.Parameter
    out_bias: nn.Parameter

    def __init__(self, sets: int, width: int, heads: int, dropout: float, *, queries: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        bound = 1 / math.sqrt(width)
        for name in ("q", "k", "v", "out") if queries else ("v", "out"):
            weight = torch.empty(sets, width, width).uniform_(-bound, bound)
            bias = torch.empty(sets, width).uniform_(-bound, bound)
            self.register_parameter(f"{name}_weight", nn.Parameter(weight))
            self.register_parameter(f"{name}_bias", nn.Parameter(bias))
        self.norm_weight = nn.Parameter(torch.ones(sets, width))
        self.norm_bias = nn.Parameter(torch.zeros(sets, width))
        self.dropout = Dropout(dropout)

    def fold_queries(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (T x I) -> vectors (H T) x I and constants (H T) x 1 with `z = vector . h + constant`."""
        n_tokens, width = tokens.shape
        scale = 1 / math.sqrt(self.head_width)
        queries = _each(self.q_weight, self.q_bias, tokens, scale)
        constants = (queries * self.k_bias).view(n_tokens, self.heads, self.head_width).sum(dim=-1)
        if len(self.k_weight) == 1:
            per_head = queries.view(n_tokens, self.heads, self.head_width).transpose(0, 1)
            vectors = torch.bmm(per_head, self._by_head(self.k_weight)).view(-1, width)
        else:
            per_head = queries.view(n_tokens * self.heads, 1, self.head_width)
            vectors = torch.bmm(per_head, self._by_head(self.k_weight)).view(n_tokens, self.heads, width)
            vectors = vectors.transpose(0, 1).reshape(-1, width)
        return vectors, constants.t().reshape(-1, 1)

    def score(self, tokens: Tensor, embedded: Tensor) -> Tensor:
        """Tokens (T x I) and tiles (N x I) -> scores (H T) x N, contiguous along the tiles for the normalizer."""
        vectors, constants = self.fold_queries(tokens)
        return torch.addmm(constants.to(embedded.dtype), vectors.to(embedded.dtype), embedded.t())

    def project_pooled(self, pooled: Tensor) -> Tensor:
        """Pooled embeddings ((H T) x I) -> block outputs T x I: values, heads joined, output projection, norm."""
        width = pooled.shape[1]
        n_tokens = pooled.shape[0] // self.heads
        per_head, weights = pooled.view(self.heads, n_tokens, width), self._by_head(self.v_weight)
        if len(self.v_weight) == 1:
            values = torch.bmm(per_head, weights.mT).transpose(0, 1).reshape(n_tokens, width)
        else:
            values = torch.bmm(weights, per_head.transpose(0, 1).reshape(-1, width, 1)).view(n_tokens, width)
        out = self.dropout(_each(self.out_weight, self.out_bias, values + self.v_bias))
        normed = functional.layer_norm(out, (width,), eps=1e-6)
        return torch.addcmul(self.norm_bias, normed, self.norm_weight)

    def _by_head(self, weight: Tensor) -> Tensor:
        """S x I x I -> (S H) x d x I, the rows of each set and head."""
        return weight.view(len(weight) * self.heads, self.head_width, -1)


def _each(weights: Tensor, biases: Tensor, rows: Tensor, scale: float = 1.0) -> Tensor:
    """Each row through its own matrix of S, or all through the one there is; the result times `scale`."""
    if len(weights) == 1:
        return torch.addmm(biases, rows, weights.squeeze(0).t(), beta=scale, alpha=scale)
    return torch.baddbmm(biases.unsqueeze(2), weights, rows.unsqueeze(2), beta=scale, alpha=scale).squeeze(2)


def single_layer(embedding: TileEmbedding, normalizer: Normalizer, bag: Bag) -> Tensor | None:
    """The weight with which `embed_and_attend` may replace embedding, softmax and pooling of a training step.

    None where more than one ReLU layer embeds the tiles, the normalizer is not plain softmax, neither the weight nor
    the features need a gradient, the bag is filled up, the model is being exported, or autocast chooses the types.
    """
    features = bag.features
    if bag.mask is not None:
        return None
    plain = type(normalizer) is Softmax and normalizer.temperature == 1.0
    if not plain or not torch.is_grad_enabled() or is_exporting() or torch.is_autocast_enabled(features.device.type):
        return None
    weight = embedding.weight_of_single_layer()
    needed = weight is not None and (weight.requires_grad or features.requires_grad)
    return weight if needed else None


def embed_and_attend(features: Tensor, embedding: Tensor, vectors: Tensor, constants: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and softmax-pooled embeddings of a bag, with a backward pass written out.

        h = ReLU(X W^T)      z = V h^T + c      b = softmax(z) h

    features X: N x D, embedding W: I x D, vectors V: A x I, constants c: A x 1  ->  z: A x N, b: A x I.
    The same numbers as the plain operations, with half as many passes over memory in the backward pass: the gradients
    of both uses of h are one product, [dz; a]^T [V; db], and the sum in the gradient of softmax is db . b.
    """
    return _EmbedAndAttend.apply(features, embedding, vectors, constants)  # type: ignore[no-untyped-call]


class _EmbedAndAttend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, embedding: Tensor, vectors: Tensor, constants: Tensor
    ) -> tuple[Tensor, Tensor]:
        embedded = functional.relu(features @ embedding.t(), inplace=True)
        scores = torch.addmm(constants, vectors, embedded.t())
        n_rows = vectors.shape[0]
        # The upper half is for the gradient of the scores.
        both = scores.new_empty(2 * n_rows, features.shape[0])
        attention = torch.softmax(scores, dim=-1, out=both[n_rows:])
        pooled = attention @ embedded
        ctx.save_for_backward(features, embedding, vectors, embedded, pooled)
        ctx.both = both
        return scores, pooled

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
        features, embedding, vectors, embedded, pooled = ctx.saved_tensors
        both = ctx.both  # kept: the graph may be walked again
        d_scores, d_pooled = upstream
        d_pooled = torch.zeros_like(pooled) if d_pooled is None else d_pooled
        gradient, attention = both.chunk(2)
        torch.mm(d_pooled, embedded.t(), out=gradient)
        gradient.sub_((d_pooled * pooled).sum(dim=-1, keepdim=True)).mul_(attention)
        if d_scores is not None:
            gradient.add_(d_scores)
        d_embedded = both.t() @ torch.cat([vectors, d_pooled])
        d_embedded = torch.ops.aten.threshold_backward.grad_input(d_embedded, embedded, 0, grad_input=d_embedded)
        d_features = d_embedded @ embedding if ctx.needs_input_grad[0] else None
        return d_features, d_embedded.t() @ features, gradient @ embedded, gradient.sum(dim=-1, keepdim=True)
