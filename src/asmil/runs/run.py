"""Read a run folder: its settings, its predictions and the epochs of its trainings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pandas.api.types import is_integer_dtype, is_numeric_dtype

from asmil.cohort.splits import FoldNames, Splits
from asmil.errors import AsmilError
from asmil.files import replacing
from asmil.runs.bundle import refuse_bundle
from asmil.runs.epochs import read_epochs
from asmil.runs.layout import RunLayout
from asmil.runs.notes import read_kept_epoch
from asmil.settings.documents import one_line
from asmil.tables.text_table import without_categories
from asmil.tables.time_units import unit_in_words
from asmil.tasks.base import PredictionFormat, TaskKind
from asmil.tasks.prediction_format import prediction_format

KEY_COLUMNS = ("slide", "patient", "fold", "seed", "role")
ROUNDING = 1e-6
"""How far a probability may be outside 0 to 1 because of rounding."""


@dataclass(frozen=True)
class Run:
    """A finished run: settings and predictions, checked."""

    path: Path
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    predictions: pd.DataFrame
    kind: TaskKind = "classification"
    named: str = ""

    @property
    def name(self) -> str:
        """Name of the folder, or what it is called beside another run of that name."""
        return self.named or self.path.resolve().name

    @cached_property
    def format(self) -> PredictionFormat:
        """The columns of the predictions, and the metrics of the task."""
        return prediction_format(self.kind, self.classes)

    @property
    def time_unit(self) -> str:
        """The unit of survival times, in words."""
        return unit_in_words(self.setting("task", "time_unit"))

    @cached_property
    def fold_names(self) -> FoldNames:
        """How the folds of the run are called."""
        return read_fold_names(self.path)

    def setting(self, *keys: str) -> Any:
        """A value of the settings by its path, or None."""
        return setting(self.config, *keys)


@dataclass(frozen=True)
class Training:
    """The epochs of one training: one row per epoch, in columns like `train.loss`; and the epoch that was kept."""

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


def read_run(path: Path | str, kind: TaskKind | None = None) -> Run:
    """Read and check a run folder; AsmilError describes the first problem.

    kind: the expected task; None accepts any
    """
    folder = RunLayout(path)
    path, config = folder.path, folder.read_values()
    found: Any = setting(config, "task", "kind")
    if found not in get_args(TaskKind) or (kind is not None and found != kind):
        raise AsmilError(f"{path}: the task of this run is {found!r}, but a {kind or 'known'} task is needed")
    named = setting(config, "task", "classes") or ()
    if not isinstance(named, (list, tuple)):
        raise AsmilError(f"{folder.config}: task.classes is {named!r}, not a list; restore it or train again")
    classes = tuple(str(name) for name in named)
    fewest = prediction_format(found, classes).fewest_names
    if len(classes) < fewest:
        raise AsmilError(f"{folder.config}: task.classes must have at least {fewest} names")
    run = Run(path, config, classes, _predictions_of(folder), found)
    _refuse_invalid(folder.predictions, run)
    return run


def read_fold_names(path: Path) -> FoldNames:
    """How the folds of the run at `path` are called; by their numbers if its splits cannot be read."""
    try:
        return Splits.load(RunLayout(path).splits).fold_names
    except AsmilError:
        return FoldNames()


def read_training(path: Path, fold: int, seed: int) -> Training | None:
    """The epochs of a training of the run at `path`; None if there is no log, AsmilError if it is damaged."""
    folder = RunLayout(path).training(fold, seed)
    log = folder / "metrics.jsonl"
    if not log.is_file():
        return None
    epochs = pd.json_normalize(read_epochs(log))
    if epochs.empty:
        raise AsmilError(f"{log}: no epoch is complete; run the same `asmil train` command again to finish it")
    return Training(fold, seed, epochs, read_kept_epoch(folder))


def _predictions_of(folder: RunLayout) -> pd.DataFrame:
    file = folder.predictions
    refuse_bundle(folder.path)
    if not file.is_file():
        raise AsmilError(
            f"{folder.path}: the run is unfinished (no predictions.parquet); run the same "
            "`asmil train` command again to finish it"
        )
    return read_predictions(file)


def _refuse_invalid(file: Path, run: Run) -> None:
    table, expected = run.predictions, run.format
    columns = (*KEY_COLUMNS, *expected.truth_columns, *expected.prediction_columns)
    missing = [name for name in columns if name not in table]
    if missing:
        raise AsmilError(f"{file}: missing columns {', '.join(missing)}; it has {', '.join(table.columns)}")
    texts = [name for name in expected.number_columns if not is_numeric_dtype(table[name])]
    if texts:
        raise AsmilError(f"{file}: the columns {', '.join(texts)} do not contain numbers; restore it or train again")
    refuse_rows(
        file, table, table.duplicated(["slide", "fold", "seed", "role"]), "is predicted twice by the same training"
    )
    for bad, problem in expected.problems(table):
        refuse_rows(file, table, bad, problem)
    values = expected.predictions(table)
    # a survival curve that never falls has an infinite mean time, so its risk is minus infinity
    finite = (~np.isnan(values) if expected.may_be_infinite else np.isfinite(values)).all(axis=1)
    refuse_rows(file, table, ~finite, "has predictions that are not finite; train again")
    if expected.are_probabilities:
        outside = ((values < -ROUNDING) | (values > 1 + ROUNDING)).any(axis=1)
        refuse_rows(
            file, table, outside, "has a probability that is not between 0 and 1; restore the file or train again"
        )


def refuse_rows(file: Path, table: pd.DataFrame, bad: npt.ArrayLike, problem: str) -> None:
    """Raise AsmilError that names the first bad row of a table of predictions."""
    marked = np.asarray(bad, dtype=bool)
    if marked.any():
        row = table[marked].iloc[0]
        raise AsmilError(f"{file}: slide {row['slide']} (fold {row['fold']}, seed {row['seed']}) {problem}")


def write_predictions(path: Path, table: pd.DataFrame) -> None:
    """Write a table of predictions atomically."""
    with replacing(path) as partial:
        table.to_parquet(partial, index=False)


def read_predictions(path: Path) -> pd.DataFrame:
    """The table; `fold` and `seed` are integers, `slide`, `patient` and `role` are text, if present."""
    try:
        table = without_categories(pd.read_parquet(path))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError, pa.ArrowException) as error:
        raise AsmilError(f"{path} cannot be read ({one_line(error)}); restore it or train again") from None
    wrong = [name for name in ("fold", "seed") if name in table and not is_integer_dtype(table[name])]
    if wrong:
        raise AsmilError(f"{path}: the column {wrong[0]} does not contain integers; restore it or train again")
    wrong = [name for name in ("slide", "patient", "role") if name in table and not _is_text(table[name])]
    if wrong:
        raise AsmilError(f"{path}: the column {wrong[0]} does not contain text; restore it or train again")
    return table


def _is_text(column: pd.Series[Any]) -> bool:
    return all(isinstance(value, str) for value in column)
