"""Benchmark sets from SVM-light text, in the two forms that carry bags."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from asmil.classic.bag_set import BagSet, make_bag_set
from asmil.errors import AsmilError

FORMS = "`label qid:bag 1:value ...` and `instance:bag:label 1:value ...`"
_TRIPLE = re.compile(r"^[^:\s]+:(?P<bag>[^:\s]+):(?P<label>[^:\s]+)$")
_QID = re.compile(r"^qid:(?P<bag>\S+)$")
_LARGEST_INDEX = 1_000_000
_LARGEST_TABLE = 250_000_000
"""Values, of all instances; more are a mistake in an index, and would not fit into the memory of most machines."""


def is_svmlight(line: str) -> bool:
    """Whether a line of text has one of the two forms."""
    words = line.split()
    return bool(words) and (bool(_TRIPLE.match(words[0])) or (len(words) > 1 and bool(_QID.match(words[1]))))


def read_svmlight(path: Path) -> BagSet:
    """Lines `label qid:bag 1:value ...` or `instance:bag:label 1:value ...`.

    Indices begin at 1; what is not written is 0; what follows a # is not read.
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
            raise AsmilError(f"{path}: line {number} names no bag; accepted are {FORMS}")
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
                f"{path}: {word!r} in line {number} is no index:value with an index from 1 on; accepted are {FORMS}"
            )
        row[column] = amount
    return row
