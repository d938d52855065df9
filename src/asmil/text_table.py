"""Tables of slides, CSV or Parquet, as text: nothing is guessed, so slide 007 keeps its zeros and label 1 stays "1"."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from asmil.errors import AsmilError

PARQUET_SUFFIXES = (".parquet", ".pq")


@dataclass(frozen=True)
class TextTable:
    """The columns of a table in order; cells have no surrounding blanks, an empty cell is the empty text.

    names: as they are in the file, so that two of them may be equal
    """

    names: tuple[str, ...]
    cells: tuple[list[str], ...]


def read_text_table(path: Path) -> TextTable:
    """Read a CSV (commas, UTF-8) or Parquet file; a file that is not a table or has no rows is refused."""
    try:
        table = _read_parquet(path) if path.suffix.lower() in PARQUET_SUFFIXES else _read_csv(path)
    except AsmilError:
        raise
    except FileNotFoundError:
        _fail(path, "the table does not exist", "correct its path")
    except UnicodeDecodeError:
        _fail(path, "the table is not UTF-8 text", "save it as CSV with encoding UTF-8, or as Parquet")
    # what Parquet readers raise on damaged files are these as well
    except (OSError, ValueError, OverflowError, KeyError, TypeError, csv.Error) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        _fail(path, f"the table cannot be read ({reason})", "save it again as CSV with commas, or as Parquet")
    if not table.cells or not table.cells[0]:
        _fail(path, "the table has no rows", "give it one row per slide")
    return table


def _read_csv(path: Path) -> TextTable:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, skipinitialspace=True, strict=True)
        header = next((row for row in reader if row), None)
        if header is None:
            _fail(path, "the table is empty", "give it a header line and one row per slide")
        rows = []
        for row in reader:
            if len(row) > len(header):
                what = f"line {reader.line_num} has more cells than the header line"
                _fail(path, what, "name every column, quote cells with commas")
            if row:
                rows.append(row + [""] * (len(header) - len(row)))
    cells = zip(*rows, strict=True) if rows else ([] for _ in header)
    return _named(header, ([cell.strip() for cell in column] for column in cells))


def _read_parquet(path: Path) -> TextTable:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path, partitioning=None)
        # without pandas, which makes floats of integers with gaps and takes an index away from the columns
        cells = [[_text(value) for value in column.to_pylist()] for column in table.columns]
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from error
    return _named(table.column_names, cells)


def _named(names: Iterable[str], cells: Iterable[list[str]]) -> TextTable:
    """Without the columns that have no name, such as the numbers of the rows that pandas writes."""
    named = [(name, column) for name, column in zip(names, cells, strict=True) if name.strip()]
    return TextTable(tuple(name for name, _ in named), tuple(column for _, column in named))


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
