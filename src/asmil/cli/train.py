"""`asmil train`: from a manifest to a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from asmil.cli.options import Again, Columns, ItemTimeout, TimeUnitName

if TYPE_CHECKING:
    from asmil.runs.config import RunConfig
    from asmil.runs.writer import RunWriter
    from asmil.tables.columns import ColumnMapping
    from asmil.training.shared_steps import OneProcess


Task = Literal["classification", "survival", "regression", "multilabel"]
SETTINGS_FILES = (".yaml", ".yml")


def train(
    cohort: Annotated[
        Path | None,
        typer.Argument(
            help="The manifest (CSV, Excel or Parquet) with slide, label (or time, event), patient, split; or a "
            "settings file (.yaml) that names it."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The run folder; an interrupted run in it is resumed. Required, unless the settings file names it.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Settings file, as `asmil init` writes it; options override it."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            metavar="NAME",
            show_default="asmil",
            help="See `asmil methods`; or your own, file.py:Class.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default="paper", help="paper, recommended, or a preset of the method."),
    ] = None,
    task: Annotated[Task | None, typer.Option(show_default="classification", help="What is predicted.")] = None,
    features: Annotated[
        Path | None,
        typer.Option(help="Where the features are: a folder, a cohort file or a pack. Default: beside COHORT."),
    ] = None,
    folds: Annotated[
        int | None, typer.Option(show_default="1", help="Folds of cross-validation; 1 is a single split.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(show_default="1", help="Trainings per fold, with seeds SEED, SEED + 1, ...")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(show_default="0", help="First seed; also the seed of generated splits.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. training.lr=3e-4; may be repeated."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", show_default="auto", help="auto, cpu, cuda, cuda:1, ...")
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="WEIGHTS",
            help="Start from pretrained weights: a checkpoint, run or bundle of asmil, or official weights (FEATHER).",
        ),
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            metavar="NORMALIZER", help="Stabilize attention with an anchor: nsf, softmax, ..., or none for no anchor."
        ),
    ] = None,
    stabilizers: Annotated[
        list[str] | None,
        typer.Option("--stabilizer", metavar="NAME=WEIGHT", help="temporal, features, entropy or l2; may be repeated."),
    ] = None,
    leave_one_site_out: Annotated[
        bool, typer.Option("--leave-one-site-out", help="One fold per site: test on it, train on the others.")
    ] = False,
    inner_folds: Annotated[
        int | None, typer.Option(help="Nested cross-validation: choose from --grid by this many inner folds.")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=[V,...]", help="Values to choose from, e.g. training.lr=[1e-4,3e-4]; may be repeated."
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Do not use fused GPU kernels; train one seed after the other.")
    ] = False,
    columns: Columns = None,
    time_unit: TimeUnitName = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="ENGINE", help="Train folds and seeds at the same time: local (processes) or ray."),
    ] = None,
    address: Annotated[str | None, typer.Option(help="For Ray: auto, host:port or ray://host:port.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes. Default: as many as fit the GPUs or cores.")
    ] = None,
    cpus: Annotated[float, typer.Option(min=0, help="For Ray: cores per worker.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="For Ray: GPUs per worker; fractions share one.")] = 0,
    item_timeout: ItemTimeout = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print what would be trained; write nothing.")
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also send metrics to tensorboard, wandb or mlflow; may be repeated."),
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Also append plain lines of progress to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    again: Again = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Train a method on a cohort: every fold and seed, into one run folder.

    Run the same command again to resume an interrupted run; on a CPU the result is the same to the bit.

    Example: asmil train cohort.csv --method asmil --out runs/asmil
    """
    from asmil.api.progress import training_progress
    from asmil.console import messages
    from asmil.errors import AsmilError
    from asmil.machine.memory import keep_freed_memory
    from asmil.tables.columns import parse_mapping
    from asmil.training.interruption import Interrupted
    from asmil.training.run import train_run
    from asmil.training.run_parts import TrainingEngine, follow
    from asmil.training.shared_steps import step_processes

    with step_processes() as processes:
        if not processes.leads:
            follow(processes)
            return
        if cohort is not None and cohort.suffix.lower() in SETTINGS_FILES:
            if config is not None:
                raise typer.BadParameter(f"{cohort} and --config {config} are both settings files; give one of them")
            cohort, config = None, cohort
        settings: dict[str, Any] = {"folds": folds, "seeds": seeds, "stabilizers": _weights(stabilizers or [])}
        settings["training"] = {"seed": seed, "device": device, "executor": "plain" if plain else None, "track": track}
        settings["task"] = {"kind": task, "time_unit": time_unit}
        settings["data"] = {"leave_out": "site" if leave_one_site_out else None}
        settings["anchor"] = {"normalizer": anchor}
        settings["init"] = {"weights": None if init is None else str(init)}
        settings["nested"] = {"folds": inner_folds, "grid": _grid(grid) if grid else None}
        request = _request(config, cohort, features, out, method, preset, settings, assignments or [])
        if engine is None and (workers or address or gpus):
            raise AsmilError("--workers, --address and --gpus belong to an engine; give --engine local or --engine ray")
        if engine is not None and processes.count > 1:
            raise AsmilError("--engine starts its own processes; leave it out, or start asmil without torchrun")
        where = None if engine is None else TrainingEngine(engine, address, workers, cpus=cpus, gpus=gpus)
        mapping = parse_mapping(columns or request.columns)
        keep_freed_memory()
        if dry_run:
            _print_plan(request, item_timeout, mapping, processes, as_json)
            return
        try:
            with training_progress(messages(quiet), log) as observer:
                folder = train_run(
                    request.cohort,
                    request.out,
                    request.config,
                    request.features,
                    observer,
                    item_timeout,
                    mapping,
                    where,
                    processes,
                    again,
                )
        except Interrupted:
            typer.echo(
                f"stopped; everything done so far is in {request.out}; run the same command again to resume", err=True
            )
            raise typer.Exit(130) from None
        _print_results(folder, request.config, as_json)


@dataclass(frozen=True)
class _Request:
    """What a command asks for: the settings file and the options together."""

    cohort: Path
    features: Path | None
    out: Path
    config: RunConfig
    columns: str | None


def _request(
    file: Path | None,
    cohort: Path | None,
    features: Path | None,
    out: Path | None,
    method: str | None,
    preset: str | None,
    settings: dict[str, Any],
    assignments: list[str],
) -> _Request:
    from asmil.models.own_method import confirm
    from asmil.runs.settings_file import SettingsFile, read_settings_file
    from asmil.settings.config import merge, parse_assignments
    from asmil.training.initial_weights import resolve_with_init

    written = SettingsFile(None, None, None, None, None, {}) if file is None else read_settings_file(file)
    cohort, out = cohort or written.cohort, out or written.out
    if cohort is None:
        raise typer.BadParameter("give COHORT, the manifest, or a settings file that names it")
    if out is None:
        raise typer.BadParameter("give --out, the run folder, or name it in the settings file")
    if method is None and written.method is not None:
        confirm(written.method, None, str(file))
    asked = merge(_given(settings), parse_assignments(assignments))
    changes = dict(written.changes)
    if "weights" in asked.get("init", {}):
        changes.pop("init", None)  # the hash in the file is that of other weights
    config = resolve_with_init(
        method or written.method, preset or written.preset or "paper", merge(changes, asked), out
    )
    return _Request(cohort, features or written.features, out, config, written.columns)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without those that no option was given for."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        kept = _given(value) if isinstance(value, dict) else value
        if kept is not None and kept != {}:
            found[key] = kept
    return found


def _print_plan(
    request: _Request, item_timeout: float | None, columns: ColumnMapping | None, processes: OneProcess, as_json: bool
) -> None:
    """What would be trained: slides per fold, settings, and where it would be written."""
    import yaml

    from asmil.api.progress import describe_run
    from asmil.console import print_json, results, say
    from asmil.training.run import initialization_lines, plan_run

    plan = plan_run(
        request.cohort,
        request.out,
        request.config,
        request.features,
        item_timeout_s=item_timeout,
        columns=columns,
        processes=processes,
    )
    if as_json:
        print_json(
            {
                "out": str(request.out),
                "trainings": plan.splits.n_folds * request.config.seeds,
                "finished_trainings": plan.finished,
                "folds": plan.slides_per_fold(),
                "config": plan.description.to_dict(),
            }
        )
        return
    console = results()
    say(console, describe_run(plan.description, plan.splits))
    for fold, counts in enumerate(plan.slides_per_fold()):
        site = f" (site {plan.splits.sites[fold]})" if plan.splits.sites else ""
        say(
            console, f"  fold {fold + 1}{site}: {', '.join(f'{count} {role}' for role, count in counts.items())} slides"
        )
    for line in initialization_lines(plan):
        say(console, line)
    settings = plan.description.config.model_dump(mode="json")
    say(console, f"settings:\n{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).rstrip()}")
    say(
        console,
        f"output: {request.out} ({plan.finished} trainings are already there)"
        if plan.finished
        else f"output: {request.out}",
    )
    say(console, "nothing was written, since --dry-run was given")


def _print_results(folder: RunWriter, config: RunConfig, as_json: bool) -> None:
    from asmil.cli.evaluate import evaluate
    from asmil.cohort.splits import Splits
    from asmil.console import messages, say
    from asmil.errors import AsmilError

    tested = "test" in set(Splits.load(folder.splits).table["role"])
    if not tested:
        chose = "" if config.training.select == "last" else ", which also chose the epoch"
        say(messages(), f"note: the splits have no test slides; these are metrics on validation slides{chose}")
    try:
        evaluate([folder.path], role="test" if tested else "val", as_json=as_json)
    except AsmilError as error:
        say(messages(), f"note: the training has ended and is kept, but the evaluation failed: {error}")


def _grid(words: list[str]) -> dict[str, list[Any]]:
    """The values of settings that `--grid KEY=[V,...]` gives."""
    from asmil.errors import AsmilError
    from asmil.settings.config import flat, parse_assignments

    found = flat(parse_assignments(words, "--grid"))
    for name, values in found.items():
        if not isinstance(values, list):
            raise AsmilError(f"--grid {name}={values}: give a list of values to choose from, e.g. {name}=[1, 2]")
    return found


def _weights(words: list[str]) -> dict[str, Any]:
    """The settings that `--stabilizer NAME=WEIGHT` gives."""
    from asmil.errors import AsmilError, did_you_mean
    from asmil.runs.config import StabilizersConfig

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
