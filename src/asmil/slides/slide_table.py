"""A table of slides: names, images and resolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from asmil.errors import AsmilError, did_you_mean

TABLE_SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class SlideRow:
    """A row: the slide, the path of its image and its microns per pixel, where told."""

    name: str
    image: Path | None
    mpp: float | None


def read_slide_table(path: Path) -> list[SlideRow]:
    """The rows of a CSV or Parquet table with a column `slide`; `image` and `mpp` are optional, others not read."""
    columns = _read_text_columns(path)
    if "slide" not in columns:
        raise AsmilError(f"{path}: column 'slide' is missing; {did_you_mean('slide', columns)}")
    names = columns["slide"]
    if not names:
        raise AsmilError(f"{path}: the table has no rows; give it one row a slide")
    blank = [""] * len(names)
    rows: dict[str, SlideRow] = {}
    for line, (name, image, mpp) in enumerate(
        zip(names, columns.get("image", blank), columns.get("mpp", blank), strict=True), start=2
    ):
        if not name:
            raise AsmilError(f"{path}: column 'slide' is empty in line {line}; name every slide")
        if name in rows:
            raise AsmilError(f"{path}: slide '{name}' stands in two lines, the second is {line}; keep one row a slide")
        where = f"{path}, slide '{name}'"
        rows[name] = SlideRow(name, path.parent / image if image else None, _resolution(mpp, where))
    return list(rows.values())


def _resolution(text: str, where: str) -> float | None:
    if not text:
        return None
    try:
        mpp = float(text)
    except ValueError:
        mpp = math.nan
    if not (math.isfinite(mpp) and mpp > 0):
        raise AsmilError(f"{where}: mpp '{text}' is no resolution; give microns per pixel, such as 0.25")
    return mpp


def _read_text_columns(path: Path) -> dict[str, list[str]]:
    """All cells as text, so that slide 007 keeps its zeros."""
    import pandas as pd
    import pyarrow
    from pyarrow import parquet

    try:
        if path.suffix.lower() == ".parquet":
            # Without what pandas notes of its own types, which says nothing of text and may be damaged.
            table = parquet.read_table(path).to_pandas(ignore_metadata=True)
        else:
            table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig", skipinitialspace=True)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise AsmilError(
            f"{path}: the table cannot be read ({reason}); save it as CSV with commas in UTF-8, or as Parquet"
        ) from error
    return {
        str(column).strip(): ["" if pd.isna(cell) else str(cell).strip() for cell in table[column]]
        for column in table.columns
    }
