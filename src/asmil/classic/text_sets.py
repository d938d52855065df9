"""Benchmark sets from text: UCI's delimited tables, and SVM-light files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from asmil.classic.bag_set import BagSet, make_bag_set
from asmil.errors import AsmilError
from asmil.tables.arrays import Floats

BAG_COLUMNS = ("bag", "bag_id", "molecule_name")
LABEL_COLUMNS = ("label", "class")
OTHER_COLUMNS = ("conformation_name", "instance", "instance_id")
FORMS = (
    "molecule, conformation, features ..., class (UCI); label, bag, features ... (numbers only); or a header line with "
    "bag and label"
)


def read_delimited(path: Path) -> BagSet:
    """A table with commas.

    UCI: `molecule_name,conformation_name,f1,...,class`, no header, the molecule is text
    numbers only: `label,bag,f1,...`, no header
    with a header: columns `bag` (or `bag_id`, `molecule_name`) and `label` (or `class`); all others are features,
        except `conformation_name`, `instance` and `instance_id`
    """
    try:
        table = pd.read_csv(path, header=None, dtype=str, skipinitialspace=True, comment="#")
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise AsmilError(f"{path}: it is not a comma-separated table ({reason}); accepted are: {FORMS}") from None
    first = [str(field).strip().lower() for field in table.iloc[0]]
    if set(first) & set(BAG_COLUMNS) and set(first) & set(LABEL_COLUMNS):
        table = table.iloc[1:].set_axis(first, axis=1)
        _refuse_repeated(path, first)
        bag, label = _only(path, first, BAG_COLUMNS), _only(path, first, LABEL_COLUMNS)
        features = [name for name in first if name not in (bag, label, *OTHER_COLUMNS)]
        return make_bag_set(path, _numeric(path, table, features, 2), table[bag], _numeric(path, table, [label], 2))
    return _without_header(path, table, molecules=not _is_number(first[0]))


def _without_header(path: Path, table: pd.DataFrame, molecules: bool) -> BagSet:
    width = table.shape[1]
    bag, label = (0, width - 1) if molecules else (1, 0)
    columns = range(2, width - 1) if molecules else range(2, width)
    if not columns:
        raise AsmilError(f"{path}: its lines have {width} fields; accepted are: {FORMS}")
    return make_bag_set(path, _numeric(path, table, columns, 1), table[bag], _numeric(path, table, [label], 1))


def _refuse_repeated(path: Path, header: list[str]) -> None:
    repeated = sorted({field for field in header if header.count(field) > 1})
    if repeated:
        raise AsmilError(f"{path}: its header names {', '.join(repeated)} more than once; rename or remove columns")


def _only(path: Path, header: list[str], names: Sequence[str]) -> str:
    columns = [field for field in header if field in names]
    if len(columns) > 1:
        raise AsmilError(f"{path}: its header has {' and '.join(columns)}, which mean the same; keep one of them")
    return columns[0]


def _numeric(path: Path, table: pd.DataFrame, columns: Sequence[int] | Sequence[str], first_line: int) -> Floats:
    """Columns as numbers; a cell that is not a number is an error that names its row and column."""
    texts = table[list(columns)]
    values: Floats = texts.apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
    wrong = np.argwhere(np.isnan(values))
    if len(wrong):
        row, column = wrong[0]
        raise AsmilError(
            f"{path}: {texts.iat[row, column]!r} in row {row + first_line}, column {columns[column]} is not a number; "
            f"accepted are: {FORMS}"
        )
    return values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


SVMLIGHT_FORMS = "`label qid:bag 1:value ...` and `instance:bag:label 1:value ...`"
_TRIPLE = re.compile(r"^[^:\s]+:(?P<bag>[^:\s]+):(?P<label>[^:\s]+)$")
_QID = re.compile(r"^qid:(?P<bag>\S+)$")
_LARGEST_INDEX = 1_000_000
_LARGEST_TABLE = 250_000_000
"""Values of all instances; a larger number is a mistake in an index, and would not fit into memory."""


def is_svmlight(line: str) -> bool:
    """Whether a line of text has one of the two forms."""
    words = line.split()
    return bool(words) and (bool(_TRIPLE.match(words[0])) or (len(words) > 1 and bool(_QID.match(words[1]))))


def read_svmlight(path: Path) -> BagSet:
    """Lines `label qid:bag 1:value ...` or `instance:bag:label 1:value ...`.

    Indices start at 1; missing indices are 0; text after a # is a comment.
    """
    bags: list[str] = []
    labels: list[str] = []
    rows: list[dict[int, float]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if triple := _TRIPLE.match(words[0]):
            bag, label, values = triple["bag"], triple["label"], words[1:]
        elif len(words) > 1 and (qid := _QID.match(words[1])):
            bag, label, values = qid["bag"], words[0], words[2:]
        else:
            raise AsmilError(f"{path}: line {number} names no bag; accepted are {SVMLIGHT_FORMS}")
        bags.append(bag)
        labels.append(label)
        rows.append(_parse(path, number, values))
    width = max((max(row, default=0) for row in rows), default=0)
    if len(rows) * width > _LARGEST_TABLE:
        raise AsmilError(
            f"{path}: {len(rows)} instances of {width} features are too many; correct the largest index, or leave out "
            "features"
        )
    features = np.zeros((len(rows), width), dtype=np.float64)
    for index, row in enumerate(rows):
        features[index, [column - 1 for column in row]] = list(row.values())
    return make_bag_set(path, features, bags, labels)


def _parse(path: Path, number: int, words: list[str]) -> dict[int, float]:
    row = {}
    for word in words:
        index, _, value = word.partition(":")
        try:
            column, amount = int(index), float(value)
        except ValueError:
            column, amount = 0, 0.0
        if not 1 <= column <= _LARGEST_INDEX:
            raise AsmilError(
                f"{path}: {word!r} in line {number} is not index:value with an index >= 1; accepted are "
                f"{SVMLIGHT_FORMS}"
            )
        row[column] = amount
    return row
