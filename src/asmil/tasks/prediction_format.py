"""The prediction format of each kind of task."""

from __future__ import annotations

from collections.abc import Callable

from asmil.tasks.base import PredictionFormat, TaskKind
from asmil.tasks.classification import class_format
from asmil.tasks.multilabel import label_format
from asmil.tasks.regression import value_format
from asmil.tasks.survival import risk_format

FORMATS: dict[TaskKind, Callable[[tuple[str, ...]], PredictionFormat]] = {
    "classification": class_format,
    "multilabel": label_format,
    "regression": value_format,
    "survival": risk_format,
}


def prediction_format(kind: TaskKind, names: tuple[str, ...] = ()) -> PredictionFormat:
    """The format of a task with the given classes or labels."""
    return FORMATS[kind](names)
