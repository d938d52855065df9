"""Tables of slides (CSV, Excel, Parquet) as text: slide 007 keeps its zeros and label 1 stays "1".

What had to be guessed to read a table (its separator, its encoding, its sheet) is in `TextTable.notes`.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from asmil.errors import AsmilError
from asmil.tables.names import plain_spaces

if TYPE_CHECKING:
    import pandas as pd

PARQUET_SUFFIXES = (".parquet", ".pq")
EXCEL_SUFFIXES = (".xlsx", ".xlsm")
TABLE_SUFFIXES = (".csv", ".tsv", ".txt", *PARQUET_SUFFIXES, *EXCEL_SUFFIXES)
UNREADABLE = {
    ".xls": "an Excel file from before 2007",
    ".xlsb": "a binary Excel file",
    ".ods": "an OpenDocument sheet",
    ".numbers": "a Numbers sheet",
}
"""Spreadsheets that asmil does not read, by their ending."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
OLD_WINDOWS = "cp1252"
"""The encoding of Western European Windows and Excel, if it is not Unicode; it includes the printable ISO 8859-1."""
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
EXCEL_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, AttributeError, AssertionError)
"""What damaged Excel files raise besides the errors of all tables; RuntimeError: encrypted or unknown compression."""
LAST_EXCEL_ROW = 1_048_576
_SEPARATOR_LINE = re.compile(r'^"?sep=(.)"?$')


@dataclass(frozen=True)
class TextTable:
    """The columns of a table in order; cells have no surrounding blanks, an empty cell is the empty text.

    names: with plain spaces (`plain_spaces`); two of them may be equal
    cells: as they are in the file; `plain_spaces` is for those that are no paths
    notes: how the file was read, if it is not plain CSV with commas in UTF-8
    """

    names: tuple[str, ...]
    cells: tuple[list[str], ...]
    notes: tuple[str, ...] = ()


def is_table(path: Path) -> bool:
    """Whether a path has the ending of a table, readable or not."""
    return path.suffix.lower() in (*TABLE_SUFFIXES, *UNREADABLE)


def read_text_table(path: Path, sheet: str | None = None) -> TextTable:
    """Read a CSV (commas, semicolons or tabs), Excel or Parquet file; one without rows is refused.

    sheet: the sheet of an Excel file; default: the only one that has rows
    """
    suffix = path.suffix.lower()
    if sheet is not None and suffix not in EXCEL_SUFFIXES:
        _fail(path, f"the table has no sheet {sheet!r}, because it is not an Excel file", "leave the sheet out")
    if suffix in UNREADABLE:
        _fail(path, f"{UNREADABLE[suffix]} cannot be read", "save it as .xlsx or as CSV")
    try:
        if suffix in PARQUET_SUFFIXES:
            table = _read_parquet(path)
        else:
            table = _read_excel(path, sheet) if suffix in EXCEL_SUFFIXES else _read_csv(path)
    except AsmilError:
        raise
    except FileNotFoundError:
        _fail(path, "the table does not exist", "correct its path")
    except UnicodeDecodeError:
        _fail(path, "the table is not text", "save it as CSV with encoding UTF-8, as .xlsx or as Parquet")
    # the readers of Parquet and Excel also raise these on damaged files
    except (OSError, ValueError, OverflowError, LookupError, TypeError, SyntaxError, csv.Error) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        _fail(path, f"the table cannot be read ({reason})", "save it again as CSV with commas, .xlsx or Parquet")
    if not table.cells or not table.cells[0]:
        _fail(path, "the table has no rows", "give it one row per slide")
    return table


def without_categories(table: pd.DataFrame) -> pd.DataFrame:
    """The table with categorical columns converted to their values: pandas groups and sorts categories differently."""
    categorical = [name for name, kind in table.dtypes.items() if kind == "category"]
    return table.astype(dict.fromkeys(categorical, object)).infer_objects() if categorical else table


def _read_csv(path: Path) -> TextTable:
    text, notes = _decoded(path.read_bytes())
    text, separator = _separator(text)
    if separator != ",":
        notes.append(f"columns are separated by {SEPARATORS.get(separator, repr(separator))}")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    header = next((row for row in reader if row), None)
    if header is None:
        _fail(path, "the table is empty", "give it a header line and one row per slide")
    rows = []
    for row in reader:
        while len(row) > len(header) and not row[-1].strip():
            row.pop()  # some programs end every line with a separator
        if len(row) > len(header):
            what = f"line {reader.line_num} has more cells than the header line"
            _fail(path, what, f"name every column, quote cells with {SEPARATORS.get(separator, 'separators')}")
        if any(cell.strip() for cell in row):
            rows.append(row + [""] * (len(header) - len(row)))
    cells = zip(*rows, strict=True) if rows else ([] for _ in header)
    return _named(header, ([cell.strip() for cell in column] for column in cells), notes)


def _decoded(content: bytes) -> tuple[str, list[str]]:
    """The text of a file and, if it is not plain UTF-8, which encoding it was read in."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content.decode(encoding), ["the encoding is UTF-16"] if encoding == "utf-16" else []
    if b"\0" in content[:200]:
        # UTF-16 without a mark: of the two bytes of an ASCII letter, the second is zero, or the first
        encoding = "utf-16-le" if content[1:2] == b"\0" else "utf-16-be"
        return content.decode(encoding), ["the encoding is UTF-16"]
    try:
        return content.decode("utf-8"), []
    except UnicodeDecodeError as error:
        text = content.decode(OLD_WINDOWS)
        words = re.findall(r"[^ \t\r\n,;]+", text[max(0, error.start - 40) :])
        odd = next(word for word in words if not word.isascii())
        note = f"the file is not UTF-8 and was read as Windows-1252 (Latin 1), e.g. {odd!r}; save it as UTF-8 if wrong"
        return text, [note]


def _separator(text: str) -> tuple[str, str]:
    """The text without a line `sep=;`, and the separator: the most frequent one in the header line."""
    text = text.lstrip("\r\n")
    header, _, rest = text.partition("\n")
    if stated := _SEPARATOR_LINE.match(header.strip("\r")):
        return rest, stated[1]
    unquoted = re.sub(r'"[^"]*"', "", header)
    return text, max(SEPARATORS, key=unquoted.count)


def _read_excel(path: Path, wanted: str | None) -> TextTable:
    import openpyxl

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about styles and other parts that are not read
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
            try:
                sheets = {sheet.title: _filled_rows(sheet) for sheet in book.worksheets}
            finally:
                book.close()
    except zipfile.BadZipFile:
        _fail(path, "the file is damaged, encrypted or not an Excel file (.xlsx)", "save it again as .xlsx or as CSV")
    except EXCEL_ERRORS as error:
        raise ValueError(str(error) or type(error).__name__) from error
    filled = {title: rows for title, rows in sheets.items() if len(rows) > 1}
    names = ", ".join(repr(title) for title in filled)
    if wanted is not None and wanted not in filled:
        _fail(path, f"there is no sheet {wanted!r} with rows", f"choose one of {names}" if filled else "add rows to it")
    if wanted is None and len(filled) > 1:
        todo = "choose one with `asmil import-manifest --sheet NAME`, or save it in a file of its own"
        _fail(path, f"{len(filled)} sheets have rows ({names})", todo)
    if not filled:
        _fail(path, "the table has no rows", "give it a header line and one row per slide")
    title = wanted if wanted is not None else next(iter(filled))
    header, *body = filled[title]
    width = len(header)
    notes = [f"sheet {title!r} is read"] if len(sheets) > 1 else []
    beyond = sum(any(row[width:]) for row in body)
    if beyond:
        notes.append(f"cells to the right of the header line are not read (in {beyond} rows)")
    rows = [row for row in body if any(row[:width])]
    named = [column for column, name in enumerate(header) if name]
    cells = ([row[column] if column < len(row) else "" for row in rows] for column in named)
    return _named((header[column] for column in named), cells, notes)


def _filled_rows(sheet: Any) -> list[list[str]]:
    """The rows that are not empty, each to its last filled cell."""
    # the size that a file states may be that of a single stray cell, and rows would be filled up to it
    sheet.reset_dimensions()
    rows = []
    for number, values in enumerate(sheet.iter_rows(values_only=True), start=1):
        if number > LAST_EXCEL_ROW:
            raise ValueError(f"sheet {sheet.title!r} has a row after row {LAST_EXCEL_ROW}, the last of Excel")
        row = [_text(value) for value in values]
        while row and not row[-1]:
            row.pop()
        if row:
            rows.append(row)
    return rows


def _read_parquet(path: Path) -> TextTable:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path, partitioning=None)
        # not with pandas, which turns integers with gaps into floats and removes an index from the columns
        cells = [[_text(value) for value in column.to_pylist()] for column in table.columns]
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from error
    return _named(table.column_names, cells)


def _named(names: Iterable[str], cells: Iterable[list[str]], notes: Iterable[str] = ()) -> TextTable:
    """The table of the columns that have a name; the row numbers that pandas writes have none."""
    named = [(plain_spaces(name), column) for name, column in zip(names, cells, strict=True)]
    kept = [(name, column) for name, column in named if name]
    return TextTable(tuple(name for name, _ in kept), tuple(column for _, column in kept), tuple(notes))


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    # a column of integers with a gap in it is stored as floats
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def _fail(path: Path, what: str, todo: str) -> NoReturn:
    raise AsmilError(f"{path}: {what}; {todo}")
