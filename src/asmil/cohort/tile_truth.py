"""Tables that mark the tumor tiles of slides, as written next to the manifest of synthetic cohorts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from asmil.cohort.problems import fail
from asmil.tables.names import plain_spaces
from asmil.tables.text_table import without_categories

TRUTH_FILE = "tile_truth.parquet"
TRUTH_COLUMNS = ("slide", "x", "y", "tumor")


def read_tile_truth(path: Path, more: Sequence[str] = ()) -> pd.DataFrame:
    """The table of tiles: slide, x, y and whether a tile is tumor; more: further columns that are needed."""
    wanted = [*TRUTH_COLUMNS, *more]
    try:
        table = pd.read_csv(path, dtype={"slide": str}) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    except FileNotFoundError:
        fail(path, "the table of tiles does not exist", "fix the path")
    except (*(OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError), pa.ArrowException) as error:
        fail(path, f"the table of tiles cannot be read ({error})", "give CSV or Parquet")
    if missing := [name for name in wanted if name not in table.columns]:
        fail(path, f"the table of tiles has no columns {', '.join(missing)}", f"it needs {', '.join(wanted)}")
    table = without_categories(table[wanted])
    if not table["slide"].map(lambda slide: isinstance(slide, str | int)).all():
        fail(path, "the column slide must contain a slide name in every row", "fix the table")
    if table[["x", "y", "tumor"]].dtypes.map(lambda kind: kind.kind not in "buif").any() or table.isna().any(axis=None):
        fail(path, "x, y and tumor (0 or 1) must be numbers in every row", "fix the table")
    wrong = ~np.isfinite(table[["x", "y"]].to_numpy(dtype=np.float64)).all(axis=1) | ~table["tumor"].isin([0, 1])
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        where = f"in row {row + 1} (slide {table['slide'].iloc[row]})"
        fail(path, f"{where}, x and y must be finite and tumor 0 or 1", "fix the table")
    return table.assign(slide=[plain_spaces(str(slide)) for slide in table["slide"]])
