"""What a task is to the training loop: how many outputs it needs, its loss, and what the outputs mean."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Task(Protocol):
    """Turns the logits of models into losses and predictions; knows nothing of bags or methods."""

    loss_name: str
    """Under which name its loss stands in `metrics.jsonl`."""

    @property
    def n_outputs(self) -> int:
        """How many logits a model has to give."""
        ...

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the bags of a step: logits B x C, targets B."""
        ...

    def class_index(self, targets: Tensor) -> Tensor | None:
        """The classes of the bags, for losses that treat each class on its own; None where targets are no classes."""
        ...
