"""What the columns of a slide table mean, in the spellings of the tools that write such tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from asmil.errors import AsmilError
from asmil.names import folded, without_extension
from asmil.text_table import TextTable

COLUMNS = ("slide", "patient", "label", "time", "event", "features", "split", "fold", "site", "mpp", "image")
FILE_ALIASES = ("filename", "file_name", "file", "slide_file", "slide_filename", "wsi_filename", "image_name")
"""They name the slide by a file, whose extension is not part of the name."""
ALIASES: Mapping[str, tuple[str, ...]] = {
    # CLAM and TRIDENT write slide_id and case_id, STAMP FILENAME and PATIENT, the GDC the last four
    "slide": ("slide_id", "slideid", "slide_name", "slidename", "wsi", "wsi_id", "wsi_name", "image_id", *FILE_ALIASES),
    "patient": (
        *("patient_id", "patientid", "case", "case_id", "caseid", "subject", "subject_id", "subjectid"),
        *("donor", "donor_id", "participant", "participant_id", "patient_name", "patient_code", "patient_barcode"),
        *("submitter_id", "case_submitter_id", "cases_submitter_id", "bcr_patient_barcode"),
    ),
}
"""Other spellings of a column, the first that a table has is read; case, blanks and punctuation do not count."""


@dataclass(frozen=True)
class Columns:
    """The cells of a table by column: known columns under our names, others under their own.

    read_as: for columns that were found under another spelling, that spelling
    """

    path: Path
    cells: Mapping[str, list[str]]
    read_as: Mapping[str, str]

    @property
    def rows(self) -> list[dict[str, str]]:
        """The table row by row."""
        names = list(self.cells)
        return [dict(zip(names, row, strict=True)) for row in zip(*self.cells.values(), strict=True)]


def understand_columns(path: Path, table: TextTable) -> Columns:
    """Give the columns our names; two columns that could both be meant are refused with both names."""
    given = _by_key(path, table)
    cells: dict[str, list[str]] = {}
    read_as: dict[str, str] = {}
    for column in COLUMNS:
        keys = [key for key in (column, *ALIASES.get(column, ())) if key in given]
        filled = [key for key in keys if any(given[key].cells)]
        if column == "slide" and not keys and "image" in given:
            keys = ["image"]
        if not keys:
            continue
        key = next(iter(filled), keys[0])
        cells[column] = _slides(key, given[key].cells) if column == "slide" else given[key].cells
        if key != column:
            read_as[column] = given[key].name.strip()
        for other in filled[1:]:
            line = _disagreement(column, key, cells, given[other].cells)
            if line is not None:
                raise AsmilError(
                    f"{path}, line {line + 2}: columns '{given[key].name}' and '{given[other].name}' both name the "
                    f"{column} and disagree ('{given[key].cells[line]}', '{given[other].cells[line]}'); rename the one "
                    f"that is meant to '{column}' and remove the other"
                )
    used = {*cells, *(_key(name) for name in read_as.values())}
    others = {one.name.strip(): one.cells for key, one in given.items() if key not in used}
    return Columns(path, cells | others, read_as)


@dataclass(frozen=True)
class _Given:
    """A column as it is in the file."""

    name: str
    cells: list[str]


def _by_key(path: Path, table: TextTable) -> dict[str, _Given]:
    known = {*COLUMNS, *(alias for aliases in ALIASES.values() for alias in aliases)}
    given: dict[str, _Given] = {}
    for name, cells in zip(table.names, table.cells, strict=True):
        key = _key(name)
        if key not in given:
            given[key] = _Given(name, cells)
        elif key in known:
            names = f"{given[key].name!a} and {name!a}"
            raise AsmilError(f"{path}: two columns are called alike, {names}; keep the one that is meant")
    return given


def _key(name: str) -> str:
    r"""What the spellings of a column's name have in common.

    >>> _key("Case ID"), _key(" label"), _key("\ufeffslide")
    ('case_id', 'label', 'slide')
    """
    return re.sub(r"\W+", "_", folded(name)).strip("_") or name


def _slides(key: str, cells: list[str]) -> list[str]:
    if key == "image":
        return _stems(cells)
    return [without_extension(cell) for cell in cells] if key in FILE_ALIASES else cells


def _stems(paths: list[str]) -> list[str]:
    return [without_extension(PurePosixPath(path.replace("\\", "/")).name) for path in paths]


def _disagreement(column: str, key: str, cells: Mapping[str, list[str]], other: list[str]) -> int | None:
    """The first row in which two spellings of a column have different values, None if there is none."""
    if column == "slide":
        # a column that is called as we call it was meant; others may name other files of the slide
        alike = zip(_stems(cells["slide"]), _stems(other), strict=True)
        return None if key == column else next((row for row, (a, b) in enumerate(alike) if a != b), None)
    patients = cells["patient"]
    slides = cells.get("slide", [])
    if key == column and patients == slides:
        return None  # said to be independent
    split = _divided(other, patients)
    return split if split is not None or key == column else _divided(patients, other)


def _divided(groups: list[str], parts: list[str]) -> int | None:
    """The first row whose group has had another part before, None if no group has two parts."""
    first: dict[str, str] = {}
    for row, (group, part) in enumerate(zip(groups, parts, strict=True)):
        if group and first.setdefault(group, part) != part:
            return row
    return None
