"""`asmil datasets`: public data sets as cohorts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from asmil.cli import options
from asmil.cli.options import argument, option

if TYPE_CHECKING:
    from asmil.datasets import PublicDataset


def datasets(
    name: Annotated[str | None, argument("A data set; without one, a list.", metavar="[NAME]")] = None,
    source: Annotated[
        Path | None, option("Folder with the downloaded files; without it, what to download.", "--from", metavar="DIR")
    ] = None,
    out: Annotated[Path | None, options.out_option("Folder for the cohorts. Default: NAME.")] = None,
    only: Annotated[
        list[str] | None, option("Make only this cohort of the data set; may be repeated.", metavar="COHORT")
    ] = None,
    unverified: Annotated[bool, option("Also use files that differ from the published ones.", "--unverified")] = False,
    again: options.Again = False,
    quiet: options.Quiet = False,
) -> None:
    """List public data sets, or turn the downloaded files of one into cohorts for `check`, `train` and `paper`.

    Nothing is downloaded. Files are found by name anywhere in the folder and verified by checksums. Run the same
    command again to resume.

    Example: asmil datasets tcga-hipt --from HIPT --out cohorts
    """
    given = locals()
    from asmil.api import cohorts
    from asmil.console import results, say
    from asmil.datasets import DATASETS, find_dataset
    from asmil.errors import AsmilError
    from asmil.reporting import Table, print_table

    console = results()
    if name is None:
        rows = [[entry.name, entry.about, entry.license, entry.size] for entry in DATASETS.values()]
        print_table(Table(("data set", "what it is", "license", "download"), rows), console)
        say(console, "what to download, and from where: asmil datasets NAME")
        return
    dataset = find_dataset(name)
    if source is None:
        for line in _description(dataset):
            say(console, line)
        return
    report = options.call(cohorts.make_dataset, given)
    rows = [[made.name, str(made.slides), made.outcome] for made in report.made]
    if rows:
        print_table(Table(("cohort", "slides", "outcome"), rows, title=str(out or name)), console)
        for made in report.made:
            for note in made.notes:
                say(console, f"note: {made.name}: {note}")
        features = "" if report.made[0].features else " --features FOLDER"
        say(console, f"next: asmil check {report.made[0].manifest}{features}")
    if report.failures:
        lines = [f"  - {failure}" for failure in report.failures]
        total = len(report.made) + len(lines)
        raise AsmilError(
            "\n".join([f"{len(lines)} of {total} cohorts of {name} could not be made:", *lines, dataset.download])
        )


def _description(dataset: PublicDataset) -> list[str]:
    return [
        f"{dataset.name}: {dataset.about}",
        f"license: {dataset.license}",
        f"download ({dataset.size}): {dataset.download}",
        f"cohorts: {', '.join(dataset.cohorts)}",
        f"then: asmil datasets {dataset.name} --from FOLDER --out cohorts",
    ]
