"""`asmil validate`: a trained model on new patients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from asmil.cli.options import (
    BootstrapSeed,
    Columns,
    Device,
    Features,
    ItemTimeout,
    Json,
    OwnMethod,
    Quiet,
    Resamples,
    argument,
    call,
    option,
    out_option,
    raise_failures,
)


def _times(text: str | None) -> Any:
    from asmil.cohort.table import number
    from asmil.errors import AsmilError

    if text is None:
        return None
    times = [number(word) for word in text.split(",")]
    if any(time is None or time <= 0 for time in times):
        raise AsmilError(f"--times {text}: give times above 0, e.g. 12,36,60")
    return times


def validate(
    model: Annotated[Path, argument("A run folder of `asmil train`, or a bundle of `asmil export`.", metavar="MODEL")],
    cohort: Annotated[Path, argument("The manifest of new patients, with their outcomes.", metavar="COHORT")],
    out: Annotated[Path, out_option("Folder for the page and tables.")] = Path("validation"),
    by: Annotated[
        str | None,
        option("Columns that define subgroups; numbers cut a column into ranges.", metavar="site,sex,age:50,70"),
    ] = None,
    margin: Annotated[
        float | None, option("Test whether the main metric is at most so much worse than the internal estimate.")
    ] = None,
    times: Annotated[
        str | None,
        option(
            "For survival: when calibration is shown. Default: quartiles of the event times.",
            metavar="TIME,...",
            callback=_times,
        ),
    ] = None,
    coverage: Annotated[float, option("The share of patients whose true class conformal sets should contain.")] = 0.9,
    allow_overlap: Annotated[
        bool, option("Go on if the model was trained on some of the slides or patients.", "--allow-overlap")
    ] = False,
    features: Features = None,
    columns: Columns = None,
    resamples: Resamples = 2000,
    seed: BootstrapSeed = 0,
    method: OwnMethod = None,
    device: Device = "auto",
    item_timeout: ItemTimeout = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Validate a model on new patients: performance, calibration, decision curve, subgroups, certainty.

    Stops if the model was trained on some of the slides or patients. Nothing is fitted or chosen on the new patients:
    the threshold is that of the run. --out gets `validation.{html,md,json}` and `predictions.csv`. Slides that cannot
    be predicted are listed, and the exit code is 1.

    Example: asmil validate runs/asmil hospital_b.csv --by site,sex,age:50,70 --out validation
    """
    given = locals()
    from asmil.api.validation import validate as function
    from asmil.console import print_json, results, say
    from asmil.evaluation.validation.report import PAGE
    from asmil.reporting import print_document

    validation = call(function, given)
    if as_json:
        print_json(validation.to_dict())
    else:
        console = results()
        print_document(validation.document, console)
        say(console, f"page: {out / PAGE}")
    validated = validation.validated
    total = len(validated.predicted) + len(validated.failures)
    raise_failures(validated.failures, total, f"{validated.run.unit}s could not be predicted")
