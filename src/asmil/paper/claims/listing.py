"""All claims with their rulings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from asmil.paper.claims import counts, in_print, mathematics, runs
from asmil.paper.claims.measured import Measured
from asmil.paper.claims.ruling import Ruling
from asmil.settings.config import Settings
from asmil.settings.documents import parse_yaml, validated


class Claim(Settings):
    """A claim of the paper. where: in the paper; expected: what a test of it should find."""

    id: str
    claim: str
    where: str
    expected: str


@dataclass(frozen=True)
class Ruled:
    """A claim and what was decided about it."""

    claim: Claim
    ruling: Ruling


NEEDS_SLIDES = {
    "affine-share": "a count of real slides: run `asmil affine` on your cohort; every slide with more tiles than "
    "features plus one counts",
}
NO_RULE = {
    "nsf-selective": "NSF and softmax of the same scores order the tiles alike, so at an equal rate of false positives "
    "nothing changes; what a fixed threshold changes is not decided",
}


@cache
def claims() -> tuple[Claim, ...]:
    """The claims, in the order of the paper's list."""
    text = files("asmil.paper").joinpath("data/claims.yaml").read_text(encoding="utf-8")
    return tuple(validated(parse_yaml(text)["claims"], list[Claim], "data/claims.yaml", "install asmil again"))


def rule(claim: Claim, measured: Measured) -> Ruling:
    """Decide one claim."""
    for rules in (mathematics.RULES, in_print.RULES, counts.RULES):
        if claim.id in rules:
            return rules[claim.id]()
    if claim.id in NEEDS_SLIDES:
        return Ruling("not testable here", "none", NEEDS_SLIDES[claim.id])
    if claim.id in NO_RULE:
        return Ruling("undecided", "mathematics", NO_RULE[claim.id])
    table, by_runs = runs.RULES[claim.id]
    otherwise = {**in_print.WITHOUT_RUNS, **counts.WITHOUT_RUNS}.get(claim.id)
    try:
        if measured.has(table):
            return by_runs(measured)
        missing = f"no results of `asmil paper {table}` yet"
    except runs.Missing as error:
        missing = str(error)
    return Ruling("undecided", "run", missing, measured.where(table)) if otherwise is None else otherwise()


def rule_all(measured: Measured) -> list[Ruled]:
    """Decide every claim."""
    return [Ruled(claim, rule(claim, measured)) for claim in claims()]
