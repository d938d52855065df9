"""The verb `claims`: what the ASMIL paper claims, with a verdict for each claim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from asmil.cli.options import Json, argument, option


def claims(
    names: Annotated[list[str] | None, argument("Claims to list. Default: all.", metavar="[CLAIM]...")] = None,
    runs: Annotated[
        Path | None, option("Folder of `asmil paper` results to use instead of those that come with asmil.")
    ] = None,
    verdict: Annotated[str | None, option("Only claims with this verdict, e.g. supported.")] = None,
    as_json: Json = False,
) -> None:
    """List the claims of the ASMIL paper with a verdict: supported, not supported, undecided or not testable here.

    Mathematical claims are tested each time, claims about printed numbers are recalculated, costs are counted, and the
    others are decided by trainings: your own of --runs, or those that come with the package, on synthetic stand-ins
    and, where they refute a claim, on real tissue.

    Example: asmil claims --verdict supported
    """
    from collections import Counter

    from asmil.api import benchmarks
    from asmil.console import print_json, results, say
    from asmil.reporting import Table, print_table

    ruled = benchmarks.claims(names or (), runs=runs)
    shown = [(claim.claim, claim.ruling) for claim in ruled if verdict in (None, claim.ruling.verdict)]
    if as_json:
        print_json(
            [{"id": claim.id, "claim": claim.claim, "where": claim.where, **ruling.__dict__} for claim, ruling in shown]
        )
        return
    console = results()
    counts = Counter(claim.ruling.verdict for claim in ruled)
    say(console, f"{len(ruled)} claims: {', '.join(f'{count} {word}' for word, count in counts.items())}.")
    if any(claim.ruling.how == "run" for claim in ruled):
        say(console, "Verdicts by runs refer to synthetic stand-ins, not to the data of the paper.")
    rows = []
    for claim, ruling in shown:
        how = "" if ruling.how == "none" else f" ({ruling.how})"
        rows.append([claim.id, claim.claim, ruling.verdict + how, ruling.why, ruling.run])
    print_table(Table(["claim", "what it says", "verdict", "why", "run"], rows), console)
