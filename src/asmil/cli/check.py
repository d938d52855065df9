"""`asmil check`: every problem of a cohort, before hours of training find the first of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from asmil.cli.column_option import COLUMNS_HELP
from asmil.cli.item_timeout import ITEM_TIMEOUT_HELP


def check(
    cohort: Annotated[Path, typer.Argument(help="The manifest (CSV, Excel or Parquet), or a run folder.")],
    features: Annotated[Path | None, typer.Option(help="Folder, cohort file or pack of the features.")] = None,
    folds: Annotated[int | None, typer.Option(help="Check splits of this many folds.")] = None,
    task: Annotated[
        Literal["classification", "survival", "regression", "multilabel"], typer.Option(help="What is predicted.")
    ] = "classification",
    columns: Annotated[str | None, typer.Option(metavar="NAME=COLUMN,...", help=COLUMNS_HELP)] = None,
    every: Annotated[
        bool, typer.Option("--list", help="One line per problem; else problems that many slides share are one line.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Read only the headers of the feature files.")] = False,
    item_timeout: Annotated[float | None, typer.Option(min=0, help=ITEM_TIMEOUT_HELP)] = None,
) -> None:
    """Explain every problem in a manifest, its feature files and its splits, or in the files of a run."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    from asmil.cohort.check import check_cohort
    from asmil.cohort.problems import SHOWN, ProblemGroup, grouped
    from asmil.columns import parse_mapping
    from asmil.errors import printable

    if (cohort / "config.yaml").is_file():
        _check_run(cohort)
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        reading = progress.add_task("reading slides", total=None)
        report = check_cohort(
            cohort,
            features,
            folds,
            deep=not quick,
            progress=lambda done, total: progress.update(reading, completed=done, total=total),
            kind=task,
            item_timeout_s=item_timeout,
            columns=parse_mapping(columns),
        )
    console = Console(highlight=False, soft_wrap=True)
    console.print(escape(printable(f"manifest: {cohort}")))
    for note in report.notes:
        console.print(escape(printable(f"  {note}")))
    if report.summary is not None:
        s = report.summary
        classes = printable(", ".join(f"{name}: {count}" for name, count in s.classes.items()))
        console.print(f"{s.slides} slides of {s.patients} patients" + (f" ({escape(classes)})" if classes else ""))
        made = [
            f"{s.width} features a tile" if s.width else None,
            f"encoder {s.encoder}" if s.encoder else None,
            f"{s.mpp:.3g} um/px" if s.mpp else None,
            f"{s.bytes_on_disk / 1e6:.1f} MB",
        ]
        console.print(f"tiles a slide: {s.tiles_min} to {s.tiles_max}, median {s.tiles_median:g}")
        # the encoder's name comes from a file
        console.print(escape(printable(", ".join(part for part in made if part))))
    shown = [ProblemGroup((problem,)) for problem in report.problems] if every else grouped(report.problems)
    for group in shown:
        color = "red" if group.severity == "error" else "yellow"
        console.print(f"[{color}]{group.severity}[/{color}] {escape(str(group))}")
    if any(len(group.problems) > SHOWN for group in shown):
        console.print("--list prints every slide")
    if not report.ok:
        n = len(report.errors)
        console.print(f"[red]{n} error{'s' * (n != 1)} to fix before training[/red]")
        raise typer.Exit(1)
    console.print("[green]ready to train[/green]")


def _check_run(run: Path) -> None:
    """Read every file of a run and verify its checksums."""
    from asmil.errors import AsmilError
    from asmil.training.verification import verify_run

    found = list(verify_run(run))
    problems = [str(error) for _, error in found if error is not None]
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise AsmilError(f"{len(problems)} of {len(found)} files of {run} are damaged:\n{listed}")
    typer.secho(f"{len(found)} files of {run} are whole", fg=typer.colors.GREEN)
