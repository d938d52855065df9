"""Oracle files that are no model's: rows of given numbers with official answers beside them.

The module of such a kind gets a sheet: the file with every answer taken out, so that it sees what is asked and never
what is right. It returns what it found in the same nesting, and both are compared value by value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asmil.errors import AsmilError
from oracles.compare import Comparison

Content = Mapping[str, Any]

INFORMATION = re.compile(
    r"^(about|description|rule|sources?|notes?|versions)$"
    r"|^max_diff_|^nsf_plain_|^nsf_released_|^numpy_matrix_rank"
)
"""Text, and numbers that other formulas gave: for the reader of a file, not to be matched."""


class Absent(AsmilError):
    """What a file asks about (a slide) is not at hand, so that nothing can be compared."""


class OrNull(float):
    """A number that a file may also leave out as null."""


@dataclass(frozen=True)
class Allowance:
    """The largest absolute error of a value, and the scale to which its relative error is told."""

    error: float
    scale: float = 1.0


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    given: the keys of what its rows are given; all else is asked
    answer: from a sheet to the answers, nested alike
    allowance: of one official value (or list of values), by its key and the mapping it stands in
    locate: what the answers need that lies in other files, found from the folder of the file and added to the sheet
    judge: a comparison of its own for a path, official and our value; None where values are compared as always
    report: a remark on a file and our answers, for the line that is printed
    """

    name: str
    recognizes: Callable[[Content], bool]
    given: Collection[str]
    answer: Callable[[Content], Mapping[str, Any]]
    allowance: Callable[[str, NDArray[np.float64], Content], Allowance]
    locate: Callable[[Content, Path], Content] | None = None
    judge: Callable[[str, Any, Any], Comparison | None] | None = None
    report: Callable[[Content, Content], str] | None = None


def check_sheet(kind: Kind, content: Content, folder: Path) -> tuple[list[Comparison], str]:
    """Answer the sheet of a file in a folder and compare with the file; the comparisons, and a remark."""
    sheet = withhold(content, kind.given)
    if kind.locate is not None:
        sheet |= kind.locate(sheet, folder)
    answers = kind.answer(sheet)
    comparisons = [
        _compare(kind, path, official, ours, beside)
        for path, official, ours, beside in _paired(content, answers, kind.given)
    ]
    return comparisons, kind.report(content, answers) if kind.report is not None else ""


def withhold(content: Any, given: Collection[str]) -> Any:
    """The file with None for every value that is not given."""
    if isinstance(content, Mapping):
        return {key: value if key in given else withhold(value, given) for key, value in content.items()}
    return [withhold(row, given) for row in content] if is_rows(content) else None


def is_rows(value: Any) -> bool:
    """Whether a value is a list of mappings, with at least one."""
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


_MISSING = object()


def _paired(
    content: Content, answers: Any, given: Collection[str], path: str = ""
) -> Iterator[tuple[str, Any, Any, Content]]:
    """Path, official value, ours (or `_MISSING`), and the mapping in which the official value stands."""
    for key, value in content.items():
        if key in given or INFORMATION.search(key) or _is_text(value) or value == []:
            continue
        answer = answers.get(key, _MISSING) if isinstance(answers, Mapping) else _MISSING
        here = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            yield from _paired(value, answer, given, here)
        elif is_rows(value):
            for place, row in enumerate(value):
                answered = answer[place] if isinstance(answer, list) and place < len(answer) else _MISSING
                yield from _paired(row, answered, given, f"{here}[{row.get('name', row.get('case', place))}]")
        else:
            yield here, value, answer, content


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.lower().lstrip("+-") not in ("inf", "infinity", "nan")


def _compare(kind: Kind, path: str, expected: Any, found: Any, beside: Content) -> Comparison:
    if found is _MISSING:
        return _differing(path, "not answered")
    judged = kind.judge(path, expected, found) if kind.judge is not None else None
    if judged is not None:
        return judged
    if expected is None or found is None:
        same = found is expected or isinstance(found, OrNull)
        return Comparison(path, 0.0, 1.0, True) if same else _differing(path, f"{found} instead of {expected}")
    official, ours = np.asarray(expected, dtype=np.float64), np.asarray(found, dtype=np.float64)
    if official.shape != ours.shape:
        return _differing(path, f"shape {ours.shape} instead of {official.shape}")
    allowance = kind.allowance(path.rsplit(".", 1)[-1], official, beside)
    differing = official != ours  # equal infinities have no difference
    error = float(np.abs(official[differing] - ours[differing]).max(initial=0.0))
    passed = math.isfinite(error) and error <= allowance.error
    return Comparison(path, error, allowance.scale, passed, "" if passed else f"off by {error:.2e}")


def _differing(path: str, reason: str) -> Comparison:
    return Comparison(path, math.inf, 1.0, False, reason)
