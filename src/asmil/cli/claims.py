"""The verb `claims`: what the ASMIL paper claims, with a verdict for each claim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def claims(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[CLAIM]...", help="Claims to list. Default: all.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of `asmil paper` results to use instead of those that come with asmil.")
    ] = None,
    verdict: Annotated[str | None, typer.Option(help="Only claims with this verdict, e.g. supported.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the claims of the ASMIL paper with a verdict: supported, not supported, undecided or not testable here.

    Mathematical claims are tested each time, claims about printed numbers are recalculated, costs are counted, and the
    others are decided by trainings on synthetic stand-ins: those of --runs, or the ones that come with the package.

    Example: asmil claims --verdict supported
    """
    from collections import Counter

    from asmil.console import print_json, results, say
    from asmil.errors import AsmilError, did_you_mean
    from asmil.paper.claims.listing import Ruled, rule
    from asmil.paper.claims.listing import claims as all_claims
    from asmil.paper.claims.measured import Measured
    from asmil.reporting import Table, print_table

    known = {claim.id: claim for claim in all_claims()}
    for name in names or []:
        if name not in known:
            raise AsmilError(f"there is no claim {name!r}: {did_you_mean(name, known)}")
    measured = Measured(runs)
    found = [Ruled(known[name], rule(known[name], measured)) for name in (names or known)]
    counts = Counter(one.ruling.verdict for one in found)
    shown = [one for one in found if verdict in (None, one.ruling.verdict)]
    if as_json:
        rows = [
            {"id": one.claim.id, "claim": one.claim.claim, "where": one.claim.where, **one.ruling.__dict__}
            for one in shown
        ]
        print_json(rows)
        return
    console = results()
    say(console, f"{len(found)} claims: {', '.join(f'{count} {word}' for word, count in counts.items())}.")
    if any(one.ruling.how == "run" for one in found):
        say(console, "Verdicts by runs refer to synthetic stand-ins, not to the data of the paper.")
    rows_shown = [
        [
            one.claim.id,
            one.claim.claim,
            one.ruling.verdict + ("" if one.ruling.how == "none" else f" ({one.ruling.how})"),
            one.ruling.why,
            one.ruling.run,
        ]
        for one in shown
    ]
    print_table(Table(["claim", "what it says", "verdict", "why", "run"], rows_shown), console)
