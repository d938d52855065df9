"""Many trainings: the best model for a cohort, sweeps, benchmark sets, the tables and claims of the ASMIL paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asmil.api.inputs import PathLike, as_path, names, tree, warn
from asmil.console import messages, progress_bar
from asmil.errors import AsmilError, did_you_mean

if TYPE_CHECKING:
    from asmil.classic.bag_set import BagSet
    from asmil.classic.jobs import Done, Job
    from asmil.cohort.manifest import Cohort
    from asmil.engine import Engine
    from asmil.experiments.auto.run import AutoResult
    from asmil.experiments.running import JobEnd
    from asmil.paper.claims.listing import Ruled
    from asmil.paper.counted import Counted
    from asmil.paper.datasets import Size
    from asmil.paper.running import PaperRun
    from asmil.tables.time_units import TimeUnit
    from asmil.tasks.base import TaskKind


def auto(
    cohort: Cohort | PathLike,
    out: PathLike,
    *,
    minutes: float = 30.0,
    task: TaskKind | None = None,
    features: PathLike | None = None,
    columns: Mapping[str, str] | None = None,
    time_unit: TimeUnit | None = None,
    method: str | Sequence[str] = (),
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    workers: int | None = None,
    device: str = "auto",
    engine: str = "local",
    address: str | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    item_timeout: float | None = None,
    again: bool = False,
    progress: bool = True,
) -> AutoResult:
    """Find the best method for a cohort, say whether attention pays and how good it will be, and train it.

    cohort: the manifest, or what `load_cohort` returned
    out: the folder of the page (`auto.html`), the trainings and the model (`bundle`); a search in it is resumed
    minutes: time budget; how many folds and epochs are trained depends on it
    task, features, columns, time_unit: as for `train`
    method: candidates, of the ladder in docs/auto.md or any method; default: the ladder. The linear probe and mean
        pooling are always among them
    settings: of all trainings, by their dotted names, e.g. {"training.epochs": 20}
    workers: trainings at the same time; default: one per GPU, or one
    device, engine, address, cpus, gpus: as for `sweep`
    again: search from the start if the folder contains a search with other inputs or settings, instead of refusing
    """
    from asmil.api.functions import load_cohort
    from asmil.cohort.manifest import Cohort
    from asmil.experiments.auto.run import run_auto
    from asmil.experiments.running import TrainingMachine
    from asmil.settings.config import flat
    from asmil.training.run_parts import TrainingEngine

    if not isinstance(cohort, Cohort):
        cohort = load_cohort(cohort, features=features, task=task or "classification", columns=columns)
    elif features is not None or columns is not None:
        raise AsmilError(f"{cohort.path}: this cohort is loaded already; give `features` and `columns` to load_cohort")
    if task not in (None, cohort.task):
        raise AsmilError(f"{cohort.path}: the cohort was loaded for {cohort.task}; load it for {task}")
    warn(*(f"{cohort.path}: {note}" for note in cohort.notes))
    machine = TrainingMachine(engine, address, workers, device, cpus, gpus)
    chosen, _ = machine.prepare()
    with _stages(not progress) as show:
        return run_auto(
            cohort,
            cohort.task or "classification",
            Path(out),
            minutes=minutes,
            names=names(method),
            settings=flat(tree(settings)),
            seed=seed,
            engine=chosen,
            time_unit=time_unit,
            item_timeout_s=item_timeout,
            device=device,
            model_engine=TrainingEngine("ray", address, 1, cpus=cpus, gpus=gpus) if machine.uses_ray() else None,
            again=again,
            show=show,
        )


@contextmanager
def _stages(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """One bar for each stage of a search; a stage that has ended leaves a line."""
    from rich.progress import Progress, TaskID

    console, bars = messages(quiet), dict[str, TaskID]()
    with Progress(console=console, transient=True) as progress:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(stage, total=total)
            progress.update(bars[stage], completed=done, visible=done < total)
            if done == total:
                console.print(f"{stage}: {total} done", markup=False, soft_wrap=True)

        yield show


def sweep(
    plan: PathLike,
    out: PathLike,
    *,
    workers: int | None = None,
    device: str = "auto",
    engine: str = "local",
    address: str | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    seconds: float | None = None,
    again: bool = False,
    progress: bool = True,
) -> list[JobEnd]:
    """Train every cohort, variant, point and seed of a plan, and collect all results in OUT/results.csv.

    plan: a YAML file with cohorts, variants, search and seeds, see docs/sweep.md
    out: the folder of runs and results; an existing one is resumed
    workers: trainings at the same time; default: one per GPU, or one
    device, engine, address, cpus, gpus: as for `extract`
    seconds: start no training after this time
    again: train again what was made from other labels, features or settings, instead of refusing

    The result has one entry per training: done, stopped by the time limit, or failed with an `error`.
    """
    from asmil.experiments.agreement import write_agreement
    from asmil.experiments.running import SweepFolder, TrainingMachine
    from asmil.experiments.settings import read_sweep
    from asmil.machine.locks import locked_folder
    from asmil.runs.layout import LOCK_FILE
    from asmil.settings.made_from import DoneBefore

    config, out = read_sweep(Path(plan)), Path(out)
    chosen, on_gpu = TrainingMachine(engine, address, workers, device, cpus, gpus).prepare()
    done = DoneBefore(again)
    busy = f"{out}: another sweep is running in this folder; wait for it, or give another --out"
    with locked_folder(out, LOCK_FILE, busy):
        ends = _follow(SweepFolder(config, out, on_gpu).run(chosen, seconds, done), progress)
        warn(*done.notes)
        if "attention" in config.measures:
            write_agreement(out)
    return ends


def _follow(ends: Iterable[JobEnd], progress: bool) -> list[JobEnd]:
    """All ends of jobs, shown as they come."""
    console, seen = messages(not progress), []
    for end in ends:
        seen.append(end)
        text = f"{len(seen)}: {end.job.name}: {end.status}{f': {end.error}' if end.error else ''}"
        console.print(text, markup=False, soft_wrap=True)
    return seen


@dataclass(frozen=True)
class ClassicBenchmark:
    """The result of a benchmark.

    report: the content of `classic.json`; None if nothing could be trained
    notes: why the trainings of a method ran one at a time, which takes longer
    """

    report: dict[str, Any] | None
    failures: tuple[str, ...]
    notes: tuple[str, ...] = ()


def classic_benchmark(
    data: PathLike | Sequence[PathLike],
    *,
    method: str | Sequence[str] = (),
    preset: str | Sequence[str] = ("paper",),
    settings: Mapping[str, Any] | None = None,
    seeds: int = 5,
    seed: int = 0,
    folds: int = 10,
    optimistic: bool = False,
    drop_last_column: bool = False,
    out: PathLike | None = None,
    workers: int | None = None,
    again: bool = False,
    progress: bool = True,
) -> ClassicBenchmark:
    """Benchmark methods on small sets of bags: accuracy in repeated stratified cross-validation. See docs/classic.md.

    data: benchmark sets, or folders of them
    method: methods, mi_svm or bag_forest; default: the usual eleven; preset: one row for each
    settings: further settings by their dotted names, e.g. {"training.epochs": 20}
    seeds, seed, folds: repetitions, the first seed, and folds per repetition
    optimistic: also report the best test epoch: an upper bound, not a result
    drop_last_column: leave out the last feature of every set, where it is the label
    out: a folder for the results; an interrupted benchmark in it is resumed
    workers: number of processes; default: one per core
    again: train again what was made from other inputs, instead of refusing
    """
    import shlex
    import sys

    from asmil.classic.folds import make_folds
    from asmil.classic.jobs import make_jobs, run_jobs
    from asmil.classic.leak import refuse_leaks
    from asmil.classic.settings import DEFAULT_METHODS, contenders
    from asmil.classic.summary import describe_set, make_report
    from asmil.classic.tables import csv_table, markdown_report
    from asmil.files import write_json, write_text
    from asmil.settings.folder_settings import claim_folder
    from asmil.settings.made_from import DoneBefore

    changes, out = tree(settings), as_path(out)
    rows = contenders(list(names(method)) or DEFAULT_METHODS, list(names(preset)), changes)
    files = [Path(path) for path in ([data] if isinstance(data, Path | str) else data)]
    sets, unreadable = _read_sets(files, drop_last_column)
    if not sets:
        raise AsmilError("; ".join(unreadable))
    described = []
    for bag_set in sets:
        make_folds(bag_set, folds, seed=0)  # refuses sets that are too small for the folds
        described.append(describe_set(bag_set, refuse_leaks(bag_set)))
    before = DoneBefore(again)
    if out is not None:
        note = {"folds": folds, "drop_last_column": drop_last_column, "set": changes}
        claim_folder(out / "settings.yaml", note, "a benchmark", again)
    jobs = make_jobs(sets, rows, range(seed, seed + seeds), folds, out)
    done = []
    try:
        with progress_bar("trainings", not progress) as show:
            for ended in run_jobs(jobs, {bag_set.name: bag_set for bag_set in sets}, _classic_engine(workers), before):
                done.append(ended)
                show(len(done), len(jobs))
    except KeyboardInterrupt:
        what = "nothing was saved, since --out was not given" if out is None else "run the same command again to resume"
        raise KeyboardInterrupt(f"interrupted; {what}") from None
    warn(*before.notes)
    failures = (*unreadable, *(f"{ended.name}: {ended.error}" for ended in done if ended.error is not None))
    results = _in_order(done, jobs)
    if not results:
        return ClassicBenchmark(None, failures)
    protocol = {
        "command": shlex.join(["asmil", *sys.argv[1:]]),
        "folds": folds,
        "seeds": list(range(seed, seed + seeds)),
        "drop_last_column": drop_last_column,
    }
    rules = ("last", "val", "optimistic") if optimistic else ("last", "val")
    report = make_report(results, rules, described, rows, protocol)
    if out is not None:
        write_json(out / "classic.json", report)
        write_text(out / "classic.csv", csv_table(report))
        write_text(out / "classic.md", markdown_report(report))
    alone = {result["name"]: result["one_at_a_time"] for result in results if "one_at_a_time" in result}
    notes = (f"{name} was trained one fold at a time, which takes longer: {reason}" for name, reason in alone.items())
    return ClassicBenchmark(report, failures, tuple(notes))


def _classic_engine(workers: int | None) -> Engine:
    """One worker is this process; several have one thread each."""
    from asmil.engine import InlineEngine, LocalEngine
    from asmil.machine.cores import usable_cores

    n_workers = workers or usable_cores()
    return InlineEngine() if n_workers == 1 else LocalEngine(n_workers, concurrency=1, threads_per_worker=1)


def _read_sets(data: list[Path], drop_last_column: bool) -> tuple[list[BagSet], list[str]]:
    """The sets that can be read, and what is wrong with the others."""
    from asmil.classic.reading import find_sets, read_set

    sets, unreadable = [], []
    for path in find_sets(data):
        try:
            bag_set = read_set(path)
            sets.append(bag_set.without_last_column() if drop_last_column else bag_set)
        except AsmilError as error:
            unreadable.append(str(error))
    return sets, unreadable


def _in_order(done: Sequence[Done], jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The results in the order of the jobs, whichever ended first: the same command gives the same table."""
    by_job = {(ended.job.set_name, ended.job.contender.name, ended.job.seed): ended.result for ended in done}
    results = (by_job.get((job.set_name, job.contender.name, job.seed)) for job in jobs)
    return [result for result in results if result is not None]


@dataclass(frozen=True)
class PaperTable:
    """A reproduced table or figure: its run and how the trainings ended or, for counted tables, the counts."""

    out: Path
    run: PaperRun | None = None
    ends: tuple[JobEnd, ...] = ()
    counted: Counted | None = None


def paper_table(
    table: str,
    *,
    cohort: PathLike | None = None,
    features: PathLike | None = None,
    datasets: str | Sequence[str] = (),
    rows: str | Sequence[str] = (),
    synthetic: bool = False,
    site_bias: float | None = None,
    quick: bool = False,
    small: bool = False,
    seeds: int | None = None,
    epochs: int | None = None,
    preset: str = "paper",
    settings: Mapping[str, Any] | None = None,
    out: PathLike | None = None,
    workers: int | None = None,
    device: str = "auto",
    engine: str = "local",
    address: str | None = None,
    gpus: float = 0.0,
    seconds: float | None = None,
    again: bool = False,
    progress: bool = True,
) -> PaperTable:
    """Reproduce a table or figure of the ASMIL paper and compare it with the paper. See docs/paper.md.

    table: as `asmil paper` lists them
    cohort, features: your manifest of one data set of the table, or `synthetic` for stand-ins
    datasets, rows: some of the table; with `cohort`, the data set that it holds
    site_bias: of stand-ins: the share of training patients whose site is chosen by their label, a shortcut; default: 0
    quick, small: a smoke size, a reduced size
    seeds, epochs: default: the paper's
    preset, settings: of the ASMIL rows
    out: the folder of runs and results; default: paper-runs/TABLE
    workers, device, engine, address, gpus, seconds, again: as for `sweep`
    """
    from asmil.experiments.running import TrainingMachine
    from asmil.paper.counted import CountRequest, write_counted
    from asmil.paper.figures import write_paper_figures
    from asmil.paper.recipes import COUNTED, recipe
    from asmil.paper.report import write_paper
    from asmil.paper.running import PaperRun
    from asmil.settings.config import flat
    from asmil.settings.made_from import DoneBefore

    if synthetic == (cohort is not None):
        raise AsmilError("give either --synthetic or --cohort with a manifest")
    if quick and small:
        raise AsmilError("--quick and --small are two sizes; give one")
    if site_bias is not None and (not synthetic or not 0 <= site_bias <= 1):
        raise AsmilError(f"--site-bias {site_bias:g}: it is a share of 0 to 1, and goes with --synthetic")
    size: Size = "quick" if quick else "small" if small else "full"
    folder = as_path(out) or Path("paper-runs") / f"{table}{'' if size == 'full' else f'-{size}'}"
    if table in COUNTED:
        if site_bias is not None:
            raise AsmilError(f"--site-bias {site_bias:g}: nothing is trained for {table}; leave it out")
        asked = CountRequest(folder, size, as_path(cohort), as_path(features), again)
        counted = write_counted(table, asked)
        return PaperTable(folder, counted=counted)
    run = PaperRun(
        recipe(table),
        folder,
        size,
        None if cohort is None else _paper_cohort(table, Path(cohort), as_path(features), names(datasets)),
        names(datasets),
        names(rows),
        seeds,
        epochs,
        preset=preset,
        asmil_settings=flat(tree(settings)),
        site_bias=site_bias or 0.0,
    )
    chosen, on_gpu = TrainingMachine(engine, address, workers, device, gpus=gpus).prepare()
    done = DoneBefore(again)
    ends = _follow(run.run(chosen, on_gpu, seconds, done), progress)
    warn(*done.notes)
    write_paper(run, run.results())
    write_paper_figures(run)
    return PaperTable(folder, run, tuple(ends))


def _paper_cohort(table: str, manifest: Path, features: Path | None, datasets: Sequence[str]) -> Any:
    from asmil.experiments.settings import CohortConfig
    from asmil.paper.datasets import dataset
    from asmil.paper.recipes import recipe

    known = recipe(table).datasets
    if len(datasets) != 1 and len(known) > 1:
        raise AsmilError(f"--cohort {manifest}: say which data set of {table} it is with --dataset: {', '.join(known)}")
    task = dataset(datasets[0] if datasets else known[0]).task
    return CohortConfig(
        manifest=manifest.absolute(), features=None if features is None else features.absolute(), task=task
    )


def claims(
    claims: str | Sequence[str] = (), *, runs: PathLike | None = None, verdict: str | None = None
) -> list[Ruled]:
    """The claims of the ASMIL paper, each with a verdict: supported, not supported, undecided or not testable here.

    claims: which; default: all
    runs: a folder of `paper_table` results to use instead of those that come with asmil
    verdict: only claims with this verdict
    """
    from asmil.paper.claims.listing import Ruled, rule
    from asmil.paper.claims.listing import claims as all_claims
    from asmil.paper.claims.measured import Measured

    known = {claim.id: claim for claim in all_claims()}
    for name in names(claims):
        if name not in known:
            raise AsmilError(f"there is no claim {name!r}: {did_you_mean(name, known)}")
    measured = Measured(as_path(runs))
    ruled = [Ruled(known[name], rule(known[name], measured)) for name in (names(claims) or known)]
    return [claim for claim in ruled if verdict in (None, claim.ruling.verdict)]
