"""What a task is to training and prediction: its outputs, its loss, and what the outputs mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

TaskKind = Literal["classification", "survival", "regression", "multilabel"]

Columns = dict[str, list[Any] | npt.NDArray[np.generic]]


class Task(Protocol):
    """Turns the logits of models into losses and predictions; knows nothing of bags or methods.

    Targets are, for B bags: class indices (B), values (B), labels of 0 and 1 (B x K), or times and events (B x 2).
    """

    kind: TaskKind
    loss_name: str
    """The name of its loss in `metrics.jsonl`."""
    joint: bool
    """Whether the loss compares the bags of a step with each other, so that it must see them all at once."""

    @property
    def n_outputs(self) -> int:
        """How many logits a model has to give."""
        ...

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the bags of a step: logits B x C."""
        ...

    def class_index(self, targets: Tensor) -> Tensor | None:
        """The classes of the bags, for losses that treat each class on its own; None where targets are no classes."""
        ...

    def measure(self, targets: npt.NDArray[Any], logits: Tensor) -> dict[str, float]:
        """What is watched on validation bags; `loss` is among it, and what is undefined is nan."""
        ...

    def selection_score(self, measures: Mapping[str, float | None]) -> float:
        """What the kept epoch has most of, from what `measure` found; undefined measures count as 0."""
        ...

    def probabilities(self, logits: Tensor) -> Tensor | None:
        """B x K probabilities of the classes or labels; None for tasks without."""
        ...

    def columns(self, logits: Tensor) -> Columns:
        """The predictions as columns of a table, one value per bag."""
        ...

    @property
    def explained_names(self) -> tuple[str, ...]:
        """What of a prediction can be explained: the classes or labels, or its one number."""
        ...

    def explained_first(self, logits: Tensor) -> int:
        """Which of `explained_names` is explained unless another is asked for: the predicted class; logits C."""
        ...

    def evidence(self, logits: Tensor, name: int) -> Tensor:
        """B numbers that explanations take apart, with gradient: the log-odds of a class, a risk or a value."""
        ...

    def shown(self, logits: Tensor, name: int) -> Tensor:
        """The same as readers know it: the probability of a class, a risk or a value; B numbers."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """All that makes the task again, as plain values."""
        ...
