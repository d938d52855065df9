"""`asmil pack`: the features of a cohort in one folder that is read much faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from asmil.cli.options import Again, Columns, ItemTimeout

if TYPE_CHECKING:
    from asmil.cohort.manifest import Slide
    from asmil.cohort.pack.packing import PackReport
    from asmil.cohort.problems import Problem

UNUSED_REPORTED = 0.2


def pack(
    place: Annotated[
        Path,
        typer.Argument(metavar="FEATURES", help="A folder of feature files, a cohort file, a pack, or a manifest."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The pack, a folder; an existing one is completed.")],
    features: Annotated[
        Path | None, typer.Option(help="For a manifest: where the features are: a folder, a cohort file or a pack.")
    ] = None,
    dtype: Annotated[
        Literal["float16", "float32"] | None,
        typer.Option(help="How the features are stored. Default: as in the existing pack; float16 in a new one."),
    ] = None,
    columns: Columns = None,
    item_timeout: ItemTimeout = None,
    again: Again = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Copy the features of all slides into one pack, a folder that is read many times faster.

    Give the pack wherever features are asked for; the feature files are no longer needed. Run the same
    command again to pack what is missing. If features of a packed slide have changed, it says so and stops.

    Example: asmil pack cohort/features --out cohort.pack
    """
    from asmil.cohort.pack.packing import pack_features
    from asmil.cohort.problems import grouped
    from asmil.console import progress_bar
    from asmil.errors import AsmilError
    from asmil.reporting.formats import format_count
    from asmil.settings.made_from import DoneBefore

    slides, missing, notes = _slides(place, features, columns)
    for note in notes:
        typer.echo(f"note: {place}: {note}", err=True)
    with progress_bar("packing", quiet) as show:
        report = pack_features(slides, out, dtype, show, item_timeout, DoneBefore(again))
    if report.pack is not None:
        typer.echo(_describe(report))
        if report.pack.unused_share > UNUSED_REPORTED:
            what = f"{report.pack.unused_share:.0%} of the pack is unused, since slides were packed again"
            typer.echo(f"note: {what}; `asmil pack {out} --out NEW` copies only what is used", err=True)
    if report.others:
        what = f"slides of the pack that are not in {place} stay as they are: {len(report.others)}"
        typer.echo(f"note: {what}", err=True)
    problems = [*missing, *report.problems]
    for problem in problems:
        if problem.severity == "warning":
            typer.echo(f"warning: {problem}", err=True)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        listed = "\n".join(f"  - {group}" for group in grouped(errors))
        raise AsmilError(
            f"{out}: not everything could be packed, {format_count(len(errors), 'error')} to fix:\n{listed}"
        )


def _slides(
    place: Path, features: Path | None, columns: str | None
) -> tuple[list[Slide], list[Problem], tuple[str, ...]]:
    """The slides that have features, what is wrong with other rows of a manifest, and how it was understood."""
    from asmil.cohort.manifest import cohort_from_features, read_manifest
    from asmil.errors import AsmilError
    from asmil.tables.columns import parse_mapping
    from asmil.tables.text_table import is_table

    if is_table(place) and not place.is_dir():
        cohort, problems = read_manifest(place, features, kind=None, columns=parse_mapping(columns))
        return list(cohort.slides), problems, cohort.notes
    if features is not None:
        raise AsmilError(f"--features {features}: it goes with a manifest, and {place} is not a manifest; leave it out")
    if columns is not None:
        raise AsmilError(f"--columns {columns}: it goes with a manifest, and {place} is not a manifest; leave it out")
    return list(cohort_from_features(place).slides), [], ()


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
