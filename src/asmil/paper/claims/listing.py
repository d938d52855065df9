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
    """A claim of the paper.

    where: in the paper; expected: what a test of it should find
    compare, lead: the trainings that decide it; ruling: of a claim that nothing here decides
    """

    id: str
    claim: str
    where: str
    expected: str
    compare: runs.Comparison | None = None
    lead: runs.Lead | None = None
    ruling: Ruling | None = None


@dataclass(frozen=True)
class Ruled:
    """A claim and what was decided about it."""

    claim: Claim
    ruling: Ruling


@cache
def claims() -> tuple[Claim, ...]:
    """The claims, in the order of the paper's list."""
    text = files("asmil.paper").joinpath("data/claims.yaml").read_text(encoding="utf-8")
    return tuple(validated(parse_yaml(text)["claims"], list[Claim], "data/claims.yaml", "install asmil again"))


def rule(claim: Claim, measured: Measured) -> Ruling:
    """Decide one claim."""
    if claim.ruling is not None:
        return claim.ruling
    for rules in (mathematics.RULES, in_print.RULES, counts.RULES):
        if claim.id in rules:
            return rules[claim.id]()
    rule_by_runs = claim.compare or claim.lead
    table, decide = (rule_by_runs.table, rule_by_runs.decide) if rule_by_runs else runs.RULES[claim.id]
    try:
        if measured.has(table):
            return decide(measured)
        missing = f"no results of `asmil paper {table}` yet"
    except runs.Missing as error:
        missing = str(error)
    otherwise = {**in_print.WITHOUT_RUNS, **counts.WITHOUT_RUNS}.get(claim.id)
    return Ruling("undecided", "run", missing, measured.where(table)) if otherwise is None else otherwise()


def rule_all(measured: Measured) -> list[Ruled]:
    """Decide every claim."""
    return [Ruled(claim, rule(claim, measured)) for claim in claims()]
