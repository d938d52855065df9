"""The interface of a task: its outputs, its loss, and the meaning of the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

TaskKind = Literal["classification", "survival", "regression", "multilabel"]

Columns = dict[str, list[Any] | npt.NDArray[np.generic]]


class Task(Protocol):
    """Turns the logits of models into losses and predictions; independent of bags and methods.

    Targets for B bags are class indices (B), values (B), labels of 0 and 1 (B x K), or times and events (B x 2).
    """

    kind: TaskKind
    loss_name: str
    """Name of the loss in `metrics.jsonl`."""
    joint: bool
    """Whether the loss compares the bags of a step with each other, so that it needs all of them at once."""

    @property
    def n_outputs(self) -> int:
        """Number of logits that a model must return."""
        ...

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the bags of a step: logits B x C."""
        ...

    def class_index(self, targets: Tensor) -> Tensor | None:
        """The classes of the bags, for losses that treat each class separately; None if targets are not classes."""
        ...

    def measure(self, targets: npt.NDArray[Any], logits: Tensor) -> dict[str, float]:
        """Metrics of validation bags, including `loss`; undefined metrics are nan."""
        ...

    def selection_score(self, measures: Mapping[str, float | None]) -> float:
        """The score that selects the epoch (highest wins), from the metrics of `measure`; undefined ones count as 0."""
        ...

    def probabilities(self, logits: Tensor) -> Tensor | None:
        """B x K probabilities of the classes or labels; None for tasks without probabilities."""
        ...

    def columns(self, logits: Tensor) -> Columns:
        """The predictions as columns of a table, one value per bag."""
        ...

    @property
    def explained_names(self) -> tuple[str, ...]:
        """The outputs that can be explained: the classes or labels, or the single predicted number."""
        ...

    def explained_first(self, logits: Tensor) -> int:
        """Index into `explained_names` of the default: the predicted class; logits C."""
        ...

    def evidence(self, logits: Tensor, name: int) -> Tensor:
        """B numbers that explanations attribute to tiles, with gradient: log-odds of a class, a risk or a value."""
        ...

    def shown(self, logits: Tensor, name: int) -> Tensor:
        """The same output in the form shown to users: probability of a class, a risk or a value; B numbers."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain values from which the task can be rebuilt."""
        ...
