"""CLAM's clustering loss: the tiles with most and with least attention are separated by one small head per class.

Class c owns a head g_c with two outputs. With k tiles of the largest and k of the smallest score of its row:

    c = y   l_c = mean of loss(g_c(h), 1) over the top k and loss(g_c(h), 0) over the bottom k
    c != y  l_c = mean of loss(g_c(h), 0) over the top k       only with `subtyping`: the classes exclude each other
    L   = sum_c l_c                                            divided by the number of classes with `subtyping`

The loss is cross-entropy or the smooth top-1 SVM (Berrada, Zisserman, Kumar, Smooth Loss Functions for Deep Top-k
Classification, 2018). The choice of tiles has no gradient. For the scores u of a sample of class t the SVM loss is

    hard    max_j (u_j + alpha [j != t]) - u_t
    smooth  tau log sum_j exp((u_j + alpha [j != t] - u_t) / tau)

The hard form is used where the largest score exceeds the second by at least tau ln(1000), because both forms are equal
up to rounding there. That choice depends on the scores only, not on the class.

A model does not know the label y, so `forward` keeps the logits of every head for its 2k tiles, and the loss selects. A
head that is not selected gets no gradient, and the optimizer does not change it.

The official code fails on bags of fewer than k tiles; here k is then the number of tiles. In a bag of k to 2k tiles, a
tile may be among the top and the bottom at once, as in the official code; `k_rule: half` takes at most half of the
tiles for each (at least one).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.base import ModelConfig, Output
from asmil.models.blocks.exporting import is_exporting
from asmil.models.blocks.layers import floating
from asmil.models.blocks.randomness import holding
from asmil.models.blocks.top_tiles import top_tiles

_DECISIVE = math.log(1000)
_known: ContextVar[list[int] | None] = ContextVar("known labels", default=None)
_stacked: ContextVar[bool] = ContextVar("labels that differ within one call", default=False)


class InstanceLossConfig(ModelConfig):
    """Settings of methods that cluster tiles by their attention."""

    k_sample: int = Field(8, ge=1, description="k, the tiles of most and of least attention that are clustered")
    k_rule: Literal["official", "half"] = Field(
        "official", description="of small bags: k is at most all tiles, or (half) at most half of them"
    )
    subtyping: Literal["auto"] | bool = Field(
        "auto",
        description="the classes exclude each other, so the other classes' top tiles are negatives (auto: C > 2)",
    )
    instance_loss: Literal["ce", "svm"] = Field("ce", description="cross-entropy, or the smooth top-1 SVM")
    bag_weight: float = Field(0.7, ge=0, le=1, description="of the bag's loss; the clustering loss has the rest")


def excludes(config: InstanceLossConfig, n_classes: int) -> bool:
    """Whether subtyping is on."""
    return n_classes > 2 if config.subtyping == "auto" else config.subtyping


def cluster_logits(
    embedded: Tensor, scores: Tensor, heads: Iterable[nn.Module], config: InstanceLossConfig, mask: Tensor | None = None
) -> dict[str, Tensor]:
    """The logits of each class's head for its tiles: `cluster_logits_c`, 2k x 2.

    The k tiles of the largest score come first (the largest first), then the k of the smallest (the smallest first).

    embedded: N x I
    scores: A x N, one row per class or one row for all
    mask: N, true for tiles, of a bag that was filled up; the scores of its padding are minus infinity. As the bag may
        have fewer than 2k tiles, `cluster_counts` (2k) says which of the logits belong to a tile that counts

    An exported model has none: only the loss reads them.
    """
    if is_exporting():
        return {}
    n_tiles = len(embedded)
    k = min(config.k_sample, n_tiles if config.k_rule == "official" else max(1, n_tiles // 2))
    scores = scores.detach()
    # the scores of padding are minus infinity, and stay the lowest
    negated = -scores if mask is None else torch.nan_to_num(-scores, torch.nan, posinf=-torch.inf, neginf=-torch.inf)
    tiles = top_tiles(torch.stack([scores, negated], dim=1).flatten(0, 1), k).view(len(scores), 2 * k)
    chosen = _rows_of(embedded, tiles).unbind()
    logits = {f"cluster_logits_{c}": head(chosen[c if len(chosen) > 1 else 0]) for c, head in enumerate(heads)}
    if mask is None:
        return logits
    unpadded = mask.sum()
    limit = unpadded if config.k_rule == "official" else (unpadded // 2).clamp(min=1)
    return {**logits, "cluster_counts": (torch.arange(k, device=mask.device) < limit).repeat(2)}


def _rows_of(embedded: Tensor, tiles: Tensor) -> Tensor:
    """A x 2k indices -> A x 2k x I."""
    if not _stacked.get():
        return embedded[tiles]
    # the gradient of indexed rows is sorted and summed, in many kernels; that of a product is a product
    is_chosen = tiles.unsqueeze(-1) == torch.arange(len(embedded), device=tiles.device)
    return (is_chosen.flatten(0, 1).to(embedded.dtype) @ embedded).unflatten(0, tiles.shape)


def cluster_samples(output: Output, label: int, subtyping: bool) -> list[tuple[Tensor, Tensor]]:
    """The samples that a bag of class `label` gives: for each class that has some, logits n x 2 and targets n."""
    classes = range(len(output.logits))
    return [_samples(output, c, is_own=c == label) for c in classes if c == label or subtyping]


def _samples(output: Output, c: int, *, is_own: bool) -> tuple[Tensor, Tensor]:
    """The samples of one class, which is that of the bag or another one: logits n x 2 and targets n."""
    logits = output.extras[f"cluster_logits_{c}"]
    targets = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    k = len(logits) // 2
    if not is_own:
        return logits[:k], targets[:k]
    targets[:k] = 1
    return logits, targets


def clustering_loss(outputs: Sequence[Output], classes: Tensor, config: InstanceLossConfig) -> Tensor:
    """The mean clustering loss of the bags of a step; classes: B class indices."""
    if _stacked.get():
        (output,) = outputs
        return _any_class(output, classes, config)
    losses, known = [], _known.get()
    for output, label in zip(outputs, classes.tolist() if known is None else known, strict=True):
        n_classes = len(output.logits)
        subtyping = excludes(config, n_classes)
        counts = output.extras.get("cluster_counts")
        per_class = [_sample_loss(*samples, config, counts) for samples in cluster_samples(output, label, subtyping)]
        losses.append(torch.stack(per_class).sum() / (n_classes if subtyping else 1))
    return torch.stack(losses).mean()


def _any_class(output: Output, label: Tensor, config: InstanceLossConfig) -> Tensor:
    """The clustering loss of a bag whose class cannot be read: the samples of all heads, with weights that may be 0."""
    n_classes = len(output.logits)
    logits = torch.stack([output.extras[f"cluster_logits_{c}"] for c in range(n_classes)])
    size, device = logits.shape[1], logits.device
    is_own = (label == torch.arange(n_classes, device=device)).unsqueeze(1)
    is_top = torch.arange(size, device=device) < size // 2
    each = _sample_losses(logits.flatten(0, 1), (is_own & is_top).long().flatten(), config).view(n_classes, size)
    counts = output.extras.get("cluster_counts")
    shares = 1 / size if counts is None else counts / counts.sum()
    if not excludes(config, n_classes):
        return (each * (is_own * shares)).sum()
    # half of the samples of another class count, so each has twice the share
    return (each * (torch.where(is_own, 1, 2 * is_top) * shares)).sum() / n_classes


def is_decisive(scores: Tensor, tau: float = 1.0) -> Tensor:
    """Whether the hard form is used for each sample: scores n x C -> n booleans."""
    first, second = scores.topk(2, dim=1).values.unbind(dim=1)
    return first - second >= tau * _DECISIVE


def smooth_svm(scores: Tensor, targets: Tensor, alpha: float = 1.0, tau: float = 1.0) -> Tensor:
    """The smooth top-1 SVM loss of each sample: scores n x C, targets n class indices -> n.

    alpha: the margin
    tau: the temperature
    """
    scores = floating(scores)
    own = functional.one_hot(targets, scores.shape[1]).to(scores.dtype)
    excess = scores + alpha * (1 - own) - scores.gather(1, targets.unsqueeze(1))
    smooth = tau * torch.logsumexp(excess / tau, dim=1)
    return torch.where(is_decisive(scores, tau), excess.amax(dim=1), smooth)


def _sample_losses(logits: Tensor, targets: Tensor, config: InstanceLossConfig) -> Tensor:
    """The losses of n samples."""
    if config.instance_loss == "svm":
        return smooth_svm(logits, targets)
    return functional.cross_entropy(logits.float(), targets, reduction="none")


def _sample_loss(logits: Tensor, targets: Tensor, config: InstanceLossConfig, counts: Tensor | None = None) -> Tensor:
    """The mean loss of n samples, or of those that count (2k booleans, the first n)."""
    each = _sample_losses(logits, targets, config)
    if counts is None:
        return each.mean()
    counted = counts[: len(targets)]
    # not a product: a logit of padding may be infinite
    return each.masked_fill(~counted, 0.0).sum() / counted.sum()


def labels_known(labels: Sequence[int]) -> AbstractContextManager[None]:
    """A block in which the bags of the step have these classes.

    Reading them from a GPU waits for it, and is impossible while a CUDA graph is recorded; the code that records one
    knows them.
    """
    return holding(_known, list(labels))


def labels_stacked() -> AbstractContextManager[None]:
    """A block in which losses run under `torch.vmap` over bags of different classes, so that no class can be read."""
    return holding(_stacked, True)
