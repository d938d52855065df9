"""Explanations of methods that combine tiles only in a normalized sum; they need the memory of one chunk of tiles.

    b = sum_i w_i h_i / sum_i w_i        A x I, w_i = exp(g_i), h_i = embed(x_i)

With the sums S = sum_i w_i h_i and Z = sum_i w_i, the effect of a tile does not need the other tiles: without tile i,
b is (S - w_i h_i) / (Z - w_i), and its gradient needs only S and Z of the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from asmil.models.attention_pool import AttentionPoolModel
from asmil.models.base import MILModel

Evidence = Callable[[Tensor], Tensor]
"""From B x C logits to the B values of the evidence."""

CHUNK_VALUES = 1 << 23
"""Largest number of values in a chunk of pooled vectors, n x A x I."""
GRADIENT_CHUNK = 8192


def pools_tiles(model: MILModel) -> TypeGuard[AttentionPoolModel]:
    """Whether a model combines its tiles only in a normalized sum."""
    return isinstance(model, AttentionPoolModel) and model.can_stream


@dataclass(frozen=True)
class PooledSums:
    """The sums over all tiles, divided by exp(largest), A x 1: of weights, A x 1, and of weighted tiles, A x I."""

    largest: Tensor
    weights: Tensor
    weighted: Tensor


def pooled_sums(model: AttentionPoolModel, features: Tensor) -> PooledSums:
    """The sums over the tiles N x D, in float64."""
    largest: Tensor | None = None
    for _, log_weights, _ in _chunks(model, features):
        here = log_weights.amax(dim=-1, keepdim=True)
        largest = here if largest is None else torch.maximum(largest, here)
    assert largest is not None, "a bag has at least one tile"
    total, weighted = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for _, log_weights, embedded in _chunks(model, features):
        weights = (log_weights - largest).exp()
        total = total.to(weights) + weights.sum(dim=-1, keepdim=True)
        weighted = weighted.to(weights) + weights @ embedded
    return PooledSums(largest, total, weighted)


@torch.no_grad()
def tile_logits(model: AttentionPoolModel, features: Tensor) -> Tensor:
    """N x C, float64: the logits of bags of this tile alone."""
    chunks = _chunks(model, features)
    return torch.cat([_read(model, tiles[:, None].expand(-1, len(weights), -1)) for _, weights, tiles in chunks])


@torch.no_grad()
def evidence_lost(model: AttentionPoolModel, features: Tensor, evidence: Evidence) -> Tensor:
    """N: the evidence of the bag minus that without this tile; the bag has at least two tiles.

    Computed in float64: a tile of a large bag changes the evidence by less than the precision of float32.
    """
    sums = pooled_sums(model, features)
    reader = copy.deepcopy(model).double()
    whole = evidence(_read(reader, (sums.weighted / sums.weights)[None]))
    lost = []
    for _, log_weights, embedded in _chunks(model, features):
        weights = (log_weights - sums.largest).exp()  # A x n
        for start in range(0, len(embedded), step := _step(sums.weighted)):
            w, h = weights[:, start : start + step], embedded[start : start + step]
            rest = sums.weighted - w.T[:, :, None] * h[:, None]  # n x A x I
            # a tile with nearly all the weight leaves a tiny rest, whose quotient is kept finite
            left = (sums.weights - w).T.clamp_min(torch.finfo(torch.float64).tiny)
            lost.append(whole - evidence(_read(reader, rest / left[:, :, None])))
    return torch.cat(lost)


@torch.no_grad()
def logits_after_removal(model: AttentionPoolModel, features: Tensor, order: Tensor, counts: Sequence[int]) -> Tensor:
    """R x C, float64: the logits after the first `counts` tiles of an order are removed; one pass for all counts.

    counts: R, increasing, each below the number of tiles
    """
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    # tiles that are removed between two counts form a part; the rest is the sum of the later parts
    part = torch.bucketize(rank, torch.tensor(counts), right=True).to(features.device)
    largest = pooled_sums(model, features).largest
    shape = (len(counts) + 1, *largest.shape)
    weights = torch.zeros(shape, dtype=torch.float64, device=features.device)
    weighted: Tensor | None = None
    for start, log_weights, embedded in _chunks(model, features):
        w = (log_weights - largest).exp()  # A x n
        parts = part[start : start + len(embedded)]
        of_part = torch.nn.functional.one_hot(parts, len(counts) + 1).to(w)  # n x R + 1
        weights += torch.einsum("an,nr->ra", w, of_part)[:, :, None]
        here = torch.einsum("an,nr,ni->rai", w, of_part, embedded)
        weighted = here if weighted is None else weighted + here
    assert weighted is not None, "a bag has at least one tile"
    left = [sums.flip(0).cumsum(dim=0).flip(0)[1:] for sums in (weights, weighted)]
    return _read(copy.deepcopy(model).double(), left[1] / left[0].clamp_min(torch.finfo(torch.float64).tiny))


def gradient(model: AttentionPoolModel, features: Tensor, evidence: Evidence) -> Tensor:
    """N x D: the derivative of the evidence by the features; chunk by chunk, with the other chunks as constants."""
    with torch.no_grad():
        sums = pooled_sums(model, features)
    derivatives: list[Tensor] = []
    for start in range(0, len(features), GRADIENT_CHUNK):
        part = features[start : start + GRADIENT_CHUNK].detach().clone().requires_grad_()
        with torch.enable_grad():
            embedded = model.embed(part)
            weights = (model.normalizer.log_weights(model.score(embedded)).double() - sums.largest).exp()
            weighted = weights @ embedded.double()
            # the value is that of all tiles, the gradient that of these
            total = sums.weights + weights.sum(dim=-1, keepdim=True) - weights.sum(dim=-1, keepdim=True).detach()
            pooled = (sums.weighted + weighted - weighted.detach()) / total
            value = evidence(_logits(model, pooled.to(embedded.dtype))[None]).sum()
        derivatives += torch.autograd.grad(value, part)
    return torch.cat(derivatives)


def _chunks(model: AttentionPoolModel, features: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Start, log-weights (A x n) and embedded tiles (n x I) of every chunk, in float64."""
    for start in range(0, len(features), GRADIENT_CHUNK):
        embedded = model.embed(features[start : start + GRADIENT_CHUNK])
        log_weights = model.normalizer.log_weights(model.score(embedded))
        yield start, log_weights.double(), embedded.double()


def _logits(model: AttentionPoolModel, pooled: Tensor) -> Tensor:
    """C logits of one pooled bag; `readout` only passes the scores on, so those of one tile are enough."""
    return model.readout(pooled, pooled.new_zeros(pooled.shape[0], 1)).logits


def _read(model: AttentionPoolModel, pooled: Tensor) -> Tensor:
    """n x A x I pooled bags -> n x C logits, float64."""
    dtype = next(model.parameters()).dtype
    parts = pooled.split(_step(pooled[0]))
    return torch.cat([torch.vmap(lambda bag: _logits(model, bag))(part.to(dtype)) for part in parts]).double()


def _step(pooled: Tensor) -> int:
    """How many pooled bags A x I are held at once."""
    return max(1, CHUNK_VALUES // pooled.numel())
