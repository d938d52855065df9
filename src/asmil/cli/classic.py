"""`asmil classic`: small benchmark sets, from files to a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from asmil.cli.options import Again, Json, Processes, Quiet, SettingsOption, argument, call, option, out_option


def classic(
    data: Annotated[
        list[Path],
        argument("Benchmark sets, or folders of them: .npz, .mat, UCI text, .csv, SVM-light.", metavar="DATA..."),
    ],
    method: Annotated[
        list[str] | None,
        option(
            "A method, mi_svm or bag_forest; may be repeated. Default: the usual eleven.",
            "--method",
            "-m",
            metavar="NAME",
        ),
    ] = None,
    preset: Annotated[
        list[str] | None, option("paper (default), no_anchor, ...; may be repeated, one row each.", metavar="NAME")
    ] = None,
    settings: SettingsOption = None,
    seeds: Annotated[int, option("Repetitions, with seeds SEED, SEED + 1, ...", min=1)] = 5,
    seed: Annotated[int, option("First seed: of folds, initial weights and order of bags.", min=0)] = 0,
    folds: Annotated[int, option("Folds per repetition.", min=2)] = 10,
    optimistic: Annotated[
        bool, option("Also show the best test epoch: an upper bound, not a result.", "--optimistic")
    ] = False,
    drop_last_column: Annotated[
        bool, option("Leave out the last feature of every set, where it is the label.", "--drop-last-column")
    ] = False,
    out: Annotated[
        Path | None, out_option("Folder for the results; an interrupted benchmark in it is resumed.")
    ] = None,
    workers: Processes = None,
    as_json: Json = False,
    again: Again = False,
    quiet: Quiet = False,
) -> None:
    """Benchmark methods on small sets of bags: accuracy in repeated stratified cross-validation.

    A set in which one column alone predicts the label is refused. With --out, every finished seed is saved, the same
    command resumes an interrupted benchmark, and classic.json, .csv and .md are written.

    Example: asmil classic musk1.mat --method abmil --method asmil --out classic
    """
    given = locals()
    from asmil.api import benchmarks
    from asmil.console import print_json

    result = call(benchmarks.classic_benchmark, given)
    if as_json and result.report is not None:
        print_json(result.report)
    elif result.report is not None:
        _print(result.report, out)
    for note in result.notes:
        typer.echo(f"note: {note}", err=True)
    for failure in result.failures:
        typer.echo(f"failed: {failure}", err=True)
    if result.failures:
        raise typer.Exit(1)


def _print(report: dict[str, Any], out: Path | None) -> None:
    from asmil.classic.tables import paper_grid, rule_grid, rule_title, rules_of
    from asmil.console import results, say
    from asmil.reporting import print_table

    console = results()
    for rule in rules_of(report):
        say(console, rule_title(report, rule))
        print_table(rule_grid(report, rule), console)
    printed = paper_grid(report)
    if printed is not None:
        say(console, "what the paper reports")
        print_table(printed, console)
        say(console, "the paper's numbers cannot be compared with ours:")
        for reason in report["paper"]["why_not_comparable"]:
            say(console, f"- {reason}")
    if out is not None:
        say(console, f"results: {out / 'classic.json'}, .csv and .md")
