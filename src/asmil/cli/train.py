"""`asmil train`: from a manifest to a run folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from asmil.cli import options
from asmil.cli.options import argument, option

if TYPE_CHECKING:
    from asmil.api.functions import TrainingRequest
    from asmil.machine.timing import Timings
    from asmil.runs.config import RunConfig
    from asmil.runs.writer import RunWriter
    from asmil.training.run import RunPlan

SHORTHANDS = {
    "folds": "folds",
    "seeds": "seeds",
    "stabilizers": "stabilizers",
    "seed": "training.seed",
    "device": "training.device",
    "plain": "training.executor",
    "track": "training.track",
    "task": "task.kind",
    "time_unit": "task.time_unit",
    "leave_one_site_out": "data.leave_out",
    "covariates": "data.covariates",
    "anchor": "anchor.normalizer",
    "init": "init.weights",
    "inner_folds": "nested.folds",
    "grid": "nested.grid",
}
"""Options that set a setting; the function takes those that it has no parameter for in `settings`."""


def train(
    cohort: Annotated[
        Path | None,
        argument(
            "The manifest (CSV, Excel or Parquet) with slide, label (or time, event), patient, split; or a "
            "settings file (.yaml) that names it."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        options.out_option(
            "The run folder; an interrupted run in it is resumed. Required, unless the settings file names it."
        ),
    ] = None,
    config: Annotated[
        Path | None, option("Settings file, as `asmil init` writes it; options override it.", "--config", "-c")
    ] = None,
    method: Annotated[
        str | None,
        option(
            "See `asmil methods`; or your own, file.py:Class.", "--method", "-m", metavar="NAME", show_default="asmil"
        ),
    ] = None,
    methods: Annotated[
        str | None,
        option(
            "Several methods, separated by commas: one run each in OUT, and one page that compares them.",
            metavar="LIST",
            callback=options.comma_separated,
        ),
    ] = None,
    names: options.Names = None,
    preset: Annotated[
        str | None, option("paper, or another preset of the method.", metavar="NAME", show_default="paper")
    ] = None,
    task: Annotated[options.Task | None, option("What is predicted.", show_default="classification")] = None,
    features: Annotated[
        Path | None, option("Where the features are: a folder, a cohort file or a pack. Default: beside COHORT.")
    ] = None,
    folds: Annotated[int | None, option("Folds of cross-validation; 1 is a single split.", show_default="1")] = None,
    seeds: Annotated[int | None, option("Trainings per fold, with seeds SEED, SEED + 1, ...", show_default="1")] = None,
    seed: Annotated[int | None, option("First seed; also the seed of generated splits.", show_default="0")] = None,
    settings: options.SettingsOption = None,
    device: Annotated[str | None, option("auto, cpu, cuda, cuda:1, ...", metavar="DEVICE", show_default="auto")] = None,
    init: Annotated[
        str | None,
        option(
            "Start from pretrained weights: a checkpoint, run or bundle of asmil, or official weights (FEATHER).",
            metavar="WEIGHTS",
        ),
    ] = None,
    anchor: Annotated[
        str | None,
        option("Stabilize attention with an anchor: nsf, softmax, ..., or none for no anchor.", metavar="NORMALIZER"),
    ] = None,
    stabilizers: Annotated[
        list[str] | None,
        option("temporal, features, entropy or l2; may be repeated.", "--stabilizer", metavar="NAME=WEIGHT"),
    ] = None,
    leave_one_site_out: Annotated[
        bool, option("One fold per site: test on it, train on the others.", "--leave-one-site-out")
    ] = False,
    inner_folds: Annotated[
        int | None, option("Nested cross-validation: choose from --grid by this many inner folds.")
    ] = None,
    grid: Annotated[
        list[str] | None,
        option("Values to choose from, e.g. training.lr=[1e-4,3e-4]; may be repeated.", metavar="KEY=[V,...]"),
    ] = None,
    plain: Annotated[bool, option("Do not use fused GPU kernels; train one seed after the other.", "--plain")] = False,
    columns: options.Columns = None,
    covariates: options.Covariates = None,
    time_unit: options.TimeUnitName = None,
    engine: Annotated[
        str | None, option("Train folds and seeds at the same time: local (processes) or ray.", metavar="ENGINE")
    ] = None,
    address: options.Address = None,
    workers: Annotated[
        int | None, option("Number of processes. Default: as many as fit the GPUs or cores.", min=1)
    ] = None,
    cpus: options.Cpus = 1,
    gpus: options.Gpus = 0,
    item_timeout: options.ItemTimeout = None,
    dry_run: Annotated[
        bool, option("Check everything and print what would be trained; write nothing.", "--dry-run")
    ] = False,
    track: Annotated[
        list[str] | None, option("Also send metrics to tensorboard, wandb or mlflow; may be repeated.", metavar="NAME")
    ] = None,
    log: Annotated[Path | None, option("Also append plain lines of progress to this file.")] = None,
    profile: Annotated[
        bool, option("Also print where the time went: slides, steps, validation, checkpoints, ...", "--profile")
    ] = False,
    as_json: options.Json = False,
    again: options.Again = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a method on a cohort: every fold and seed, into one run folder.

    Run the same command again to resume an interrupted run; the result is the same (docs/reproducibility.md).

    Example: asmil train cohort.csv --method asmil --out runs/asmil

    Several methods, with one page: asmil train cohort.csv --methods asmil,abmil,clam_sb --folds 5 --out study
    """
    given = locals()
    from asmil.api.functions import training_engine
    from asmil.console import messages
    from asmil.errors import AsmilError
    from asmil.machine.memory import keep_freed_memory
    from asmil.machine.timing import measured, timed
    from asmil.training.run_parts import follow
    from asmil.training.shared_steps import step_processes

    with step_processes() as processes:
        if not processes.leads:
            follow(processes)
            return
        given["engine"] = training_engine(engine, address, workers, cpus, gpus)
        if engine is not None and processes.count > 1:
            raise AsmilError("--engine starts its own processes; leave it out, or start asmil without torchrun")
        keep_freed_memory()
        if methods is not None:
            if processes.count > 1:
                raise AsmilError("--methods trains one method after the other; start asmil without torchrun")
            _train_study(given)
            return
        request = _request(given)
        if dry_run:
            _print_plan(request, request.plan(processes), as_json)
            return
        with measured() as timings:
            folder = request.run(messages(quiet), log, processes)
            with timed("evaluation and report"):
                _print_results(folder, request.config, as_json)
        if profile:
            _print_profile(timings)


def _train_study(given: dict[str, Any]) -> None:
    """Train several methods and write the page of the study; one that cannot be trained is reported at the end."""
    from asmil.api.study import study_folders, write_study
    from asmil.console import messages, print_json, results, say
    from asmil.errors import AsmilError
    from asmil.evaluation.comparison.report import comparison_document, comparison_to_dict
    from asmil.experiments.results_index import INDEX_FILE
    from asmil.reporting import print_document

    out, as_json = given["out"], given["as_json"]
    if given["method"] is not None or out is None:
        raise AsmilError("--methods needs --out, the folder of the study, and no --method")
    folders = study_folders(out, given["methods"], given["names"] or ())
    requests = [_request({**given, "method": method, "out": folder}) for method, folder in folders.items()]
    trained, problems = [], []
    for request in requests:
        try:
            if given["dry_run"]:
                _print_plan(request, request.plan(), as_json)
            else:
                trained.append(request.run(messages(given["quiet"]), given["log"]).path)
        except AsmilError as error:
            problems.append(f"{request.out.name}: {error}")
    if len(trained) > 1:
        comparison = write_study(out, trained)
        if as_json:
            print_json(comparison_to_dict(comparison))
        else:
            print_document(comparison_document(comparison), results())
            say(results(), f"page: {out / INDEX_FILE}")
    options.raise_failures(problems, len(requests), "methods could not be trained")


def _request(given: dict[str, Any]) -> TrainingRequest:
    """The request that the options describe."""
    from asmil.api.functions import TrainingRequest
    from asmil.api.inputs import tree
    from asmil.settings.config import merge, parse_assignments

    words = {
        "plain": "plain" if given["plain"] else None,
        "leave_one_site_out": "site" if given["leave_one_site_out"] else None,
        "stabilizers": _stabilizers(given["stabilizers"]),
        "grid": _grid(given["grid"]),
        "track": given["track"] or None,
        "covariates": given["covariates"] and [name.strip() for name in given["covariates"].split(",")],
    }
    asked = {SHORTHANDS[name]: value for name, value in {**given, **words}.items() if name in SHORTHANDS}
    sections = tree({name: value for name, value in asked.items() if value is not None})
    names = ("config", "method", "preset", "features", "columns", "engine", "item_timeout", "again")
    return TrainingRequest.of(
        given["cohort"],
        given["out"],
        settings=merge(sections, parse_assignments(given["settings"] or [])),
        **{name: given[name] for name in names},
    )


def _grid(words: list[str] | None) -> dict[str, list[Any]] | None:
    """The values of settings that `--grid KEY=[V,...]` gives."""
    from asmil.errors import AsmilError
    from asmil.settings.config import flat, parse_assignments

    choices = flat(parse_assignments(words or [], "--grid"))
    for name, values in choices.items():
        if not isinstance(values, list):
            raise AsmilError(f"--grid {name}={values}: give a list of values to choose from, e.g. {name}=[1, 2]")
    return choices or None


def _stabilizers(words: list[str] | None) -> dict[str, Any] | None:
    """The settings that `--stabilizer NAME=WEIGHT` gives."""
    from asmil.errors import AsmilError, did_you_mean
    from asmil.runs.config import StabilizersConfig

    known = list(StabilizersConfig.model_fields)
    settings: dict[str, Any] = {}
    for word in words or ():
        name, equals, weight = word.partition("=")
        if name not in known:
            raise AsmilError(f"--stabilizer {word}: there is no stabilizer {name!r}: {did_you_mean(name, known)}")
        if not equals:
            raise AsmilError(f"--stabilizer {word}: give it a weight, e.g. {name}=0.1")
        settings[name] = {"weight": weight}
    return settings or None


def _print_plan(request: TrainingRequest, plan: RunPlan, as_json: bool) -> None:
    """What would be trained: slides per fold, settings, and where it would be written."""
    import yaml

    from asmil.api.progress import describe_run
    from asmil.console import print_json, results, say
    from asmil.training.run import initialization_lines

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
    settings = yaml.safe_dump(plan.description.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    lines = [describe_run(plan.description, plan.splits)]
    for fold, counts in enumerate(plan.slides_per_fold()):
        site = f" (site {plan.splits.sites[fold]})" if plan.splits.sites else ""
        slides = ", ".join(f"{count} {role}" for role, count in counts.items())
        lines.append(f"  fold {fold + 1}{site}: {slides} slides")
    finished = f" ({plan.finished} trainings are already there)" if plan.finished else ""
    lines += [*initialization_lines(plan), f"settings:\n{settings.rstrip()}", f"output: {request.out}{finished}"]
    for line in [*lines, "nothing was written, since --dry-run was given"]:
        say(results(), line)


def _print_profile(timings: Timings) -> None:
    """The seconds of every stage, the longest first; the start of the process is a stage, too."""
    import psutil

    from asmil.console import messages, say

    whole = time.time() - psutil.Process().create_time()
    seconds = {**timings.seconds, "start of the command": whole - sum(timings.seconds.values())}
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        say(messages(), f"profile: {name} {spent:.1f} s ({spent / whole:.0%})")


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
