"""A verdict on a claim, and how it was reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["supported", "not supported", "undecided", "not testable here"]
How = Literal["mathematics", "print", "count", "run", "tissue", "none"]


@dataclass(frozen=True)
class Ruling:
    """What was decided about a claim.

    how: by mathematics (property tests), by arithmetic on printed numbers, by counting, by trainings on stand-ins or
        the user's data (run), or by differences on real tissue (tissue)
    why: the numbers behind it; run: the folder or file of the trainings
    """

    verdict: Verdict
    how: How
    why: str
    run: str = ""

    @property
    def decided(self) -> bool:
        """Whether the claim is supported or not."""
        return self.verdict in ("supported", "not supported")


def ruled(how: How, supported: bool, why: str, run: str = "") -> Ruling:
    """Supported or not."""
    return Ruling("supported" if supported else "not supported", how, why, run)
