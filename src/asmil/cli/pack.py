"""`asmil pack`: the features of a cohort in one folder that is read much faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from asmil.cli.options import Again, Columns, ItemTimeout, Quiet, argument, call, option, out_option

if TYPE_CHECKING:
    from asmil.cohort.pack.packing import PackReport

UNUSED_REPORTED = 0.2


def pack(
    source: Annotated[
        Path, argument("A folder of feature files, a cohort file, a pack, or a manifest.", metavar="FEATURES")
    ],
    out: Annotated[Path, out_option("The pack, a folder; an existing one is completed.")],
    features: Annotated[
        Path | None, option("For a manifest: where the features are: a folder, a cohort file or a pack.")
    ] = None,
    dtype: Annotated[
        Literal["float16", "float32"] | None,
        option("How the features are stored. Default: as in the existing pack; float16 in a new one."),
    ] = None,
    columns: Columns = None,
    item_timeout: ItemTimeout = None,
    again: Again = False,
    quiet: Quiet = False,
) -> None:
    """Copy the features of all slides into one pack, a folder that is read many times faster.

    Give the pack wherever features are asked for; the feature files are no longer needed. Run the same
    command again to pack what is missing. If features of a packed slide have changed, it says so and stops.

    Example: asmil pack cohort/features --out cohort.pack
    """
    given = locals()
    from asmil.api import cohorts
    from asmil.cohort.problems import grouped
    from asmil.errors import AsmilError
    from asmil.reporting.formats import format_count

    report = call(cohorts.pack, given)
    if report.pack is not None:
        typer.echo(_describe(report))
        if report.pack.unused_share > UNUSED_REPORTED:
            what = f"{report.pack.unused_share:.0%} of the pack is unused, since slides were packed again"
            typer.echo(f"note: {what}; `asmil pack {out} --out NEW` copies only what is used", err=True)
    if report.others:
        what = f"slides of the pack that are not in {source} stay as they are: {len(report.others)}"
        typer.echo(f"note: {what}", err=True)
    for problem in report.problems:
        if problem.severity == "warning":
            typer.echo(f"warning: {problem}", err=True)
    errors = [problem for problem in report.problems if problem.severity == "error"]
    if errors:
        listed = "\n".join(f"  - {group}" for group in grouped(errors))
        raise AsmilError(
            f"{out}: not everything could be packed, {format_count(len(errors), 'error')} to fix:\n{listed}"
        )


def _describe(report: PackReport) -> str:
    from asmil.cohort.source import stored_bytes

    assert report.pack is not None
    entries = report.pack.entries.values()
    widths = " or ".join(map(str, sorted({entry.width for entry in entries})))
    size = stored_bytes(report.pack.folder) / 1e6
    return (
        f"{len(report.added)} packed, {len(report.kept)} already there: {len(entries)} slides, "
        f"{sum(entry.n for entry in entries):,} tiles of {widths} features as {report.pack.dtype}, "
        f"{size:,.1f} MB: {report.pack.folder}"
    )
