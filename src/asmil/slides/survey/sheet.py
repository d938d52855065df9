"""The contact sheet as one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np

from asmil.slides.image import Pixels
from asmil.slides.qc import read_picture, write_jpeg
from asmil.slides.survey.folder import SurveyFolder
from asmil.slides.survey.row import SurveyRow

MOST_SLIDES = 40
CELL_PX = 260
CAPTION_PX = 36
GAP_PX = 10
PAPER = 250
INK = (40, 45, 55)
SOFT_INK = (105, 110, 120)
WARNING_INK = (170, 90, 0)
FONT = cv2.FONT_HERSHEY_SIMPLEX
LETTERS = 38
"""As many letters of a caption fit into a cell."""


def write_sheet(folder: SurveyFolder, rows: Sequence[SurveyRow]) -> None:
    """Write the overlays of up to MOST_SLIDES slides as one picture; of more, no picture is made (or kept)."""
    if not 0 < len(rows) <= MOST_SLIDES:
        folder.sheet.unlink(missing_ok=True)
        return
    write_jpeg(folder.sheet, arrange([_cell(read_picture(folder.overlay(row.slide)), row) for row in rows]))


def arrange(cells: Sequence[Pixels]) -> Pixels:
    """Cells of one size in rows, in a wide rather than a high picture."""
    height, width = cells[0].shape[:2]
    columns = min(len(cells), max(1, round(math.sqrt(len(cells) * 1.6))))
    lines = math.ceil(len(cells) / columns)
    sheet = np.full((lines * (height + GAP_PX) + GAP_PX, columns * (width + GAP_PX) + GAP_PX, 3), PAPER, np.uint8)
    for index, cell in enumerate(cells):
        line, column = divmod(index, columns)
        top, left = GAP_PX + line * (height + GAP_PX), GAP_PX + column * (width + GAP_PX)
        sheet[top : top + height, left : left + width] = cell
    return sheet


def _cell(overlay: Pixels, row: SurveyRow) -> Pixels:
    cell = np.full((CELL_PX + CAPTION_PX, CELL_PX, 3), PAPER, np.uint8)
    shrink = CELL_PX / max(overlay.shape[:2])
    size = [max(1, round(side * shrink)) for side in (overlay.shape[1], overlay.shape[0])]
    small = cv2.resize(overlay, size, interpolation=cv2.INTER_AREA if shrink < 1 else cv2.INTER_NEAREST)
    top, left = (CELL_PX - size[1]) // 2, (CELL_PX - size[0]) // 2
    cell[top : top + size[1], left : left + size[0]] = small
    _write(cell, _shortened(row.slide), CELL_PX + 14, INK)
    _write(cell, _shortened(_numbers(row)), CELL_PX + 30, WARNING_INK if row.notes else SOFT_INK)
    return cell


def _numbers(row: SurveyRow) -> str:
    area = f"{row.tissue_mm2:.3g} mm2" if row.tissue_mm2 is not None else f"{row.tissue_share:.1%} tissue"
    tiles = f", {row.tiles} tiles" if row.tiles is not None else ""
    return area + tiles + (f" ! {row.notes}" if row.notes else "")


def _shortened(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 3] + "..."


def _write(cell: Pixels, text: str, baseline: int, color: tuple[int, int, int]) -> None:
    cv2.putText(cell, text, (0, baseline), FONT, 0.4, color, 1, cv2.LINE_AA)
