"""Excel files with the same bytes every time, and edits of them: parts, cells far away, unusual compression."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd

from tests.campaigns import text_edits

DATE = (2026, 1, 1, 0, 0, 0)
PROPERTIES = "docProps/core.xml"
"""It holds the time of writing."""
PLACES = ("XFD1048576", "A1048576", "XFD1", "ZZ5")
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def write_xlsx(path: Path, table: pd.DataFrame) -> None:
    """Write a table on the first sheet, as text, without any time of writing."""
    book = openpyxl.Workbook()
    for row in [list(table.columns), *table.astype(str).to_numpy().tolist()]:
        book.active.append(row)
    _save(path, book)


def edit_xlsx(path: Path, draw: np.random.Generator) -> str:
    """A part of an Excel file changes, or its cells, or how it is packed."""
    choice = str(draw.choice(["part", "part", "part", "gone", "cell", "sheet", "method"]))
    parts = _parts(path.read_bytes())
    name = str(draw.choice(sorted(parts)))
    if choice == "part":
        part = path.with_name("part.xml")
        part.write_bytes(parts[name])
        what = text_edits.edit_text(part, draw)
        parts[name] = part.read_bytes()
        part.unlink()
        _pack(path, parts)
        return f"{name}: {what}"
    if choice == "gone":
        _pack(path, {one: content for one, content in parts.items() if one != name})
        return f"{name} is missing"
    if choice == "method":
        _pack(path, parts, int(draw.choice(METHODS)))
        return "another compression"
    book = openpyxl.load_workbook(path)
    if choice == "sheet":
        for row in (("slide", "label"), ("x", "1")):
            book.create_sheet("more").append(row) if "more" not in book.sheetnames else book["more"].append(row)
        what = "a second sheet"
    else:
        place, value = str(draw.choice(PLACES)), draw.choice([*text_edits.WORDS[:8], "1"])
        book.active[place] = str(value)
        what = f"{place} = {value!r}"
    _save(path, book)
    return what


def _save(path: Path, book: openpyxl.Workbook) -> None:
    memory = io.BytesIO()
    book.save(memory)
    _pack(path, {name: content for name, content in _parts(memory.getvalue()).items() if name != PROPERTIES})


def _parts(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as book:
        return {name: book.read(name) for name in book.namelist()}


def _pack(path: Path, parts: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w") as book:
        for name, content in parts.items():
            book.writestr(zipfile.ZipInfo(name, DATE), content, method)
