"""`asmil auto`: the best method for a cohort, and whether attention pays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.options import (
    Address,
    Again,
    Columns,
    Cpus,
    Device,
    EngineName,
    Features,
    Gpus,
    ItemTimeout,
    Json,
    Quiet,
    SettingsOption,
    TaskName,
    TimeUnitName,
    Trainings,
    call,
    out_option,
)


def auto(
    cohort: Annotated[Path, typer.Argument(help="The manifest (CSV, Excel or Parquet).")],
    out: Annotated[Path, out_option("Folder of the page, the trainings and the model; a search in it is resumed.")],
    minutes: Annotated[float, typer.Option(help="Time budget; it decides how many folds and epochs there are.")] = 30.0,
    task: TaskName = "classification",
    features: Features = None,
    columns: Columns = None,
    time_unit: TimeUnitName = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", "-m", metavar="NAME", help="Candidate, may be repeated. Default: the ladder of docs/auto.md."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the splits and the trainings.")] = 0,
    settings: SettingsOption = None,
    workers: Trainings = None,
    device: Device = "auto",
    engine: EngineName = "local",
    address: Address = None,
    cpus: Cpus = 1.0,
    gpus: Gpus = 0.0,
    item_timeout: ItemTimeout = None,
    as_json: Json = False,
    again: Again = False,
    quiet: Quiet = False,
) -> None:
    """Find the best method for a cohort: does attention pay, how good will it be on new patients, and the model.

    Candidates from a linear probe to TransMIL are compared by nested cross-validation within the time budget. Inner
    folds choose, outer folds only report. The chosen method is trained on all patients, for `asmil predict OUT/bundle`.

    Example: asmil auto cohort.csv --out best
    """
    given = locals()
    from asmil.api import benchmarks
    from asmil.console import print_json, results, say
    from asmil.reporting import print_document
    from asmil.settings.documents import read_json

    found = call(benchmarks.auto, given)
    if as_json:
        print_json(read_json(found.page.with_suffix(".json"), dict, "run the command again"))
        return
    console = results()
    print_document(found.document, console)
    say(console, f"page: {found.page}")
    say(console, f"model: {found.bundle} (asmil predict {found.bundle} SLIDES)")
