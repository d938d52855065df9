"""The contact sheet as a page: every slide with its tissue, its numbers and what to look at."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from urllib.parse import quote

from asmil.slides.qc import HOLE_COLOR, TILE_COLOR, TISSUE_COLOR
from asmil.slides.survey.row import NOTE_SEPARATOR, Failure, SurveyRow


def contact_page(rows: Sequence[SurveyRow], failures: Sequence[Failure], method: str) -> str:
    """One HTML page; its pictures are links to the overlays beside it."""
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
    key = "".join(
        f'<i style="background: rgb{color}"></i>{name}'
        for name, color in (("tissue", TISSUE_COLOR), ("holes", HOLE_COLOR), ("tiles", TILE_COLOR))
    )
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
    mpp = f"{row.mpp:.4g} um/px ({row.mpp_source})" if row.mpp is not None else "resolution not known"
    area = f"{row.tissue_mm2:.4g} mm²" if row.tissue_mm2 is not None else "area not known"
    tiles = _count(row.tiles, "tile") if row.tiles is not None else "tiles not placed"
    numbers = f"{area} ({row.tissue_share:.1%}) in {_count(row.regions, 'piece')}, {tiles}"
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in row.notes.split(NOTE_SEPARATOR) if note)
    return (
        f'<figure><a href="{link}"><img loading="lazy" src="{link}" alt="{name}"></a>'
        f"<figcaption><b>{name}</b><span>{escape(numbers)}</span><span>{escape(f'{size}, {mpp}')}</span>"
        f"{notes}</figcaption></figure>"
    )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
