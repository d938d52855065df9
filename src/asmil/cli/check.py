"""`asmil check`: all problems of a cohort, before training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asmil.cli.options import Columns, Features, ItemTimeout, Json, TaskName, argument, call, option

if TYPE_CHECKING:
    from asmil.cohort.check import CheckReport


def check(
    cohort: Annotated[Path, argument("The manifest (CSV, Excel or Parquet), or a run folder.")],
    features: Features = None,
    folds: Annotated[int | None, option("Also check whether the cohort can be split into this many folds.")] = None,
    task: TaskName = "classification",
    columns: Columns = None,
    every: Annotated[
        bool, option("One line per problem. Default: slides with the same problem share a line.", "--list")
    ] = False,
    as_json: Json = False,
    quick: Annotated[bool, option("Read only the headers of the feature files.", "--quick")] = False,
    item_timeout: ItemTimeout = None,
) -> None:
    """Check a cohort before training, or the files of a run: all problems at once.

    Example: asmil check cohort.csv --features features
    """
    given = locals()
    from asmil.api import cohorts
    from asmil.console import print_json

    report = call(cohorts.check, given)
    if as_json:
        print_json(_as_dict(report))
    elif report.files:
        _print_run(cohort, report)
    else:
        _print(cohort, report, every)
    if not report.ok:
        raise typer.Exit(1)


def _print(manifest: Path, report: CheckReport, every: bool) -> None:
    from asmil.cohort.problems import SHOWN, ProblemGroup, grouped
    from asmil.console import results, say
    from asmil.errors import printable
    from asmil.reporting.formats import format_count

    console = results()
    say(console, printable(f"manifest: {manifest}"))
    for note in report.notes:
        say(console, printable(f"  {note}"))
    if report.summary is not None:
        s = report.summary
        classes = ", ".join(f"{name}: {count}" for name, count in s.classes.items())
        made = [
            f"{s.width} features per tile" if s.width else None,
            f"encoder {s.encoder}" if s.encoder else None,
            f"{s.mpp:.3g} um/px" if s.mpp else None,
            f"{s.bytes_on_disk / 1e6:.1f} MB",
        ]
        # classes and the name of the encoder come from files
        say(console, printable(f"{s.slides} slides of {s.patients} patients" + (f" ({classes})" if classes else "")))
        if s.tiles_median is not None:
            part = "" if s.readable == s.slides else f" (of {s.readable} slides)"
            say(console, f"tiles per slide: {s.tiles_min} to {s.tiles_max}, median {s.tiles_median:g}{part}")
            say(console, printable(", ".join(part for part in made if part)))
    shown = [ProblemGroup((problem,)) for problem in report.problems] if every else grouped(report.problems)
    for group in shown:
        say(console, f"{group.severity}: {group}", style="red" if group.severity == "error" else "yellow")
    if any(len(group.problems) > SHOWN for group in shown):
        say(console, "--list prints every slide")
    if report.ok:
        say(console, "ready to train", style="green")
    else:
        errors = sum(group.severity == "error" for group in shown)
        say(console, f"{format_count(errors, 'error')} to fix before training", style="red")


def _as_dict(report: CheckReport) -> dict[str, Any]:
    from dataclasses import asdict

    if report.files:
        damages = [{"severity": problem.severity, "message": problem.what} for problem in report.problems]
        return {"ok": report.ok, "files": len(report.files), "problems": damages}
    return {
        "ok": report.ok,
        "summary": None if report.summary is None else asdict(report.summary),
        "notes": list(report.notes),
        "problems": [{"severity": problem.severity, "message": str(problem)} for problem in report.problems],
    }


def _print_run(run: Path, report: CheckReport) -> None:
    from asmil.console import results, say
    from asmil.errors import AsmilError, printable

    if not report.ok:
        lines = "\n".join(f"  - {problem.what}" for problem in report.errors)
        raise AsmilError(f"{len(report.errors)} of {len(report.files)} files of {run} are damaged:\n{lines}")
    say(results(), f"{len(report.files)} files of {run} are complete and undamaged", style="green")
    for problem in report.problems:
        say(results(), printable(f"{problem.severity}: {problem.what}"), style="yellow")
