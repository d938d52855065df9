"""A table of slides: names, images and resolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from asmil.columns import understand_columns
from asmil.errors import AsmilError, did_you_mean
from asmil.text_table import read_text_table


@dataclass(frozen=True)
class SlideRow:
    """A row: the slide, the path of its image and its microns per pixel, where told."""

    name: str
    image: Path | None
    mpp: float | None


def read_slide_table(path: Path) -> list[SlideRow]:
    """The rows of a CSV, Excel or Parquet table with a column `slide`; `image` and `mpp` are optional."""
    columns = understand_columns(path, read_text_table(path)).cells
    if "slide" not in columns:
        raise AsmilError(f"{path}: column 'slide' is missing; {did_you_mean('slide', columns)}")
    names = columns["slide"]
    blank = [""] * len(names)
    rows: dict[str, SlideRow] = {}
    for line, (name, image, mpp) in enumerate(
        zip(names, columns.get("image", blank), columns.get("mpp", blank), strict=True), start=2
    ):
        if not name:
            raise AsmilError(f"{path}: column 'slide' is empty in line {line}; name every slide")
        where = f"{path}, slide '{name}'"
        if name in rows:
            raise AsmilError(f"{where}: the slide stands in two lines, the second is {line}; keep one row per slide")
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
