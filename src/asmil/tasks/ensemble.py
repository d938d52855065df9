"""Average the predictions of several trained models for one bag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from asmil.tasks.base import Task
from asmil.tasks.survival_curves import mean_curve


def predictions_of(tasks: Sequence[Task], logits: Sequence[Tensor]) -> list[dict[str, Any]]:
    """The prediction columns of one bag, for each of several models (a task and C logits each)."""
    columns = [task.columns(of_model.unsqueeze(0)) for task, of_model in zip(tasks, logits, strict=True)]
    return [{name: values[0] for name, values in of_model.items()} for of_model in columns]


def average(predictions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The prediction columns of one bag, averaged over models.

    Numbers are averaged directly. Survival curves, whose time bins may differ between folds, are averaged as
    step curves. The risk of a single model depends on its bins, so the common risk is minus the mean survival up to
    the last time: the area under the mean curve divided by its length.
    """
    if len(predictions) == 1:
        return dict(predictions[0])
    joined: dict[str, Any] = {
        name: float(np.mean([float(of_model[name]) for of_model in predictions]))
        for name in predictions[0]
        if name not in ("survival", "survival_times")
    }
    if all("survival" in of_model for of_model in predictions):
        joined |= _mean_survival(predictions)
    return joined


def _mean_survival(predictions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    times, survival = mean_curve(
        [of_model["survival_times"] for of_model in predictions],
        [of_model["survival"] for of_model in predictions],
    )
    length = np.diff(times, prepend=0.0)
    before = np.concatenate([[1.0], survival[:-1]])
    return {
        "risk": -float((before * length).sum() / times[-1]),
        "survival_times": times.tolist(),
        "survival": survival.tolist(),
    }
