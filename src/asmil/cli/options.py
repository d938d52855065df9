"""Options that several verbs have, each with its one help text, and how a verb calls the function of its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

Result = TypeVar("Result")
CONSOLE_ONLY = {"as_json", "quiet"}
"""Options about what is printed; the functions have `progress` instead of `quiet`."""


def _columns(text: str | None) -> Any:
    from asmil.tables.columns import parse_mapping

    return None if text is None else parse_mapping(text)


def out_option(text: str) -> Any:
    """The option --out."""
    return typer.Option("--out", "-o", help=text)


RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `asmil train`.")]
RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that `asmil train` wrote.")]
Features = Annotated[
    Path | None,
    typer.Option(help="Where the features are: a folder, a cohort file or a pack. Default: beside the manifest."),
]
Annotations = Annotated[
    Path | None, typer.Option(help="Annotations: a folder or file of ASAP or Aperio XML, GeoJSON or mask TIFFs.")
]
MaskValue = Annotated[int | None, typer.Option(help="Value of tumor in mask TIFFs. Default: all but 0.")]
Truth = Annotated[
    Path | None,
    typer.Option(help="A table of tiles (slide, x, y, tumor), e.g. tile_truth.parquet of a synthetic cohort."),
]
Mpp = Annotated[float | None, typer.Option(help="Microns per level-0 pixel; overrides the files.")]
Task = Literal["classification", "survival", "regression", "multilabel"]
TaskName = Annotated[Task, typer.Option(help="What is to be predicted.")]
TimeUnitName = Annotated[
    Literal["days", "weeks", "months", "years"] | None,
    typer.Option(
        help="For survival: the unit of the times. Default: as the name of their column says, e.g. time_days."
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=COLUMN,...",
        callback=_columns,
        help="Columns to read, e.g. patient=case_id,label=subtype; patient=tcga-barcode reads TCGA slide names; "
        "labels=ER,PR,HER2 reads one column of 0 and 1 per label.",
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. training.lr=3e-4; may be repeated."),
]
OwnMethod = Annotated[
    str | None,
    typer.Option("--method", "-m", metavar="NAME", help="Confirm the run's method if it is your own code."),
]
MapKinds = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND",
        help="Kind of map, may be repeated: attention, attention_logit, leave_one_out, gradient, "
        "integrated_gradients, or one of the method.",
    ),
]
ClassName = Annotated[
    str | None, typer.Option("--class", help="Class or label to explain. Default: the predicted one.")
]
EvaluatedRole = Annotated[Literal["test", "val"], typer.Option(help="Part of the cohort.")]
RunRole = Annotated[Literal["test", "val", "train"], typer.Option(help="Part of the run to evaluate.")]
UnitName = Annotated[
    Literal["slide", "patient"], typer.Option(help="patient: average the predictions of a patient's slides first.")
]
Resamples = Annotated[int, typer.Option(min=1, help="Bootstrap resamples of patients.")]
BootstrapSeed = Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, ...")]
EngineName = Annotated[str, typer.Option(metavar="ENGINE", help="local (processes of this machine) or ray.")]
Address = Annotated[str | None, typer.Option(help="For Ray: auto, host:port or ray://host:port.")]
Workers = Annotated[
    int | None,
    typer.Option(min=0, help="Number of processes; 0: only this one. Default: one per GPU, or one per core."),
]
Processes = Annotated[int | None, typer.Option(min=1, help="Number of processes. Default: one per core.")]
Trainings = Annotated[int | None, typer.Option(min=1, help="Trainings at the same time. Default: one per GPU, or one.")]
Cpus = Annotated[float, typer.Option(min=0, help="For Ray: cores per worker.")]
Gpus = Annotated[float, typer.Option(min=0, help="For Ray: GPUs per worker; fractions share one.")]
Seconds = Annotated[
    float | None, typer.Option(min=0, help="Start no training after this time; resume with the same command.")
]
ItemTimeout = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Leave out, and report, a feature file that takes longer than this many seconds. 0: no limit. "
        "Default: 600 for 32 files or more.",
    ),
]
SlideTimeout = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Give up on a slide after this many seconds without progress and continue with the others. 0: no limit. "
        "Default: 1800.",
    ),
]
Again = Annotated[
    bool,
    typer.Option(
        "--again", help="Make results again that were made from other inputs or settings, instead of stopping."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]


def call(function: Callable[..., Result], given: Mapping[str, Any], **more: Any) -> Result:
    """Call a public function with the options of a verb, which have the names of its parameters.

    given: `locals()` of the verb; options that were not given keep the defaults of the function
    """
    from asmil.settings.config import parse_assignments

    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    words = {
        name: value
        for name, value in {**given, **more}.items()
        if value is not None and (name in parameters or (takes_all and name not in CONSOLE_ONLY))
    }
    if "settings" in words:
        words["settings"] = parse_assignments(words["settings"])
    if "progress" in parameters:
        words["progress"] = not given.get("quiet", False)
    return function(**words)


def raise_failures(failures: Iterable[object], total: int, what: str) -> None:
    """Raise an error that lists what failed, if anything did."""
    from asmil.errors import AsmilError

    lines = [f"  - {failure}" for failure in failures]
    if lines:
        raise AsmilError("\n".join([f"{len(lines)} of {total} {what}:", *lines]))


def done_line(results: Sequence[Any], fresh: int, what: str, out: Path) -> str:
    """How many slides were done now and before."""
    before = sum(done.before for done in results)
    return f"{fresh} slide{'s' * (fresh != 1)} {what}: {out}" + (f" ({before} were already done)" if before else "")
