"""`asmil faithfulness`: whether the maps of a run say what its models do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.options import (
    Address,
    Again,
    Annotations,
    BootstrapSeed,
    ClassName,
    Device,
    EngineName,
    Features,
    Json,
    MapKinds,
    OwnMethod,
    Quiet,
    Resamples,
    RunFolder,
    RunRole,
    SlideTimeout,
    Truth,
    Workers,
    call,
    out_option,
    raise_failures,
)


def faithfulness(
    run: RunFolder,
    out: Annotated[Path | None, out_option("Folder for the report. Default: RUN/faithfulness.")] = None,
    kind: MapKinds = None,
    name: ClassName = None,
    role: RunRole = "test",
    slides: Annotated[int | None, typer.Option(min=1, help="Largest number of slides. Default: all.")] = None,
    truth: Truth = None,
    annotations: Annotations = None,
    features: Features = None,
    resamples: Resamples = 2000,
    seed: BootstrapSeed = 0,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    device: Device = "auto",
    item_timeout: SlideTimeout = None,
    method: OwnMethod = None,
    as_json: Json = False,
    again: Again = False,
    quiet: Quiet = False,
) -> None:
    """Measure the faithfulness of heat maps: remove tiles in the order of each map and predict again.

    Random orders and, where tumor tiles are known, the true order are controls. Works for every task. Run the same
    command again to continue after an interruption.

    Example: asmil faithfulness runs/abmil --slides 20
    """
    given = locals()
    from asmil.api import results as functions
    from asmil.console import print_json, results, say
    from asmil.explain.faithfulness_report import faithfulness_dict, faithfulness_document
    from asmil.reporting import print_document

    result = call(functions.faithfulness, given)
    if as_json:
        print_json(faithfulness_dict(result))
    else:
        console = results()
        print_document(faithfulness_document(result), console)
        say(console, f"page: {(out or run / 'faithfulness') / 'faithfulness.html'}")
    raise_failures(result.problems, len(result.problems) + len(result.slides), "slides could not be evaluated")
