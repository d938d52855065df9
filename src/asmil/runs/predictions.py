"""Tables of predictions, `predictions.parquet`: one row per slide, fold, seed and role."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pandas.api.types import is_integer_dtype, is_numeric_dtype

from asmil.errors import AsmilError
from asmil.files import replacing
from asmil.settings.documents import one_line
from asmil.tables.text_table import without_categories
from asmil.tasks.base import PredictionFormat

KEY_COLUMNS = ("slide", "patient", "fold", "seed", "role")
UNCERTAINTY = "uncertainty_"
"""Columns of methods that estimate how certain they are begin with it."""
ROUNDING = 1e-6
"""How far a probability may be outside 0 to 1 because of rounding."""


def uncertainty_column(name: str) -> str:
    """The column of an uncertainty of a method (`MILModel.uncertainty`)."""
    return f"{UNCERTAINTY}{name}"


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
    for name in [name for name in KEY_COLUMNS if name in table and len(table)]:  # empty columns have no type
        expected = "integers" if name in ("fold", "seed") else "text"
        is_text = all(isinstance(value, str) for value in table[name])
        if not (is_integer_dtype(table[name]) if expected == "integers" else is_text):
            raise AsmilError(f"{path}: the column {name} does not contain {expected}; restore it or train again")
    return table


def refuse_invalid(file: Path, table: pd.DataFrame, expected: PredictionFormat) -> None:
    """Raise AsmilError if a table of predictions does not match the task, or has impossible values."""
    columns = (*KEY_COLUMNS, *expected.truth_columns, *expected.prediction_columns)
    missing = [name for name in columns if name not in table]
    if missing:
        raise AsmilError(f"{file}: missing columns {', '.join(missing)}; it has {', '.join(table.columns)}")
    if table.empty:
        return
    texts = [name for name in expected.number_columns if not is_numeric_dtype(table[name])]
    if texts:
        raise AsmilError(f"{file}: the columns {', '.join(texts)} do not contain numbers; restore it or train again")
    _refuse_rows(
        file, table, table.duplicated(["slide", "fold", "seed", "role"]), "is predicted twice by the same training"
    )
    for bad, problem in expected.problems(table):
        _refuse_rows(file, table, bad, problem)
    values = expected.predictions(table)
    # a survival curve that never falls has an infinite mean time, so its risk is minus infinity
    finite = (~np.isnan(values) if expected.may_be_infinite else np.isfinite(values)).all(axis=1)
    _refuse_rows(file, table, ~finite, "has predictions that are not finite; train again")
    if expected.are_probabilities:
        outside = ((values < -ROUNDING) | (values > 1 + ROUNDING)).any(axis=1)
        _refuse_rows(
            file, table, outside, "has a probability that is not between 0 and 1; restore the file or train again"
        )


def _refuse_rows(file: Path, table: pd.DataFrame, bad: npt.ArrayLike, problem: str) -> None:
    """Raise AsmilError that names the first bad row."""
    marked = np.asarray(bad, dtype=bool)
    if marked.any():
        row = table[marked].iloc[0]
        raise AsmilError(f"{file}: slide {row['slide']} (fold {row['fold']}, seed {row['seed']}) {problem}")
