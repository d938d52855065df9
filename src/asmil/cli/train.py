"""`asmil train`: from a manifest to a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from asmil.cli.column_option import COLUMNS_HELP
from asmil.cli.item_timeout import ITEM_TIMEOUT_HELP


def train(
    cohort: Annotated[
        Path,
        typer.Argument(help="The manifest: CSV, Excel or Parquet with slide, label (or time, event), patient, split."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder; a run begun there goes on.")],
    task: Annotated[
        Literal["classification", "survival", "regression", "multilabel"], typer.Option(help="What is predicted.")
    ] = "classification",
    method: Annotated[
        str, typer.Option("--method", "-m", help="See `asmil methods`; or your own, file.py:Class.")
    ] = "asmil",
    preset: Annotated[str, typer.Option(help="paper, recommended, or one of the method's own.")] = "paper",
    anchor: Annotated[
        str | None,
        typer.Option(help="Hold attention to an anchor with this normalizer: nsf, softmax, ..., or none."),
    ] = None,
    stabilizers: Annotated[
        list[str] | None,
        typer.Option("--stabilizer", metavar="NAME=WEIGHT", help="temporal, features, entropy or l2; repeatable."),
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. training.lr=3e-4.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the (first) training and of generated splits.")] = 0,
    seeds: Annotated[int, typer.Option(help="Trainings a fold, with seeds SEED, SEED + 1, ...")] = 1,
    folds: Annotated[int, typer.Option(help="Folds of cross-validation; 1 is a single split.")] = 1,
    leave_one_site_out: Annotated[
        bool, typer.Option("--leave-one-site-out", help="A fold a site: it is tested, the others are trained on.")
    ] = False,
    inner_folds: Annotated[
        int, typer.Option(help="Nested cross-validation: every fold chooses from --grid by so many inner folds.")
    ] = 0,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=[V, ...]", help="Values to choose from, e.g. training.lr=[1e-4,3e-4]; repeatable."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Without fused GPU kernels, one training after the other.")
    ] = False,
    features: Annotated[Path | None, typer.Option(help="Folder, cohort file or pack of the features.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="NAME=COLUMN,...", help=COLUMNS_HELP)] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="ENGINE", help="Train folds and seeds at the same time: local (processes) or ray."),
    ] = None,
    address: Annotated[str | None, typer.Option(help="For Ray: auto, host:port or ray://host:port.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: what the GPUs or the cores take.")
    ] = None,
    cpus: Annotated[float, typer.Option(min=0, help="For Ray: cores per worker.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="For Ray: GPUs per worker; fractions share one.")] = 0,
    item_timeout: Annotated[float | None, typer.Option(min=0, help=ITEM_TIMEOUT_HELP)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Train a method on a cohort: every fold and seed, into one run folder.

    Run the same command again to resume an interrupted run; on a CPU the result is the same to the bit.

    Example: asmil train cohort.csv --method asmil --out runs/asmil
    """
    from asmil.api.progress import training_progress
    from asmil.cli.evaluate import evaluate
    from asmil.cohort.splits import Splits
    from asmil.columns import parse_mapping
    from asmil.config import merge, parse_assignments
    from asmil.console import messages
    from asmil.errors import AsmilError
    from asmil.memory import keep_freed_memory
    from asmil.training.config import resolve
    from asmil.training.interruption import Interrupted
    from asmil.training.run import train_run
    from asmil.training.run_parts import TrainingEngine

    console = messages(quiet)
    keep_freed_memory()
    asked: dict[str, Any] = {"folds": folds, "seeds": seeds, "training": {"seed": seed}, "task": {"kind": task}}
    if leave_one_site_out:
        asked["data"] = {"leave_out": "site"}
    if inner_folds or grid:
        asked["nested"] = {"folds": inner_folds, "grid": _grid(grid or [])}
    if anchor is not None:
        asked["anchor"] = {"normalizer": anchor}
    if plain:
        asked["training"]["executor"] = "plain"
    asked["stabilizers"] = _weights(stabilizers or [])
    if engine is None and (workers or address or gpus):
        raise AsmilError("--workers, --address and --gpus belong to an engine; give --engine local or --engine ray")
    where = None if engine is None else TrainingEngine(engine, address, workers, cpus, gpus)
    config = resolve(method, preset, merge(asked, parse_assignments(assignments or [])))
    try:
        with training_progress(console) as observer:
            mapping = parse_mapping(columns)
            folder = train_run(cohort, out, config, features, observer, item_timeout, mapping, where)
    except Interrupted:
        typer.echo(f"stopped; everything done so far is in {out}; run the same command again to resume", err=True)
        raise typer.Exit(130) from None
    tested = "test" in set(Splits.load(folder.splits).table["role"])
    if not tested:
        chose = "" if config.training.select == "last" else ", which chose the epoch"
        typer.echo(f"note: the splits have no test slides; these are numbers on validation slides{chose}")
    try:
        evaluate([folder.path], role="test" if tested else "val")
    except AsmilError as error:
        typer.echo(f"note: the training has ended and is kept, but its numbers cannot be taken: {error}")
    _print_alarms(folder.path)


def _grid(words: list[str]) -> dict[str, list[Any]]:
    """The values of settings that `--grid KEY=[V, ...]` words stand for."""
    from asmil.config import flat, parse_assignments
    from asmil.errors import AsmilError

    found = flat(parse_assignments(words, "--grid"))
    for name, values in found.items():
        if not isinstance(values, list):
            raise AsmilError(f"--grid {name}={values}: give a list of values to choose from, e.g. {name}=[1, 2]")
    return found


def _print_alarms(run: Path) -> None:
    """What the recorded attention warns of, if any was recorded."""
    from asmil.evaluation.stability import alarm_lines, read_stability
    from asmil.training.attention_file import read_attention
    from asmil.training.layout import RunLayout

    if any(read_attention(training) is not None for _, _, training in RunLayout(run).trainings()):
        for line in alarm_lines(read_stability(run)):
            typer.secho(line, fg=typer.colors.YELLOW)


def _weights(words: list[str]) -> dict[str, Any]:
    """The settings that `--stabilizer NAME=WEIGHT` words stand for."""
    from asmil.errors import AsmilError, did_you_mean
    from asmil.training.config import StabilizersConfig

    known = list(StabilizersConfig.model_fields)
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, weight = word.partition("=")
        if name not in known:
            raise AsmilError(f"--stabilizer {word}: there is no stabilizer {name!r}: {did_you_mean(name, known)}")
        if not equals:
            raise AsmilError(f"--stabilizer {word}: give it a weight, e.g. {name}=0.1")
        settings[name] = {"weight": weight}
    return settings
