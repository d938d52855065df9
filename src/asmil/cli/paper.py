"""The verb `paper`: the tables and figures of the ASMIL paper, listed and run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asmil.cli.options import Again, print_notes

if TYPE_CHECKING:
    from asmil.experiments.settings import CohortConfig
    from asmil.paper.datasets import Size

LABELS_HELP = "`manifest`: a published label file, e.g. stage_labels.csv; repeatable."


def paper(
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="A table or figure, or `manifest`; without one, a list.")
    ] = None,
    dataset: Annotated[str | None, typer.Argument(metavar="[DATASET]", help="For `manifest`: the data set.")] = None,
    cohort: Annotated[Path | None, typer.Option(help="Your manifest of one data set of the table.")] = None,
    features: Annotated[Path | None, typer.Option(help="Features of the cohort, if not beside it.")] = None,
    datasets: Annotated[
        list[str] | None,
        typer.Option("--dataset", help="Data sets of the table; with --cohort, the one that it holds."),
    ] = None,
    rows: Annotated[list[str] | None, typer.Option("--row", help="Rows of the table; may be repeated.")] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Run on synthetic stand-ins.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke size: seconds to minutes.")] = False,
    small: Annotated[bool, typer.Option("--small", help="A reduced size.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds; default: the paper's.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs; default: the paper's.")] = None,
    preset: Annotated[str, typer.Option(help="Preset of the ASMIL rows.")] = "paper",
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Settings of the ASMIL rows.")
    ] = None,
    labels: Annotated[list[Path] | None, typer.Option("--labels", help=LABELS_HELP)] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of runs and results.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Trainings at the same time.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster.")] = None,
    gpus: Annotated[float, typer.Option(help="For Ray: GPUs per training.")] = 0.0,
    seconds: Annotated[float | None, typer.Option(min=0, help="Start no training after this time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    again: Again = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """List the tables and figures of the ASMIL paper, or reproduce one and compare it with the paper.

    Run the same command again to resume. The example takes about a minute.

    Example: asmil paper components --synthetic --quick --out paper
    """
    from asmil.errors import AsmilError
    from asmil.paper.recipes import COUNTED

    if table is None:
        _list()
        return
    if table == "manifest":
        _manifest(dataset, labels or [], out)
        return
    if dataset is not None:
        raise AsmilError(f"{dataset!r} is one argument too many; choose data sets with --dataset")
    if synthetic == (cohort is not None):
        raise AsmilError("give either --synthetic or --cohort with a manifest")
    if quick and small:
        raise AsmilError("--quick and --small are two sizes; give one")
    size: Size = "quick" if quick else "small" if small else "full"
    place = out or Path("paper-runs") / f"{table}{'' if size == 'full' else f'-{size}'}"
    if table in COUNTED:
        _counted(table, place, size, cohort, features, again, as_json)
        return

    from asmil.cli.sweep import exit_code, follow
    from asmil.console import results as open_console
    from asmil.experiments.running import TrainingMachine
    from asmil.paper.recipes import recipe
    from asmil.paper.report import paper_document, write_paper
    from asmil.paper.running import PaperRun
    from asmil.reporting import print_document
    from asmil.settings.config import flat, parse_assignments
    from asmil.settings.made_from import DoneBefore

    run = PaperRun(
        recipe(table),
        place,
        size,
        _cohort(table, cohort, features, datasets or []) if cohort is not None else None,
        tuple(datasets or ()),
        tuple(rows or ()),
        seeds,
        epochs,
        preset=preset,
        asmil_settings=flat(parse_assignments(assignments or [])),
    )
    chosen, on_gpu = TrainingMachine(engine, address, workers, device, gpus=gpus).prepare()
    done = DoneBefore(again)
    ends = follow(run.run(chosen, on_gpu, seconds, done), quiet)
    print_notes(done)
    results = run.results()
    page = write_paper(run, results)
    if as_json:
        typer.echo((run.out / "table.json").read_text(encoding="utf-8"))
    else:
        from asmil.paper.figures import write_figures

        console = open_console()
        print_document(paper_document(run, results), console)
        for path in [page, *write_figures(run)]:
            console.print(f"written: {path}", markup=False, soft_wrap=True)
    exit_code(ends)


def _cohort(table: str, manifest: Path, features: Path | None, datasets: list[str]) -> CohortConfig:
    from asmil.errors import AsmilError
    from asmil.experiments.settings import CohortConfig
    from asmil.paper.datasets import dataset
    from asmil.paper.recipes import recipe

    known = recipe(table).datasets
    if len(datasets) != 1 and len(known) > 1:
        raise AsmilError(f"--cohort {manifest}: say which data set of {table} it is with --dataset: {', '.join(known)}")
    one = dataset(datasets[0] if datasets else known[0])
    return CohortConfig(
        manifest=manifest.absolute(), features=None if features is None else features.absolute(), task=one.task
    )


def _list() -> None:
    from asmil.console import results
    from asmil.paper.printed import printed
    from asmil.reporting import Table, print_table

    tables, figures = printed()
    console = results()
    rows = [[one.id, "table", one.title, ", ".join(one.datasets)] for one in tables.values()]
    rows += [[one.id, "figure", one.title, one.claimed] for one in figures.values()]
    print_table(Table(["name", "kind", "title", "data sets, or what it is to show"], rows), console)
    console.print(
        "run one: asmil paper NAME --synthetic --quick, or asmil paper NAME --cohort cohort.csv", markup=False
    )
    console.print("build a manifest: asmil paper manifest DATASET --labels FILE --out cohort.csv", markup=False)


def _manifest(dataset: str | None, labels: list[Path], out: Path | None) -> None:
    from asmil.errors import AsmilError
    from asmil.paper.manifests import MANIFESTS, build_manifest, describe_manifest

    if dataset is None:
        for line in describe_manifest():
            typer.echo(line)
        return
    if not labels or out is None:
        raise AsmilError(f"asmil paper manifest {dataset}: give --labels FILE and --out cohort.csv; known data sets: "
                         f"{', '.join(MANIFESTS)}")  # fmt: skip
    for line in build_manifest(dataset, labels, out):
        typer.echo(line)


def _counted(
    table: str, out: Path, size: Size, cohort: Path | None, features: Path | None, again: bool, as_json: bool
) -> None:
    from asmil.console import results
    from asmil.paper.counted import counted_document, write_counted
    from asmil.reporting import print_document

    found = write_counted(table, out, size, cohort, features, again)
    if as_json:
        typer.echo((out / "table.json").read_text(encoding="utf-8"))
        return
    print_document(counted_document(found), results())
