"""What is wrong with a cohort, as records: one list for the command that stops and the one that collects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from asmil.errors import AsmilError, printable

SHOWN = 5
DETAILS = re.compile(r" ?\(((?:[^()]|\([^()]*\))*)\)")
"""Remarks in brackets, which may differ where the problem is the same."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where it is, what it is, and what to do about it.

    where: the file
    slide: the slide that it is about, where it is about one row of the manifest
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
    """Problems of several slides or files that are the same but for the slide."""

    problems: tuple[Problem, ...]

    @property
    def severity(self) -> Literal["error", "warning"]:
        """Of all of them."""
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
    """Problems with those that say the same of many slides or files together, in the order of the first of each."""
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        place = "" if problem.slide is None else problem.where
        # the numbers in brackets that a damaged file is described by differ from file to file
        key = (problem.severity, str(problem.slide is None), place, _without_details(problem.what))
        groups.setdefault(key, []).append(problem)
    return [ProblemGroup(tuple(group)) for group in groups.values()]


def _without_details(what: str) -> str:
    """What is wrong without remarks in brackets.

    >>> _without_details("the file is truncated (eof = 1000)")
    'the file is truncated'
    """
    return DETAILS.sub("", what)


class CohortError(AsmilError):
    """Problems that stop the work; `problems` has them all, the message shows the first few."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(_message(self.problems))

    def __reduce__(self) -> tuple[type[CohortError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


def fail(where: object, what: str, todo: str) -> NoReturn:
    """Stop with one problem."""
    raise CohortError([Problem("error", str(where), what, todo)])


def raise_errors(problems: Sequence[Problem]) -> None:
    """Stop if any of the problems is an error; warnings pass."""
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise CohortError(errors)


def problems_of(error: AsmilError, where: object) -> tuple[Problem, ...]:
    """The problems behind an error, whoever raised it."""
    if isinstance(error, CohortError):
        return error.problems
    # some name the place themselves
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
