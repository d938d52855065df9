"""`asmil affine`: in how many slides attention can change without changing the bag feature."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from asmil.cli.options import Features, Json, argument, call, option, out_option, raise_failures

if TYPE_CHECKING:
    from asmil.attention.affine import CohortDependence, Form, Share
    from asmil.reporting import Table

PAPER_PERCENT = {"CAMELYON-16": 99.24, "CAMELYON-17": 99.80, "BRACS": 96.08}
TITLES = {"plain": "bag feature", "softmax": "its softmax"}


def affine(
    cohort: Annotated[Path, argument("The manifest; labels are not needed.")],
    features: Features = None,
    deduplicate: Annotated[
        bool, option("Also count without duplicate tiles; reads all features.", "--deduplicate")
    ] = False,
    as_json: Json = False,
    out: Annotated[Path | None, out_option("CSV file to write, one row per slide.")] = None,
) -> None:
    """Count the slides whose attention could change without changing the bag feature.

    These are the slides whose tiles are affinely dependent.

    Example: asmil affine cohort.csv --deduplicate
    """
    given = locals()
    from asmil.api import cohorts
    from asmil.console import print_json, results, say
    from asmil.reporting import print_table

    dependence = call(cohorts.affine, given)
    if as_json:
        print_json(_as_dict(dependence, deduplicate))
    elif dependence.slides:
        console = results()
        print_table(_table(dependence, deduplicate), console)
        for line in _notes(dependence, deduplicate):
            say(console, line)
        if out is not None:
            say(console, f"table: {out}")
    total = len(dependence.slides) + len(dependence.problems)
    raise_failures(dependence.problems, total, f"slides of {cohort} could not be counted")


def _shares(dependence: CohortDependence, deduplicate: bool) -> dict[str, dict[Form, Share]]:
    from asmil.attention.affine import FORMS

    shares = {"all_tiles": {form: dependence.share(form) for form in FORMS}}
    if deduplicate:
        shares["distinct_tiles"] = {form: dependence.distinct_share(form) for form in FORMS}
    return shares


def _table(dependence: CohortDependence, deduplicate: bool) -> Table:
    from asmil.reporting import Table

    tiles = [slide.verdicts["plain"].n for slide in dependence.slides]
    widths = " or ".join(map(str, sorted({slide.verdicts["plain"].d for slide in dependence.slides})))
    stored = " or ".join(sorted({slide.dtype for slide in dependence.slides}))
    title = f"{len(tiles)} slides of {min(tiles)} to {max(tiles)} tiles, {widths} features per tile, stored as {stored}"
    columns = ("what is matched", "dependent", "share", "share if exact", "decided by count", "decided by rank")
    rows = []
    for part, forms in _shares(dependence, deduplicate).items():
        for form, share in forms.items():
            row = (
                ("distinct tiles: " if part == "distinct_tiles" else "") + TITLES[form],
                f"{share.dependent} of {share.slides}",
                f"{100 * share.share:.2f} %",
                f"{100 * share.share_if_exact:.2f} %",
                str(share.by_count),
                str(share.by_rank),
            )
            rows.append(row)
    return Table(columns, rows, title=title)


def _notes(dependence: CohortDependence, deduplicate: bool) -> list[str]:
    notes = []
    shares = [share for forms in _shares(dependence, deduplicate).values() for share in forms.values()]
    if any(share.within_rounding for share in shares):
        notes.append(
            "The two shares differ: some slides are dependent only within the rounding error of the stored type. "
            "If the stored values are taken as exact, these slides are independent."
        )
    if deduplicate:
        copies = [
            slide.verdicts["plain"].n - slide.distinct["plain"].n for slide in dependence.slides if slide.distinct
        ]
        notes.append(f"duplicate tiles removed: {sum(copies)}, in {sum(map(bool, copies))} slides")
    printed = ", ".join(f"{percent:.2f} % of {name}" for name, percent in PAPER_PERCENT.items())
    notes.append(
        f"The paper reports {printed}. It does not state which slides were counted: 99.80 % is 499 of 500, the "
        "other two match no set size it gives. Where the number of tiles decides, the share depends on the size of the "
        "bags, not on the encoder."
    )
    return notes


def _as_dict(dependence: CohortDependence, deduplicate: bool) -> dict[str, Any]:
    shares = {
        part: {form: share.to_dict() for form, share in forms.items()}
        for part, forms in _shares(dependence, deduplicate).items()
    }
    return {
        **shares,
        "paper_percent": PAPER_PERCENT,
        "paper_denominators": "not stated",
        "problems": [str(problem) for problem in dependence.problems],
    }
