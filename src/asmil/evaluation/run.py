"""Reading a run folder: its settings, its predictions and the course of its trainings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError
from asmil.training.epoch_log import read_epochs
from asmil.training.layout import RunLayout

KEY_COLUMNS = ("slide", "patient", "fold", "seed", "role", "target")


@dataclass(frozen=True)
class Run:
    """A finished run: settings and predictions, checked."""

    path: Path
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    predictions: pd.DataFrame

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name

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


def read_run(path: Path | str) -> Run:
    """Read and check a run folder; what is wrong with it is told in one sentence."""
    folder = RunLayout(path)
    path, config = folder.path, folder.read_values()
    task = config.get("task") or {}
    kind = task.get("kind")
    if kind != "classification":
        raise AsmilError(f"{path}: the task is {kind!r}; only classification runs can be evaluated")
    classes = tuple(str(name) for name in task.get("classes") or ())
    if len(classes) < 2:
        raise AsmilError(f"{folder.config}: task.classes must name at least two classes")
    table = _read_predictions(folder)
    _refuse_invalid(folder.predictions, table, classes)
    return Run(path, config, classes, table)


def read_training(path: Path, fold: int, seed: int) -> Training | None:
    """The course of a training of the run at `path`; None when it was not kept, AsmilError when broken."""
    folder = RunLayout(path).training(fold, seed)
    log = folder / "metrics.jsonl"
    if not log.is_file():
        return None
    try:
        lines = read_epochs(log)
        best = folder / "checkpoints" / "best.json"
        selected = json.loads(best.read_text(encoding="utf-8")).get("epoch") if best.is_file() else None
        epochs = pd.json_normalize(lines)
    except (ValueError, AttributeError) as error:
        raise AsmilError(f"{folder}: the record of the training cannot be read ({error})") from None
    if "epoch" not in epochs:
        raise AsmilError(f"{log}: the lines have no epoch")
    return Training(fold, seed, epochs, None if selected is None else int(selected))


def _read_predictions(folder: RunLayout) -> pd.DataFrame:
    file = folder.predictions
    if not file.is_file():
        raise AsmilError(
            f"{folder.path}: the run is unfinished (no predictions.parquet); finish it by giving its "
            "`asmil train` command again"
        )
    try:
        return pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise AsmilError(f"{file} cannot be read ({error}); train again") from None


def _refuse_invalid(file: Path, table: pd.DataFrame, classes: tuple[str, ...]) -> None:
    probability_columns = [f"prob_{name}" for name in classes]
    missing = [name for name in (*KEY_COLUMNS, *probability_columns) if name not in table]
    if missing:
        raise AsmilError(f"{file} lacks the columns {', '.join(missing)}; it has {', '.join(table.columns)}")
    unknown = sorted(set(table["target"].astype(str)) - set(classes))
    if unknown:
        raise AsmilError(f"{file}: the targets {', '.join(unknown)} are not among the classes {', '.join(classes)}")
    repeated = table.duplicated(["slide", "fold", "seed", "role"])
    if repeated.any():
        slide = table.loc[repeated, "slide"].iloc[0]
        raise AsmilError(f"{file}: slide {slide} is predicted twice by the same training")
    finite = np.isfinite(table[probability_columns].to_numpy(dtype=np.float64)).all(axis=1)
    if not finite.all():
        slide = table.loc[~finite, "slide"].iloc[0]
        raise AsmilError(f"{file}: the probabilities of slide {slide} are not finite; train again")
