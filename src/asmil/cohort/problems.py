"""What is wrong with a cohort, as records: one list for the command that stops and the one that collects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from asmil.errors import AsmilError, printable

SHOWN = 5


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where it is, what it is, and what to do about it."""

    severity: Literal["error", "warning"]
    where: str
    what: str
    todo: str = ""

    def __str__(self) -> str:
        return printable(f"{self.where}: {self.what}" + (f"; {self.todo}" if self.todo else ""))


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
    if len(problems) == 1:
        return str(problems[0])
    lines = [f"{len(problems)} problems:", *(f"  - {problem}" for problem in problems[:SHOWN])]
    if len(problems) > SHOWN:
        lines.append(f"  and {len(problems) - SHOWN} more")
    return "\n".join(lines)
