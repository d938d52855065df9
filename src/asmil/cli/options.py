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


def comma_separated(text: str | None) -> Any:
    """The words of a list that was given as one word."""
    return None if text is None else [word.strip() for word in text.split(",")]


def argument(text: str, **more: Any) -> Any:
    """An argument with its help text."""
    return typer.Argument(help=text, **more)


def option(text: str, *spellings: str, **more: Any) -> Any:
    """An option with its help text; spellings: other than --name, for example of a flag without --no-name."""
    return typer.Option(*spellings, help=text, **more)


def out_option(text: str) -> Any:
    """The option --out."""
    return option(text, "--out", "-o")


RunFolder = Annotated[Path, argument("A run folder of `asmil train`.", metavar="RUN")]
RunFolders = Annotated[list[Path], argument("Folders that `asmil train` wrote.", metavar="RUN...")]
Features = Annotated[
    Path | None, option("Where the features are: a folder, a cohort file or a pack. Default: beside the manifest.")
]
Annotations = Annotated[
    Path | None, option("Annotations: a folder or file of ASAP or Aperio XML, GeoJSON or mask TIFFs.")
]
MaskValue = Annotated[int | None, option("Value of tumor in mask TIFFs. Default: all but 0.")]
Truth = Annotated[
    Path | None, option("A table of tiles (slide, x, y, tumor), e.g. tile_truth.parquet of a synthetic cohort.")
]
Mpp = Annotated[float | None, option("Microns per level-0 pixel; overrides the files.")]
Task = Literal["classification", "survival", "regression", "multilabel"]
TaskName = Annotated[Task, option("What is to be predicted.")]
TimeUnitName = Annotated[
    Literal["days", "weeks", "months", "years"] | None,
    option("For survival: the unit of the times. Default: as the name of their column says, e.g. time_days."),
]
Columns = Annotated[
    str | None,
    option(
        "Columns to read, e.g. patient=case_id,label=subtype; patient=tcga-barcode reads TCGA slide names; "
        "labels=ER,PR,HER2 reads one column of 0 and 1 per label.",
        metavar="NAME=COLUMN,...",
        callback=_columns,
    ),
]
Covariates = Annotated[
    str | None,
    option(
        "Clinical columns of the manifest that are added to the prediction, e.g. age,sex,stage:category.",
        metavar="COLUMN,...",
    ),
]
SettingsOption = Annotated[
    list[str] | None, option("Any setting, e.g. training.lr=3e-4; may be repeated.", "--set", metavar="KEY=VALUE")
]
OwnMethod = Annotated[
    str | None, option("Confirm the run's method if it is your own code.", "--method", "-m", metavar="NAME")
]
MapKinds = Annotated[
    list[str] | None,
    option(
        "Kind of map, may be repeated: attention, attention_logit, leave_one_out, gradient, "
        "integrated_gradients, or one of the method.",
        metavar="KIND",
    ),
]
ClassName = Annotated[str | None, option("Class or label to explain. Default: the predicted one.", "--class")]
EvaluatedRole = Annotated[Literal["test", "val"], option("Part of the cohort.")]
RunRole = Annotated[Literal["test", "val", "train"], option("Part of the run to evaluate.")]
UnitName = Annotated[
    Literal["slide", "patient"], option("patient: average the predictions of a patient's slides first.")
]
Resamples = Annotated[int, option("Bootstrap resamples of patients.", min=1)]
BootstrapSeed = Annotated[int, option("Seed of the bootstrap.", min=0)]
Device = Annotated[str, option("auto, cpu, cuda, cuda:1, ...", metavar="DEVICE")]
EngineName = Annotated[str, option("local (processes of this machine) or ray.", metavar="ENGINE")]
Address = Annotated[str | None, option("For Ray: auto, host:port or ray://host:port.")]
Workers = Annotated[
    int | None, option("Number of processes; 0: only this one. Default: one per GPU, or one per core.", min=0)
]
Processes = Annotated[int | None, option("Number of processes. Default: one per core.", min=1)]
Trainings = Annotated[int | None, option("Trainings at the same time. Default: one per GPU, or one.", min=1)]
Cpus = Annotated[float, option("For Ray: cores per worker.", min=0)]
Gpus = Annotated[float, option("For Ray: GPUs per worker; fractions share one.", min=0)]
Seconds = Annotated[float | None, option("Start no training after this time; resume with the same command.", min=0)]
ItemTimeout = Annotated[
    float | None,
    option(
        "Leave out, and report, a feature file that takes longer than this many seconds. 0: no limit. "
        "Default: 600 for 32 files or more.",
        min=0,
    ),
]
SlideTimeout = Annotated[
    float | None,
    option(
        "Give up on a slide after this many seconds without progress and continue with the others. 0: no limit. "
        "Default: 1800.",
        min=0,
    ),
]
Names = Annotated[
    str | None,
    option(
        "Names of the runs in the report, in their order, separated by commas.",
        metavar="LIST",
        callback=comma_separated,
    ),
]
Again = Annotated[
    bool, option("Make results again that were made from other inputs or settings, instead of stopping.", "--again")
]
Force = Annotated[bool, option("Replace the file if it exists.", "--force")]
Json = Annotated[bool, option("Print JSON instead of text.", "--json")]
Quiet = Annotated[bool, option("No progress, only the result.", "--quiet", "-q")]


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
