"""Tables that mark the tumor tiles of slides, as written next to the manifest of synthetic cohorts."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from asmil.errors import AsmilError
from asmil.names import plain_spaces
from asmil.text_table import without_categories

TRUTH_FILE = "tile_truth.parquet"
TRUTH_COLUMNS = ("slide", "x", "y", "tumor")


def read_tile_truth(path: Path) -> pd.DataFrame:
    """The table of tiles: slide, x, y and whether a tile is tumor."""
    try:
        table = pd.read_csv(path, dtype={"slide": str}) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    except FileNotFoundError:
        raise AsmilError(f"{path}: the table of tiles does not exist; fix the path") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UnicodeError) as error:
        raise AsmilError(f"{path}: the table of tiles cannot be read ({error}); give CSV or Parquet") from None
    missing = [name for name in TRUTH_COLUMNS if name not in table.columns]
    if missing:
        raise AsmilError(
            f"{path}: the table of tiles has no columns {', '.join(missing)}; it needs {', '.join(TRUTH_COLUMNS)}"
        )
    table = without_categories(table[list(TRUTH_COLUMNS)])
    if not table["slide"].map(lambda slide: isinstance(slide, str | int)).all():
        raise AsmilError(f"{path}: the column slide must contain a slide name in every row; fix the table")
    if table[["x", "y", "tumor"]].dtypes.map(lambda kind: kind.kind not in "buif").any() or table.isna().any(axis=None):
        raise AsmilError(f"{path}: x, y and tumor (0 or 1) must be numbers in every row; fix the table")
    return table.assign(slide=[plain_spaces(str(slide)) for slide in table["slide"]])
