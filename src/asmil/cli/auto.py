"""`asmil auto`: the best method for a cohort, and whether attention pays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from asmil.cli import options
from asmil.cli.options import argument, option


def auto(
    cohort: Annotated[Path, argument("The manifest (CSV, Excel or Parquet).")],
    out: Annotated[
        Path, options.out_option("Folder of the page, the trainings and the model; a search in it is resumed.")
    ],
    minutes: Annotated[float, option("Time budget; it decides how many folds and epochs there are.")] = 30.0,
    task: options.TaskName = "classification",
    features: options.Features = None,
    columns: options.Columns = None,
    time_unit: options.TimeUnitName = None,
    method: Annotated[
        list[str] | None,
        option("Candidate, may be repeated. Default: the ladder of docs/auto.md.", "--method", "-m", metavar="NAME"),
    ] = None,
    seed: Annotated[int, option("Seed of the splits and the trainings.", min=0)] = 0,
    settings: options.SettingsOption = None,
    workers: options.Trainings = None,
    device: options.Device = "auto",
    engine: options.EngineName = "local",
    address: options.Address = None,
    cpus: options.Cpus = 1.0,
    gpus: options.Gpus = 0.0,
    item_timeout: options.ItemTimeout = None,
    as_json: options.Json = False,
    again: options.Again = False,
    quiet: options.Quiet = False,
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

    answer = options.call(benchmarks.auto, given)
    if as_json:
        print_json(read_json(answer.page.with_suffix(".json"), dict, "run the command again"))
        return
    console = results()
    print_document(answer.document, console)
    say(console, f"page: {answer.page}")
    say(console, f"model: {answer.bundle} (asmil predict {answer.bundle} SLIDES)")
