"""Select the checkpoint to keep: the highest validation score, and at ties the lowest loss."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from asmil.tasks.base import Task


@dataclass(frozen=True)
class Merit:
    """The score and loss of a checkpoint on validation data.

    score: higher is better
    loss: breaks ties; None if it is undefined, or was not stored by an earlier version
    """

    score: float
    loss: float | None

    def beats(self, other: Merit) -> bool:
        """Whether this later checkpoint replaces the other: a higher score, or the same score with a lower loss."""
        if self.score != other.score:
            return self.score > other.score
        return self.loss is not None and other.loss is not None and self.loss < other.loss


def merit_of(measures: Mapping[str, float | None], task: Task, select: Literal["f1_auc", "loss"]) -> Merit:
    """The merit from the metrics of `Task.measure` on validation data; undefined metrics are None."""
    loss = measures["loss"]
    if select == "loss":
        # the lowest number that JSON can represent: an undefined loss is worse than any other
        return Merit(-sys.float_info.max if loss is None else -loss, loss)
    return Merit(task.selection_score(measures), loss)
