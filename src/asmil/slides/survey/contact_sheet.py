"""The contact sheet of a survey, as a page and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from urllib.parse import quote

import cv2
import numpy as np

from asmil.slides.image import Pixels
from asmil.slides.qc import ARTIFACT_COLORS, HOLE_COLOR, TILE_COLOR, TISSUE_COLOR, read_picture, write_jpeg
from asmil.slides.survey.folder import NOTE_SEPARATOR, Failure, SurveyFolder, SurveyRow

MOST_SLIDES = 40
CELL_PX = 260
CAPTION_PX = 52
GAP_PX = 10
PAPER = 250
INK = (40, 45, 55)
SOFT_INK = (105, 110, 120)
WARNING_INK = (170, 90, 0)
FONT = cv2.FONT_HERSHEY_SIMPLEX
LETTERS = 42
"""Maximum number of characters of a caption in a cell."""


def write_sheet(folder: SurveyFolder, rows: Sequence[SurveyRow]) -> None:
    """Write the overlays of up to MOST_SLIDES slides as one picture; with more slides, remove the picture."""
    if not 0 < len(rows) <= MOST_SLIDES:
        folder.sheet.unlink(missing_ok=True)
        return
    write_jpeg(folder.sheet, arrange([_cell(read_picture(folder.overlay(row.slide)), row) for row in rows]))


def arrange(cells: Sequence[Pixels]) -> Pixels:
    """Arrange cells of equal size in rows, in a picture that is wider than high."""
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
    _write(cell, _shortened(_numbers(row)), CELL_PX + 30, SOFT_INK)
    _write(cell, _shortened(row.notes), CELL_PX + 46, WARNING_INK)
    return cell


def _numbers(row: SurveyRow) -> str:
    area = f"{row.tissue_mm2:.3g} mm2" if row.tissue_mm2 is not None else f"{row.tissue_share:.1%} tissue"
    tiles = f", {row.tiles} tiles" if row.tiles is not None else ""
    return area + tiles + _artifacts(row)


def _artifacts(row: SurveyRow) -> str:
    counts = ((row.blurred, "blurred"), (row.folded, "folded"))
    return "".join(f", {count:,} {name}" for count, name in counts if count is not None)


def _shortened(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 3] + "..."


def _write(cell: Pixels, text: str, baseline: int, color: tuple[int, int, int]) -> None:
    cv2.putText(cell, text, (0, baseline), FONT, 0.4, color, 1, cv2.LINE_AA)


def contact_page(rows: Sequence[SurveyRow], failures: Sequence[Failure], method: str) -> str:
    """One HTML page; its pictures link to the overlays in the same folder."""
    css = files("asmil.slides.survey").joinpath("contact_sheet.css").read_text(encoding="utf-8")
    figures = "\n".join(_figure(row) for row in rows)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Tissue of {_count(len(rows), 'slide')}</title>\n<style>\n{css}</style></head>\n<body><main>\n"
        f"{_header(rows, method)}\n{_failed(failures)}"
        f'<div class="slides">\n{figures}\n</div>\n</main></body></html>\n'
    )


def _header(rows: Sequence[SurveyRow], method: str) -> str:
    noted = sum(bool(row.notes) for row in rows)
    tiles = sum(row.tiles or 0 for row in rows)
    area = sum(row.tissue_mm2 or 0.0 for row in rows)
    counts = f"{area:,.4g} mm² of tissue, {_count(tiles, 'tile')}, {_count(noted, 'slide')} with notes; method {method}"
    colors: dict[str, tuple[int, int, int]] = {"tissue": TISSUE_COLOR, "holes": HOLE_COLOR, "tiles": TILE_COLOR}
    if any(row.blurred is not None for row in rows):
        colors |= {f"{name} tiles": color for name, color in ARTIFACT_COLORS.items()}
    key = "".join(f'<i style="background: rgb{color}"></i>{name}' for name, color in colors.items())
    return (
        f"<header><h1>Tissue of {_count(len(rows), 'slide')}</h1><p>{escape(counts)}</p>"
        f'<p class="key">{key}</p></header>'
    )


def _failed(failures: Sequence[Failure]) -> str:
    if not failures:
        return ""
    items = "".join(f"<li>{escape(failure.reason)}</li>" for failure in failures)
    title = f"{_count(len(failures), 'slide')} could not be read"
    return f'<section class="failed"><h2>{title}</h2><ul>{items}</ul></section>\n'


def _figure(row: SurveyRow) -> str:
    name, link = escape(row.slide), f"overlays/{quote(row.slide)}.jpg"
    size = f"{row.width_px} × {row.height_px} px"
    mpp = f"{row.mpp:.4g} um/px ({row.mpp_source})" if row.mpp is not None else "unknown resolution"
    area = f"{row.tissue_mm2:.4g} mm²" if row.tissue_mm2 is not None else "unknown area"
    tiles = (_count(row.tiles, "tile") if row.tiles is not None else "tiles not placed") + _artifacts(row)
    numbers = f"{area} ({row.tissue_share:.1%}) in {_count(row.regions, 'piece')}, {tiles}"
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in row.notes.split(NOTE_SEPARATOR) if note)
    return (
        f'<figure><a href="{link}"><img loading="lazy" src="{link}" alt="{name}"></a>'
        f"<figcaption><b>{name}</b><span>{escape(numbers)}</span><span>{escape(f'{size}, {mpp}')}</span>"
        f"{notes}</figcaption></figure>"
    )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
