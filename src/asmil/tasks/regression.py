"""Regression: one number per slide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from asmil.errors import AsmilError
from asmil.reporting.formats import format_number
from asmil.tables.arrays import Booleans, Floats
from asmil.tasks import weighted
from asmil.tasks.base import Columns, Metric, MetricFunction, PredictionFormat, Table, Task, TaskKind, Truth


class Regression(Task):
    """The model predicts the standardized value, (value - mean) / sd.

    mean, sd: of the training values (see `of_training`)
    loss: `squared`, or `huber`: quadratic below one standard deviation and linear above
    """

    kind: TaskKind = "regression"

    def __init__(self, mean: float = 0.0, sd: float = 1.0, loss: Literal["squared", "huber"] = "squared") -> None:
        self.mean = mean
        self.sd = sd
        self.loss_kind = loss
        self.loss_name: str = loss

    @staticmethod
    def of_training(values: Floats, loss: Literal["squared", "huber"] = "squared") -> Regression:
        """The task with the mean and standard deviation of the training values."""
        sd = float(np.std(values))
        if sd == 0:
            raise AsmilError(f"all training values are {float(values[0]):g}; a regression needs different values")
        return Regression(float(np.mean(values)), sd, loss)

    @property
    def n_outputs(self) -> int:
        return 1

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean (squared or Huber) error, in units of the standard deviation of the training values."""
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        wanted = ((targets.double() - self.mean) / self.sd).to(logits.dtype)
        measure = functional.mse_loss if self.loss_kind == "squared" else functional.huber_loss
        return measure(logits[:, 0], wanted)

    def unfitted(self) -> Regression:
        return Regression(loss=self.loss_kind)

    def unfitted_targets(self, targets: npt.NDArray[Any]) -> Floats:
        """The standardized values."""
        return np.asarray((targets.astype(np.float64) - self.mean) / self.sd)

    def values(self, logits: Tensor) -> Floats:
        """The predicted values, B."""
        return np.asarray((logits[:, 0].double() * self.sd + self.mean).numpy())

    def measure(self, targets: npt.NDArray[Any], logits: Tensor) -> dict[str, float]:
        """Loss, mean absolute error, R2 and Spearman's rank correlation."""
        values = self.values(logits)
        return {
            "loss": float(self.loss(logits.double(), torch.as_tensor(targets))),
            "mae": float(np.abs(targets - values).mean()),
            "r2": r_squared(targets, values),
            "spearman": spearman(targets, values),
        }

    def selection_score(self, measures: Mapping[str, float | None]) -> float:
        """R2, or minus the mean absolute error if R2 is undefined."""
        r2 = measures["r2"]
        return -(measures["mae"] or 0.0) if r2 is None else r2

    def columns(self, logits: Tensor) -> Columns:
        return {"value": self.values(logits)}

    @property
    def explained_names(self) -> tuple[str, ...]:
        return ("value",)

    def evidence(self, logits: Tensor, name: int) -> Tensor:
        return logits[:, 0] * self.sd + self.mean

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "mean": self.mean, "sd": self.sd, "loss": self.loss_kind}


def r_squared(target: Floats, value: Floats) -> float:
    """`1 - sum (y - v)^2 / sum (y - mean y)^2`; nan if all targets are equal."""
    return float(weighted.r_squared(target, value, np.ones((1, len(target))))[0])


def spearman(target: Floats, value: Floats) -> float:
    """Spearman's rank correlation, midranks for ties; nan if either is constant or there are fewer than 2 values."""
    if len(target) < 2 or np.ptp(target) == 0 or np.ptp(value) == 0:
        return math.nan
    from scipy import stats  # slow to import: half as long as torch

    return float(stats.spearmanr(target, value).statistic)


def value_format(names: tuple[str, ...] = ()) -> PredictionFormat:
    """Predictions of a number: the true one in `target`, the predicted one in `value`."""

    def problems(table: Table) -> Iterator[tuple[Booleans, str]]:
        finite = np.isfinite(table["target"].to_numpy(dtype=np.float64))
        yield ~finite, "has a target that is not finite; fix the manifest"

    return PredictionFormat(
        kind="regression",
        names=names,
        truth_columns=("target",),
        prediction_columns=("value",),
        truth=lambda table: table["target"].to_numpy(dtype=np.float64),
        target_columns=lambda targets: {"target": targets},
        problems=problems,
        metrics=(
            Metric("mae", "MAE", _of_value(weighted.absolute_error), larger_is_better=False, scale=None),
            Metric("rmse", "RMSE", larger_is_better=False, scale=None),
            Metric("r2", "R²", _of_value(weighted.r_squared), scale=None),
            Metric("pearson", "Pearson", scale=None, in_terminal=False),
            Metric("spearman", "Spearman", scale=None),
        ),
        measure=measure_values,
        selected_by="R²",
        in_words=lambda target, value, values, unit: (
            f"is off by {format_number(values['mae'])} on average, for targets from {format_number(target.min())} to "
            f"{format_number(target.max())}"
        ),
        misfit=lambda target, value: np.abs(target - value[:, 0]),
        row_in_words=lambda target, value, decided: (format_number(float(target)), format_number(float(value[0]))),
    )


def measure_values(target: Truth, value: Floats, weights: Floats) -> dict[str, Floats]:
    """R values of every metric: target n, value n x 1, weights R x n; spearman is pearson of the midranks."""
    predicted = value[:, 0]
    ranks = weighted.midranks(target, weights), weighted.midranks(predicted, weights)
    return {
        "mae": weighted.absolute_error(target, predicted, weights),
        "rmse": weighted.root_mean_squared_error(target, predicted, weights),
        "r2": weighted.r_squared(target, predicted, weights),
        "pearson": weighted.correlation(target - target.mean(), predicted - predicted.mean(), weights),
        "spearman": weighted.correlation(*ranks, weights),
    }


def _of_value(function: MetricFunction) -> MetricFunction:
    """A metric of n values, for n x 1 predictions."""
    return lambda target, value, weights: function(target, value[:, 0], weights)
