"""All claims with their rulings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from asmil.paper.claims import counts, in_print, mathematics, runs
from asmil.paper.claims.measured import Measured
from asmil.paper.claims.ruling import Ruling
from asmil.paper.claims.tissue import OnTissue
from asmil.settings.config import Settings
from asmil.settings.documents import parse_yaml, validated


class Claim(Settings):
    """A claim of the paper.

    where: in the paper; expected: what a test of it should find
    compare: the trainings that decide it; ruling: of a claim that nothing here decides
    tissue: differences on real tissue that can refute it
    substitute: how the measurement differs from the paper's own, so that it cannot decide the claim
    """

    id: str
    claim: str
    where: str
    expected: str
    compare: runs.Comparison | None = None
    tissue: OnTissue | None = None
    ruling: Ruling | None = None
    substitute: str | None = None


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
    """Decide one claim; a measurement that is not the paper's own leaves it undecided."""
    ruling = _measured_ruling(claim, measured)
    if claim.tissue is not None and not measured.is_of_user(ruling.run):
        ruling = claim.tissue.judged(ruling)
    if claim.substitute is None:
        return ruling
    points = f"points to {ruling.verdict!r}, " if ruling.decided else ""
    return replace(ruling, verdict="undecided", why=f"{points}by a substitute ({claim.substitute}): {ruling.why}")


def _measured_ruling(claim: Claim, measured: Measured) -> Ruling:
    if claim.ruling is not None:
        return claim.ruling
    for rules in (mathematics.RULES, in_print.RULES, counts.RULES):
        if claim.id in rules:
            return rules[claim.id]()
    compare = claim.compare
    table, decide = (compare.table, compare.decide) if compare else runs.RULES[claim.id]
    return _by_runs(table, decide, measured)


def _by_runs(table: str, decide: Callable[[Measured], Ruling], measured: Measured) -> Ruling:
    try:
        if not measured.has(table):
            raise runs.Missing(f"no results of `asmil paper {table}` yet")
        return decide(measured)
    except runs.Missing as error:
        return Ruling("undecided", "run", str(error), measured.where(table))


def rule_all(measured: Measured) -> list[Ruled]:
    """Decide every claim."""
    return [Ruled(claim, rule(claim, measured)) for claim in claims()]
