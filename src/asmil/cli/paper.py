"""The verb `paper`: the tables and figures of the ASMIL paper, listed and run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asmil.cli import options
from asmil.cli.options import argument, option

if TYPE_CHECKING:
    from rich.console import Console

    from asmil.api.benchmarks import PaperTable


def paper(
    table: Annotated[
        str | None, argument("A table or figure, or `manifest`; without one, a list.", metavar="[TABLE]")
    ] = None,
    dataset: Annotated[str | None, argument("For `manifest`: the data set.", metavar="[DATASET]")] = None,
    cohort: Annotated[Path | None, option("Your manifest of one data set of the table.")] = None,
    features: options.Features = None,
    datasets: Annotated[
        list[str] | None,
        option("Data sets of the table; with --cohort, the one that it holds.", "--dataset", metavar="NAME"),
    ] = None,
    rows: Annotated[list[str] | None, option("Rows of the table; may be repeated.", "--row", metavar="NAME")] = None,
    synthetic: Annotated[bool, option("Run on synthetic stand-ins.", "--synthetic")] = False,
    site_bias: Annotated[
        float | None,
        option("For --synthetic: share of training patients whose site is chosen by their label. Default: 0."),
    ] = None,
    quick: Annotated[bool, option("A smoke size: seconds to minutes.", "--quick")] = False,
    small: Annotated[bool, option("A reduced size.", "--small")] = False,
    seeds: Annotated[int | None, option("Seeds; default: the paper's.", min=1)] = None,
    epochs: Annotated[int | None, option("Epochs; default: the paper's.", min=1)] = None,
    preset: Annotated[str, option("Preset of the ASMIL rows.")] = "paper",
    settings: options.SettingsOption = None,
    labels: Annotated[
        list[Path] | None, option("For `manifest`: a published label file; may be repeated.", metavar="FILE")
    ] = None,
    out: Annotated[Path | None, options.out_option("Folder of runs and results.")] = None,
    workers: options.Trainings = None,
    device: options.Device = "auto",
    engine: options.EngineName = "local",
    address: options.Address = None,
    gpus: options.Gpus = 0.0,
    seconds: options.Seconds = None,
    as_json: options.Json = False,
    again: options.Again = False,
    quiet: options.Quiet = False,
) -> None:
    """List the tables and figures of the ASMIL paper, or reproduce one and compare it with the paper.

    Run the same command again to resume. The example takes about a minute.

    Example: asmil paper components --synthetic --quick --out paper
    """
    given = locals()
    from asmil.errors import AsmilError

    if table is None:
        _list()
        return
    if table == "manifest":
        _manifest(dataset, labels or [], out)
        return
    if dataset is not None:
        raise AsmilError(f"{dataset!r} is one argument too many; choose data sets with --dataset")

    from asmil.api import benchmarks
    from asmil.cli.sweep import exit_code
    from asmil.console import results

    reproduced = options.call(benchmarks.paper_table, given)
    if as_json:
        typer.echo((reproduced.out / "table.json").read_text(encoding="utf-8"))
    else:
        _print(reproduced, results())
    exit_code(reproduced.ends)


def _print(reproduced: PaperTable, console: Console) -> None:
    from asmil.paper.counted import counted_document
    from asmil.paper.report import paper_document
    from asmil.reporting import print_document

    if reproduced.counted is not None:
        print_document(counted_document(reproduced.counted), console)
    elif reproduced.run is not None:
        print_document(paper_document(reproduced.run, reproduced.run.results()), console)
        console.print(f"results: {reproduced.out}", markup=False, soft_wrap=True)


def _list() -> None:
    from asmil.console import results
    from asmil.paper.printed import printed
    from asmil.reporting import Table, print_table

    tables, figures = printed()
    console = results()
    rows = [[table.id, "table", table.title, ", ".join(table.datasets)] for table in tables.values()]
    rows += [[figure.id, "figure", figure.title, figure.claimed] for figure in figures.values()]
    print_table(Table(["name", "kind", "title", "data sets, or what it should show"], rows), console)
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
