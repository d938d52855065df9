"""Reading a run folder: its settings, its predictions and the course of its trainings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_numeric_dtype

from asmil.errors import AsmilError
from asmil.tasks.base import TaskKind
from asmil.training.epoch_log import read_epochs
from asmil.training.layout import RunLayout
from asmil.training.notes import read_kept_epoch
from asmil.training.prediction_table import read_predictions

KEY_COLUMNS = ("slide", "patient", "fold", "seed", "role")


@dataclass(frozen=True)
class Run:
    """A finished run: settings and predictions, checked."""

    path: Path
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    predictions: pd.DataFrame
    kind: TaskKind = "classification"

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name

    @property
    def truth_columns(self) -> tuple[str, ...]:
        """The columns of the predictions that tell what is true."""
        return columns_of(self.kind, self.classes)[0]

    @property
    def prediction_columns(self) -> tuple[str, ...]:
        """The columns of the predictions that are numbers a model gave."""
        return columns_of(self.kind, self.classes)[1]

    def setting(self, *keys: str) -> Any:
        """A value of the settings by its path, or None."""
        return setting(self.config, *keys)

    def targets(self, rows: pd.DataFrame) -> npt.NDArray[np.intp]:
        """Class indices of the given rows of the predictions."""
        return np.asarray(pd.Categorical(rows["target"], categories=list(self.classes)).codes, dtype=np.intp)

    def probabilities(self, rows: pd.DataFrame) -> npt.NDArray[np.float64]:
        """n x K probabilities of the given rows of the predictions."""
        return rows[[f"prob_{name}" for name in self.classes]].to_numpy(dtype=np.float64)


@dataclass(frozen=True)
class Training:
    """The course of one training: a row an epoch, in columns like `train.loss`; the epoch that was kept."""

    fold: int
    seed: int
    epochs: pd.DataFrame
    selected_epoch: int | None


def setting(config: Mapping[str, Any], *keys: str) -> Any:
    """A value of a run's settings by its path, or None."""
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def read_run(path: Path | str, kind: TaskKind | None = "classification") -> Run:
    """Read and check a run folder; what is wrong with it is told in one sentence.

    kind: the task that is expected; None takes any
    """
    folder = RunLayout(path)
    path, config = folder.path, folder.read_values()
    found: Any = setting(config, "task", "kind")
    if found not in get_args(TaskKind) or (kind is not None and found != kind):
        raise AsmilError(f"{path}: the task of this run is {found!r}, where a {kind or 'known'} task is needed")
    named = setting(config, "task", "classes") or ()
    if not isinstance(named, (list, tuple)):
        raise AsmilError(f"{folder.config}: task.classes is {named!r}, not a list; restore it or train again")
    classes = tuple(str(name) for name in named)
    if found == "classification" and len(classes) < 2:
        raise AsmilError(f"{folder.config}: task.classes must name at least two classes")
    table = _predictions_of(folder)
    _refuse_invalid(folder.predictions, table, found, classes)
    return Run(path, config, classes, table, found)


def read_training(path: Path, fold: int, seed: int) -> Training | None:
    """The course of a training of the run at `path`; None when it was not kept, AsmilError when broken."""
    folder = RunLayout(path).training(fold, seed)
    log = folder / "metrics.jsonl"
    if not log.is_file():
        return None
    epochs = pd.json_normalize(read_epochs(log))
    if epochs.empty:
        raise AsmilError(f"{log}: no epoch has ended; finish the run by giving its `asmil train` command again")
    return Training(fold, seed, epochs, read_kept_epoch(folder))


def _predictions_of(folder: RunLayout) -> pd.DataFrame:
    file = folder.predictions
    if not file.is_file():
        raise AsmilError(
            f"{folder.path}: the run is unfinished (no predictions.parquet); finish it by giving its "
            "`asmil train` command again"
        )
    return read_predictions(file)


def _refuse_invalid(file: Path, table: pd.DataFrame, kind: TaskKind, classes: tuple[str, ...]) -> None:
    truth, predicted = columns_of(kind, classes)
    missing = [name for name in (*KEY_COLUMNS, *truth, *predicted) if name not in table]
    if missing:
        raise AsmilError(f"{file} lacks the columns {', '.join(missing)}; it has {', '.join(table.columns)}")
    unknown = sorted(set(table["target"].astype(str)) - set(classes)) if kind == "classification" else []
    if unknown:
        raise AsmilError(f"{file}: the targets {', '.join(unknown)} are not among the classes {', '.join(classes)}")
    texts = [name for name in (*(truth if kind == "survival" else ()), *predicted) if not is_numeric_dtype(table[name])]
    if texts:
        raise AsmilError(f"{file}: the columns {', '.join(texts)} do not hold numbers; restore it or train again")
    repeated = table.duplicated(["slide", "fold", "seed", "role"])
    if repeated.any():
        slide = table.loc[repeated, "slide"].iloc[0]
        raise AsmilError(f"{file}: slide {slide} is predicted twice by the same training")
    values = table[list(predicted)].to_numpy(dtype=np.float64)
    # a survival curve that never falls has an infinite mean time, and ranks below all others
    finite = (~np.isnan(values) if kind == "survival" else np.isfinite(values)).all(axis=1)
    if not finite.all():
        slide = table.loc[~finite, "slide"].iloc[0]
        what = "probabilities" if kind in ("classification", "multilabel") else "predictions"
        raise AsmilError(f"{file}: the {what} of slide {slide} are not finite; train again")


def columns_of(kind: TaskKind, classes: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of the truth, and of what was predicted."""
    if kind == "survival":
        return ("time", "event"), ("risk",)
    if kind == "regression":
        return ("target",), ("value",)
    probabilities = tuple(f"prob_{name}" for name in classes)
    if kind == "multilabel":
        return tuple(f"target_{name}" for name in classes), probabilities
    return ("target",), probabilities
