"""Facts for checklists: each is a sentence from a run or its validation, or None if it is unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asmil.errors import AsmilError
from asmil.evaluation.checklists.known import VALIDATION_FILE, Known

Rule = Callable[[Known], str | None]


@dataclass(frozen=True)
class Fact:
    """A sentence and the file that it comes from."""

    text: str
    source: str


RULES: dict[str, tuple[Rule, str]] = {}
"""By the name that the files of checklists use: how a fact is found, and the file it comes from."""


def fact(source: str) -> Callable[[Rule], Rule]:
    """Make a function a fact; the function's name without the underscore is the name of the fact."""

    def keep(rule: Rule) -> Rule:
        RULES[rule.__name__.removeprefix("_")] = (rule, source)
        return rule

    return keep


def known_facts(known: Known) -> dict[str, Fact]:
    """All facts that are known, by name."""
    found = {}
    for name, (rule, source) in RULES.items():
        try:
            text = rule(known)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            if source != VALIDATION_FILE:
                raise
            raise AsmilError(
                f"{VALIDATION_FILE}: {name} cannot be read from it ({error}); write it again with `asmil validate` of "
                "this version"
            ) from None
        if text:
            found[name] = Fact(text, source)
    return found
