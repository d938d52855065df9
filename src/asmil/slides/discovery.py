"""Find slides: in a folder, in a table, or a single file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from asmil.errors import AsmilError, did_you_mean
from asmil.slides.file_names import DICOM_SUFFIX, MIRAX_SUFFIX, dicom_files, is_picture, is_slide, slide_name, walk_once
from asmil.slides.opening import refuse_absent
from asmil.tables.columns import ColumnMapping, understand_columns
from asmil.tables.names import PICTURE_SUFFIXES, SLIDE_SUFFIXES, name_problem
from asmil.tables.text_table import is_table, read_text_table

SLIDES_FOLDER = "slides"


@dataclass(frozen=True)
class SlideFile:
    """A slide to open. mpp, tissue: the resolution, and the file of its tissue, given by the user."""

    name: str
    path: Path
    mpp: float | None = None
    tissue: Path | None = None


def find_slides(source: Path | str, columns: ColumnMapping | None = None) -> list[SlideFile]:
    """The slides of a folder and its subfolders, of a table (CSV, Excel or Parquet), or a single slide.

    A folder of DICOM files is one slide. A table has a column `slide` and, optionally, `image` (a path, relative to the
    table) and `mpp`; slides without an image are searched for in the folder `slides` next to the table.

    columns: which columns of a table to read, by asmil's names
    """
    source = Path(source)
    refuse_absent(source)
    if source.is_dir():
        slides = _in_order(_slides_in(source))
    elif is_table(source):
        slides = _slides_of_table(source, columns)
    else:
        slides = [SlideFile(slide_name(source), source)]
    for slide in slides:
        if reason := name_problem(slide.name):
            raise AsmilError(f"{source}: the slide '{slide.name}' {reason}; rename it")
    return slides


def _slides_in(folder: Path) -> list[SlideFile]:
    files = list(_files_in(folder))
    # pictures next to slides are thumbnails, or the pixels of a .vms; without slides, the pictures are the slides
    slides = [path for path in files if not is_picture(path)] or files
    if not slides:
        suffixes = ", ".join((*SLIDE_SUFFIXES, *PICTURE_SUFFIXES))
        raise AsmilError(f"{folder}: there is no slide in the folder ({suffixes})")
    return [SlideFile(slide_name(path), path) for path in slides]


def _files_in(folder: Path) -> Iterator[Path]:
    """Slides and pictures, and the folder for DICOM; without hidden files and files that belong to another slide."""
    for current, subfolders, names in walk_once(folder):
        if dicom_files(current):
            yield current
        paths = sorted(current / name for name in names if not name.startswith("."))
        of_mirax = {path.stem for path in paths if path.suffix.lower() == MIRAX_SUFFIX}
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(".") and name not in of_mirax)
        for path in paths:
            if (is_slide(path) or is_picture(path)) and path.suffix.lower() != DICOM_SUFFIX:
                yield path


def _in_order(slides: list[SlideFile]) -> list[SlideFile]:
    by_name: dict[str, SlideFile] = {}
    for slide in slides:
        other = by_name.setdefault(slide.name, slide)
        if other is not slide:
            raise AsmilError(
                f"slide '{slide.name}': two files have this name, {other.path} and {slide.path}; rename one, or list "
                "them in a table with columns slide and image"
            )
    return [by_name[name] for name in sorted(by_name)]


def _slides_of_table(table: Path, columns: ColumnMapping | None) -> list[SlideFile]:
    rows = read_slide_table(table, columns)
    folder = table.parent / SLIDES_FOLDER
    unplaced = [row for row in rows if row.image is None]
    beside: dict[str, Path] = {}
    if unplaced:
        if not folder.is_dir():
            raise AsmilError(
                f"{table}: slide '{unplaced[0].name}' has no image, and {folder} does not exist; add a column 'image'"
            )
        beside = {slide.name: slide.path for slide in _in_order(_slides_in(folder))}
    # a missing file is reported when it is opened, so that it does not stop the others
    return [SlideFile(row.name, row.image or beside.get(row.name, folder / row.name), row.mpp) for row in rows]


@dataclass(frozen=True)
class SlideRow:
    """A row: the slide, the path of its image and its microns per pixel, if given."""

    name: str
    image: Path | None
    mpp: float | None


def read_slide_table(path: Path, columns: ColumnMapping | None = None) -> list[SlideRow]:
    """The rows of a CSV, Excel or Parquet table with a column `slide`; `image` and `mpp` are optional."""
    cells = understand_columns(path, read_text_table(path), columns).cells
    if "slide" not in cells:
        raise AsmilError(f"{path}: column 'slide' is missing; {did_you_mean('slide', cells)}")
    names = cells["slide"]
    blank = [""] * len(names)
    rows: dict[str, SlideRow] = {}
    for line, (name, image, mpp) in enumerate(
        zip(names, cells.get("image", blank), cells.get("mpp", blank), strict=True), start=2
    ):
        if not name:
            raise AsmilError(f"{path}: column 'slide' is empty in line {line}; give every slide a name")
        where = f"{path}, slide '{name}'"
        if name in rows:
            raise AsmilError(f"{where}: the slide is in two lines, the second is {line}; keep one row per slide")
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
        raise AsmilError(f"{where}: mpp '{text}' is not a resolution; give microns per pixel, such as 0.25")
    return mpp
