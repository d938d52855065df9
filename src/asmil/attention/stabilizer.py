"""The base class of stabilizers of attention: a term of the training loss, which may have a state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from asmil.attention.normalizers import Normalizer


@dataclass(frozen=True)
class AttentionStep:
    """What a training step shows to the stabilizers: a bag, and what the model in training made of it.

    bag: has an `id`, by which a stabilizer may recognize it
    scores: A x N, with gradient
    embedding: the bag as a vector, with gradient
    normalizer: the model's own rule from scores to attention
    rows: a mask over the rows of the scores that count, or None for all
    """

    bag: Any
    scores: Tensor
    embedding: Tensor
    normalizer: Normalizer
    rows: Tensor | None = None

    @cached_property
    def log_attention(self) -> Tensor:
        """The logarithm of the model's attention, A x N."""
        return self.normalizer.log(self.scores)


class Stabilizer(nn.Module):
    """A term of the loss that keeps attention from moving, or from concentrating on a few tiles.

    It is saved with a checkpoint (`state_dict`) and moves with `.to()`.
    """

    def prefetch(self, bag: Any) -> None:
        """Called before the model in training sees the bag, while no memory is needed for its backward pass."""

    def penalty(self, step: AttentionStep) -> Tensor:
        """The term for one bag of a training step, its weight included."""
        raise NotImplementedError

    def update(self, model: nn.Module) -> None:
        """Called after every optimizer step."""

    def end_epoch(self, model: nn.Module) -> None:
        """Called after every epoch."""
