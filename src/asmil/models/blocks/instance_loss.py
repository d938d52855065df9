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
    mask: N, true for tiles, of a bag that was filled up and has at least 2k tiles; their scores are minus infinity

    An exported model has none: only the loss reads them.
    """
    if is_exporting():
        return {}
    n_tiles = len(embedded)
    k = min(config.k_sample, n_tiles if config.k_rule == "official" else max(1, n_tiles // 2))
    scores = scores.detach()
    rising = scores if mask is None else scores.masked_fill(~mask, torch.inf)
    rows = len(scores)
    tiles = torch.cat(top_tiles(torch.cat([scores, -rising]), k).split(rows), dim=1)
    chosen = embedded[tiles]
    return {f"cluster_logits_{c}": head(chosen[c if len(chosen) > 1 else 0]) for c, head in enumerate(heads)}


def cluster_samples(output: Output, label: int, subtyping: bool) -> list[tuple[Tensor, Tensor]]:
    """The samples that a bag of class `label` gives: for each class that has some, logits n x 2 and targets n."""
    samples = []
    for c in range(len(output.logits)):
        logits = output.extras[f"cluster_logits_{c}"]
        targets = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        k = len(logits) // 2
        if c == label:
            targets[:k] = 1
            samples.append((logits, targets))
        elif subtyping:
            samples.append((logits[:k], targets[:k]))
    return samples


def clustering_loss(outputs: Sequence[Output], classes: Tensor, config: InstanceLossConfig) -> Tensor:
    """The mean clustering loss of the bags of a step; classes: B class indices."""
    losses, known = [], _known.get()
    for output, label in zip(outputs, classes.tolist() if known is None else known, strict=True):
        n_classes = len(output.logits)
        subtyping = excludes(config, n_classes)
        per_class = [_sample_loss(*samples, config) for samples in cluster_samples(output, label, subtyping)]
        losses.append(torch.stack(per_class).sum() / (n_classes if subtyping else 1))
    return torch.stack(losses).mean()


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


def _sample_loss(logits: Tensor, targets: Tensor, config: InstanceLossConfig) -> Tensor:
    if config.instance_loss == "svm":
        return smooth_svm(logits, targets).mean()
    return functional.cross_entropy(logits.float(), targets)


def labels_known(labels: Sequence[int]) -> AbstractContextManager[None]:
    """A block in which the bags of the step have these classes.

    Reading them from a GPU waits for it, and is impossible while a CUDA graph is recorded; the code that records one
    knows them.
    """
    return holding(_known, list(labels))
