"""`asmil faithfulness`: whether the maps of a run say what its models do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from asmil.cli.options import Again, SlideTimeout, print_notes
from asmil.cli.run_warnings import warn_of_changed_labels
from asmil.cli.slide_engine import slide_engine


def faithfulness(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `asmil train`.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the report. Default: RUN/faithfulness.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Kind of map, may be repeated. Default: all that the method has.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--class", help="Class or label to explain. Default: the predicted one of each slide.")
    ] = None,
    role: Annotated[Literal["test", "val", "train"], typer.Option(help="Part of the run to evaluate.")] = "test",
    slides: Annotated[int | None, typer.Option(min=1, help="Largest number of slides. Default: all.")] = None,
    truth: Annotated[
        Path | None,
        typer.Option(help="Table of tiles (slide, x, y, tumor). Default: tile_truth.parquet beside the manifest."),
    ] = None,
    annotations: Annotated[
        Path | None, typer.Option(help="Folder of annotations, for tile AUC and FROC instead of the table.")
    ] = None,
    features: Annotated[Path | None, typer.Option(help="Folder of the features; default: the manifest's.")] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Bootstrap resamples of patients.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap and of random orders.")] = 0,
    engine: Annotated[str, typer.Option(help="local (processes of this machine) or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster; auto finds one.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes. Default: one per core; 0: this one.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    item_timeout: SlideTimeout = None,
    method: Annotated[
        str | None, typer.Option("--method", metavar="NAME", help="Confirm the run's method if it is your own code.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    again: Again = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Measure the faithfulness of heat maps: remove tiles in the order of each map and predict again.

    Random orders and, where tumor tiles are known, the true order are controls. Works for every task. Run the same
    command again to continue after an interruption.

    Example: asmil faithfulness runs/abmil --slides 20
    """
    from asmil.console import print_json, progress_bar, results, say
    from asmil.errors import AsmilError
    from asmil.evaluation.localization.localize import LocalizeSettings, tile_auc_and_froc
    from asmil.evaluation.run_alarms import alarms_of_run
    from asmil.explain.faithfulness import FaithfulnessSettings, faithfulness_run
    from asmil.explain.faithfulness_report import faithfulness_dict, faithfulness_document, write_faithfulness
    from asmil.reporting import Estimate, print_document
    from asmil.settings.made_from import DoneBefore

    settings = FaithfulnessSettings(
        kinds=tuple(kind or ()),
        name=name,
        role=role,
        slides=slides,
        truth=truth,
        features=features,
        resamples=resamples,
        seed=seed,
        device=device,
        method=method,
    )

    def locate(kind: str, table: Path, names: frozenset[str]) -> tuple[Estimate, Estimate] | None:
        asked = LocalizeSettings(
            annotations=annotations,
            truth=None if annotations else table,
            features=features,
            slides=names,
            role=role,
            scalings=("rank",),
            kind=kind,
            resamples=resamples,
            seed=seed,
            device=device,
            method=method,
        )
        return tile_auc_and_froc(run, asked)

    warn_of_changed_labels([run])
    folder, done = out or run / "faithfulness", DoneBefore(again)
    with progress_bar("slides", quiet) as show:
        found = faithfulness_run(
            run,
            settings,
            show,
            locate,
            lambda n_slides: slide_engine(engine, address, workers, device, item_timeout, n_slides),
            keep=folder / "slides",
            done_before=done,
        )
    print_notes(done)
    found = replace(found, alarms=tuple(alarm.short for alarm in alarms_of_run(run)))
    page = write_faithfulness(found, folder)
    if as_json:
        print_json(faithfulness_dict(found))
    else:
        console = results()
        print_document(faithfulness_document(found), console)
        say(console, f"page: {page}")
    if found.problems:
        listed = "\n".join(f"  - {line}" for line in found.problems)
        total = len(found.problems) + len(found.slides)
        raise AsmilError(f"{len(found.problems)} of {total} slides could not be evaluated:\n{listed}")
