"""From settings and outcomes to a task: what it needs to know of the training part, and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from asmil.cohort.outcomes import Outcomes
from asmil.errors import AsmilError
from asmil.tasks.base import Task
from asmil.tasks.classification import Classification, balanced_weights
from asmil.tasks.multilabel import MultiLabel
from asmil.tasks.regression import Regression
from asmil.tasks.survival import Survival
from asmil.tasks.survival_bins import fit_bins
from asmil.training.config import RunConfig


def build_task(config: RunConfig, outcomes: Outcomes, train: Sequence[int]) -> Task:
    """The task of a training on the units `train`: class weights, time bins and scales are fitted on these alone.

    With `task.last_edge: all` the last time bin reaches to the last time of all units, as in the official code.
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


def task_from_dict(values: Mapping[str, Any]) -> Task:
    """The task that `to_dict` described."""
    kind = values.get("kind")
    if kind == "classification":
        return Classification(values["classes"])
    if kind == "multilabel":
        return MultiLabel(values["classes"])
    if kind == "regression":
        return Regression(values["mean"], values["sd"], values["loss"])
    if kind == "survival":
        return Survival.from_dict(values)
    raise AsmilError(f"the task {kind!r} is not known to this version of asmil; update it")
