"""The result of a survey for one slide: one row of `tissue.csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from asmil.errors import AsmilError

NOTE_SEPARATOR = "; "


@dataclass(frozen=True)
class SurveyRow:
    """The numbers of a slide; unknown values are empty.

    tissue_share: tissue as a share of the slide's area
    tissue_mm2, tiles: None if the slide has no resolution
    """

    slide: str
    width_px: int
    height_px: int
    mpp: float | None
    mpp_source: str
    method: str
    threshold: float
    tissue_share: float
    tissue_mm2: float | None
    regions: int
    tiles: int | None
    notes: str


@dataclass(frozen=True)
class Failure:
    """A slide that could not be surveyed, and the reason in one sentence."""

    slide: str
    reason: str


COLUMNS = tuple(field.name for field in fields(SurveyRow))


def rows_to_csv(rows: Iterable[SurveyRow]) -> str:
    """The table as text, ordered by slide."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in sorted(rows, key=lambda row: row.slide))
    return text.getvalue()


def read_rows(path: Path) -> list[SurveyRow]:
    """The rows of a table written by `rows_to_csv`; empty if it does not exist."""
    if not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [_row(cells) for cells in csv.DictReader(file)]
    except (KeyError, ValueError, TypeError) as error:
        raise AsmilError(
            f"{path}: this table was not written by this command ({error}); remove it to process its slides again"
        ) from None


def _row(cells: dict[str, str]) -> SurveyRow:
    return SurveyRow(
        slide=cells["slide"],
        width_px=int(cells["width_px"]),
        height_px=int(cells["height_px"]),
        mpp=float(cells["mpp"]) if cells["mpp"] else None,
        mpp_source=cells["mpp_source"],
        method=cells["method"],
        threshold=float(cells["threshold"]),
        tissue_share=float(cells["tissue_share"]),
        tissue_mm2=float(cells["tissue_mm2"]) if cells["tissue_mm2"] else None,
        regions=int(cells["regions"]),
        tiles=int(cells["tiles"]) if cells["tiles"] else None,
        notes=cells["notes"],
    )
