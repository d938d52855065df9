"""Average the predictions of several trained models for one bag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from asmil.tasks.base import Columns, Task
from asmil.tasks.survival_curves import mean_curve


def average(tasks: Sequence[Task], logits: Sequence[Tensor]) -> dict[str, Any]:
    """The prediction columns of one bag, averaged over models (a task and C logits each).

    Numbers are averaged directly. Survival curves, whose time bins may differ between folds, are averaged as
    step curves. The risk of a single model depends on its bins, so the common risk is minus the mean survival up to
    the last time: the area under the mean curve divided by its length.
    """
    predictions = [task.columns(of_model.unsqueeze(0)) for task, of_model in zip(tasks, logits, strict=True)]
    if len(predictions) == 1:
        return {name: values[0] for name, values in predictions[0].items()}
    joined: dict[str, Any] = {
        name: float(np.mean([float(of_model[name][0]) for of_model in predictions]))
        for name in predictions[0]
        if name not in ("survival", "survival_times")
    }
    if all("survival" in of_model for of_model in predictions):
        joined |= _mean_survival(predictions)
    return joined


def _mean_survival(predictions: Sequence[Columns]) -> dict[str, Any]:
    times, survival = mean_curve(
        [of_model["survival_times"][0] for of_model in predictions],
        [of_model["survival"][0] for of_model in predictions],
    )
    length = np.diff(times, prepend=0.0)
    before = np.concatenate([[1.0], survival[:-1]])
    return {
        "risk": -float((before * length).sum() / times[-1]),
        "survival_times": times.tolist(),
        "survival": survival.tolist(),
    }
