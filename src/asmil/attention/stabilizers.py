"""Stabilizers of attention besides the anchor, each a term of the loss.

    temporal   KL(a || average of the slide's own past attentions), the average moving by 1 - rho at every visit
    features   KL(softmax(f' / t') || softmax(f / t)) over the channels of the bag feature f; f' is that of a moving
               copy of the model, as in MHIM. Different attentions can have the same bag feature (see `asmil affine`)
    entropy    sum_i a_i log a_i, as in AEM: rewards attention for spreading
    entropy_floor   max(0, floor - H(a) / ln N): pushes only attention whose relative entropy lies below the floor
    l2         mean_i z_i^2: keeps scores small, and attention with them

Terms of the attention are averaged over the rows of the scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from asmil.attention import divergences
from asmil.attention.ema import EmaCopy, UpdateSchedule
from asmil.attention.normalizers import Normalizer
from asmil.attention.stabilizer import AttentionStep, Stabilizer
from asmil.errors import AsmilError


class TemporalEnsemble(Stabilizer):
    """Keeps the attention of a slide close to the average of its attentions at earlier visits.

    The first visit has no earlier attention to compare with, so its term is 0. The averages take 4 A N bytes per slide,
    and are part of every checkpoint.
    """

    def __init__(self, normalizer: Normalizer, weight: float = 1.0, rate: float = 0.9) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise AsmilError(f"temporal rate = {rate}: it must be at least 0 and below 1")
        if normalizer.sparse:
            raise AsmilError(
                f"temporal ensembling cannot stabilize {type(normalizer).__name__} attention: a tile that had the "
                "weight 0 makes the divergence infinite; give the online model softmax, nsf or mixture"
            )
        self.weight = weight
        self.rate = rate
        self.log_averages: dict[str, Tensor] = {}

    def penalty(self, step: AttentionStep) -> Tensor:
        slide, log_attention = str(step.bag.id), step.log_attention
        now = log_attention.detach()
        before = self.log_averages.get(slide)
        if before is None:
            self.log_averages[slide] = now.clone()
            return now.new_zeros(())
        before = before.to(now.device)
        if before.shape != now.shape:
            raise AsmilError(
                f"{slide}: its attention had the shape {tuple(before.shape)} before and has {tuple(now.shape)} now; "
                "temporal ensembling needs the same tiles at every visit and a different id for every bag"
            )
        per_row = divergences.kl(log_attention, before)
        # the logarithm of rho * before + (1 - rho) * now, which does not underflow
        mixed = torch.logaddexp(before + math.log(self.rate), now + math.log1p(-self.rate)) if self.rate else now
        self.log_averages[slide] = mixed.clone()
        return self.weight * _mean(per_row, step.rows)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The averages, by slide."""
        return dict(self.log_averages)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Take over saved averages."""
        self.log_averages = dict(state_dict)


class FeatureMatching(EmaCopy):
    """Keeps the bag feature close to that of a moving copy of the model, as a distribution over its channels."""

    def __init__(
        self,
        model: nn.Module,
        weight: float = 1.0,
        momentum: float = 0.999,
        teacher_temperature: float = 0.1,
        student_temperature: float = 1.0,
        update: UpdateSchedule = "step",
    ) -> None:
        super().__init__(model, _embedding, momentum, update, "feature matching")
        self.weight = weight
        self.temperatures = (teacher_temperature, student_temperature)

    def penalty(self, step: AttentionStep) -> Tensor:
        teacher, student = self.read(step.bag).float(), step.embedding.float()
        log_target, log_student = (
            torch.log_softmax(feature.flatten() / temperature, dim=-1)
            for feature, temperature in zip((teacher, student), self.temperatures, strict=True)
        )
        return self.weight * divergences.kl(log_target, log_student)


class EntropyReward(Stabilizer):
    """Rewards attention for its entropy."""

    def __init__(self, weight: float = 0.1) -> None:
        super().__init__()
        self.weight = weight

    def penalty(self, step: AttentionStep) -> Tensor:
        return self.weight * _mean(divergences.negative_entropy(step.log_attention), step.rows)


class EntropyFloor(Stabilizer):
    """Keeps attention from gathering on a few tiles: no effect while its relative entropy is above the floor."""

    def __init__(self, weight: float = 1.0, floor: float = 0.5) -> None:
        super().__init__()
        self.weight = weight
        self.floor = floor

    def penalty(self, step: AttentionStep) -> Tensor:
        log_attention = step.log_attention
        n_tiles = (log_attention != -torch.inf).sum(dim=-1).clamp_min(2)
        relative = -divergences.negative_entropy(log_attention) / n_tiles.log()
        return self.weight * _mean((self.floor - relative).clamp_min(0), step.rows)


class ScorePenalty(Stabilizer):
    """The mean square of the scores."""

    def __init__(self, weight: float = 1e-3) -> None:
        super().__init__()
        self.weight = weight

    def penalty(self, step: AttentionStep) -> Tensor:
        scores = step.scores.float()
        masked = scores == -torch.inf
        squares = scores.masked_fill(masked, 0).square().sum(dim=-1) / (~masked).sum(dim=-1).clamp_min(1)
        return self.weight * _mean(squares, step.rows)


def _mean(per_row: Tensor, rows: Tensor | None) -> Tensor:
    return per_row.mean() if rows is None else per_row[rows].mean()


def _embedding(model: Any, bag: Any) -> Tensor:
    return model(bag).embedding
