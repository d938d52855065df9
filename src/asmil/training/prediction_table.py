"""Read and write `predictions.parquet`, without importing torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pandas.api.types import is_integer_dtype

from asmil.documents import one_line
from asmil.errors import AsmilError
from asmil.files import replacing


def write_predictions(path: Path, table: pd.DataFrame) -> None:
    """Write a table of predictions atomically."""
    with replacing(path) as partial:
        table.to_parquet(partial, index=False)


def read_predictions(path: Path) -> pd.DataFrame:
    """The table; `fold` and `seed` are integers, `slide`, `patient` and `role` are text, if present."""
    try:
        table = pd.read_parquet(path)
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
