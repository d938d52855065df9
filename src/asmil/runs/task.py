"""Build a task from settings and outcomes; it is fitted on the training set only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, FiniteFloat, model_validator

from asmil.cohort.outcomes import Outcomes
from asmil.errors import AsmilError
from asmil.runs.config import RunConfig
from asmil.settings.documents import read_json, validated
from asmil.tasks.base import Task
from asmil.tasks.classification import Classification, balanced_weights
from asmil.tasks.multilabel import MultiLabel
from asmil.tasks.regression import Regression
from asmil.tasks.survival import Survival
from asmil.tasks.survival_bins import fit_bins


def build_task(config: RunConfig, outcomes: Outcomes, train: Sequence[int]) -> Task:
    """The task of a training on the units `train`: class weights, time bins and scales are fitted only on them.

    With `task.last_edge: all` the last time bin ends at the last time of all units, as in the official code.
    """
    if len(train) == 0:
        raise AsmilError("there are no training slides; check the splits")
    targets = outcomes.targets[list(train)]
    if config.training.class_weights == "balanced" and outcomes.kind != "classification":
        raise AsmilError(f"training.class_weights = balanced: a {outcomes.kind} task has no classes; leave it out")
    if outcomes.kind == "classification":
        balanced = config.training.class_weights == "balanced"
        weights = balanced_weights(targets.tolist(), len(outcomes.names)) if balanced else None
        return Classification(outcomes.names, weights)
    if outcomes.kind == "multilabel":
        return MultiLabel(outcomes.names)
    if outcomes.kind == "regression":
        return Regression.of_training(targets, cast(Any, config.task.chosen_loss))
    return _survival(config, targets, outcomes.targets)


def _survival(config: RunConfig, train: npt.NDArray[np.float64], everyone: npt.NDArray[np.float64]) -> Survival:
    settings = config.task
    loss = cast(Any, settings.chosen_loss)
    if loss == "cox":
        return Survival(None, loss=loss)
    edges = fit_bins(
        train[:, 0],
        train[:, 1],
        settings.bins,
        settings.binning,
        all_times=everyone[:, 0] if settings.last_edge == "all" else None,
    )
    return Survival(edges, loss=loss, alpha=settings.alpha, risk=settings.risk)


def task_names(task: Task) -> tuple[str, ...]:
    """The classes or labels of a task; empty for survival and regression."""
    if isinstance(task, Classification):
        return tuple(task.classes)
    return tuple(task.labels) if isinstance(task, MultiLabel) else ()


def read_task(path: Path) -> Task:
    """The task stored in a file (`task.json`, written from `to_dict`)."""
    remedy = "restore it or train again"
    values = read_json(path, dict[str, Any], remedy)
    kind = str(values.get("kind"))
    if kind not in _FILES:
        raise AsmilError(f"{path}: this version of asmil does not support the task {kind!r}; update asmil")
    stored = validated(values, _FILES[kind], str(path), remedy)
    try:
        return stored.task()
    except AsmilError as error:
        raise AsmilError(f"{path}: {error}; {remedy}") from None


class _Classes(BaseModel):
    classes: Annotated[tuple[str, ...], Field(min_length=1)]

    def task(self) -> Task:
        return Classification(self.classes)


class _Labels(_Classes):
    def task(self) -> Task:
        return MultiLabel(self.classes)


class _Scale(BaseModel):
    mean: FiniteFloat
    sd: Annotated[FiniteFloat, Field(gt=0)]
    loss: Literal["squared", "huber"]

    def task(self) -> Task:
        return Regression(self.mean, self.sd, self.loss)


class _Baseline(BaseModel):
    times: list[FiniteFloat]
    hazard: list[FiniteFloat]
    center: FiniteFloat

    @model_validator(mode="after")
    def _fits(self) -> _Baseline:
        if len(self.times) != len(self.hazard) or not self.times:
            raise ValueError("times and hazard must have the same length")
        return self


class _Survival(BaseModel):
    loss: str
    alpha: FiniteFloat
    risk: str
    edges: list[FiniteFloat] | None
    baseline: _Baseline | None = None

    def task(self) -> Task:
        return Survival.from_dict(self.model_dump())


_FILES: dict[str, type[_Classes | _Scale | _Survival]] = {
    "classification": _Classes,
    "multilabel": _Labels,
    "regression": _Scale,
    "survival": _Survival,
}
