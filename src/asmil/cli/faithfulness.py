"""`asmil faithfulness`: whether the maps of a run say what its models do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from asmil.cli import options
from asmil.cli.options import option


def faithfulness(
    run: options.RunFolder,
    out: Annotated[Path | None, options.out_option("Folder for the report. Default: RUN/faithfulness.")] = None,
    kind: options.MapKinds = None,
    name: options.ClassName = None,
    role: options.RunRole = "test",
    slides: Annotated[int | None, option("Largest number of slides. Default: all.", min=1)] = None,
    truth: options.Truth = None,
    annotations: options.Annotations = None,
    features: options.Features = None,
    resamples: options.Resamples = 2000,
    seed: options.BootstrapSeed = 0,
    engine: options.EngineName = "local",
    address: options.Address = None,
    workers: options.Workers = None,
    device: options.Device = "auto",
    item_timeout: options.SlideTimeout = None,
    method: options.OwnMethod = None,
    as_json: options.Json = False,
    again: options.Again = False,
    quiet: options.Quiet = False,
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

    result = options.call(functions.faithfulness, given)
    if as_json:
        print_json(faithfulness_dict(result))
    else:
        console = results()
        print_document(faithfulness_document(result), console)
        say(console, f"page: {(out or run / 'faithfulness') / 'faithfulness.html'}")
    options.raise_failures(result.problems, len(result.problems) + len(result.slides), "slides could not be evaluated")
