"""Problems of a cohort as records, for commands that stop at the first error and for those that collect them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from asmil.errors import AsmilError, printable

SHOWN = 5
DETAILS = re.compile(r" ?\(((?:[^()]|\([^()]*\))*)\)")
"""Details in brackets, which may differ between instances of the same problem."""


@dataclass(frozen=True)
class Problem:
    """One problem: where it is, what it is, and what to do about it.

    where: the file
    slide: the slide, if the problem concerns one row of the manifest
    """

    severity: Literal["error", "warning"]
    where: str
    what: str
    todo: str = ""
    slide: str | None = None

    def __str__(self) -> str:
        where = self.where if self.slide is None else f"{self.where}, slide '{self.slide}'"
        return printable(f"{where}: {self.what}" + (f"; {self.todo}" if self.todo else ""))


@dataclass(frozen=True)
class ProblemGroup:
    """Problems of several slides or files that differ only in the slide."""

    problems: tuple[Problem, ...]

    @property
    def severity(self) -> Literal["error", "warning"]:
        return self.problems[0].severity

    def __str__(self) -> str:
        first = self.problems[0]
        if len(self.problems) == 1:
            return str(first)
        kind, where = ("slides", f"{first.where}: ") if first.slide is not None else ("files", "")
        names = [problem.slide or problem.where for problem in self.problems]
        what = first.what
        if len({problem.what for problem in self.problems}) > 1:
            details = ", ".join(DETAILS.findall(what))
            what = f"{_without_details(what)} (the first: {details})"
        if len({problem.todo for problem in self.problems}) == 1:
            todo = first.todo
        else:
            todo = f"for {names[0]!r}: {first.todo}"
        return printable(f"{where}{len(names)} {kind} ({listed(names)}): {what}" + (f"; {todo}" if todo else ""))


def grouped(problems: Sequence[Problem]) -> list[ProblemGroup]:
    """Group equal problems of several slides or files, in the order of the first of each group."""
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        where = "" if problem.slide is None else problem.where
        # the details in brackets about a damaged file differ from file to file
        key = (problem.severity, str(problem.slide is None), where, _without_details(problem.what))
        groups.setdefault(key, []).append(problem)
    return [ProblemGroup(tuple(group)) for group in groups.values()]


def _without_details(what: str) -> str:
    """The problem without details in brackets.

    >>> _without_details("the file is truncated (eof = 1000)")
    'the file is truncated'
    """
    return DETAILS.sub("", what)


class CohortError(AsmilError):
    """Problems that stop the work; `problems` contains all of them, and the message shows the first few."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(_message(self.problems))

    def __reduce__(self) -> tuple[type[CohortError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


def fail(where: object, what: str, todo: str) -> NoReturn:
    """Raise a single problem."""
    raise CohortError([Problem("error", str(where), what, todo)])


def raise_errors(problems: Sequence[Problem]) -> None:
    """Raise if any of the problems is an error; warnings are ignored."""
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise CohortError(errors)


def problems_of(error: AsmilError, where: object) -> tuple[Problem, ...]:
    """The problems of any AsmilError."""
    if isinstance(error, CohortError):
        return error.problems
    # some messages already contain the location
    return (Problem("error", str(where), str(error).removeprefix(f"{where}: ")),)


def listed(names: Sequence[object]) -> str:
    """The first few names in quotes, and how many more there are.

    >>> listed(["a", "b"])
    "'a', 'b'"
    """
    shown = ", ".join(repr(str(name)) for name in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _message(problems: Sequence[Problem]) -> str:
    groups = grouped(problems)
    if len(groups) == 1:
        return str(groups[0])
    lines = [f"{len(problems)} problems:", *(f"  - {group}" for group in groups[:SHOWN])]
    if len(groups) > SHOWN:
        lines.append(f"  and {len(groups) - SHOWN} more; `asmil check` prints all")
    return "\n".join(lines)
