"""`asmil localize`: whether the tile maps of a run show the annotated tumor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from asmil.cli import options
from asmil.cli.options import option


def localize(
    run: options.RunFolder,
    annotations: options.Annotations = None,
    truth: options.Truth = None,
    cohort: Annotated[Path | None, option("The manifest. Default: the one the run was trained on.")] = None,
    features: options.Features = None,
    out: Annotated[
        Path | None, options.out_option("Folder for the page and tables. Default: RUN/localization.")
    ] = None,
    role: options.RunRole = "test",
    preset: Annotated[Literal["release", "challenge2016", "asmil_text"], option("FROC convention.")] = "release",
    conversion: Annotated[Literal["nms", "tiles", "components"], option("How tiles become points for FROC.")] = "nms",
    radius: Annotated[int, option("For nms: radius in tiles within which a point suppresses others.", min=1)] = 3,
    scaling: Annotated[
        list[str] | None,
        option(
            "Scaling in addition to minmax: gated, times_n, cohort or rank; may be repeated. Default: gated, or "
            "times_n if no class is normal.",
            metavar="NAME",
        ),
    ] = None,
    kind: Annotated[
        str | None, option("Another kind of map, as in `asmil heatmap --kind`.", "--kind", "--heatmap", metavar="KIND")
    ] = None,
    tumor: Annotated[
        list[str] | None, option("Annotated class that is tumor; may be repeated.", metavar="CLASS")
    ] = None,
    exclude: Annotated[
        list[str] | None, option("Annotated class to cut out; may be repeated.", metavar="CLASS")
    ] = None,
    mask_value: options.MaskValue = None,
    normal: Annotated[list[str] | None, option("Label of normal slides; may be repeated.", metavar="LABEL")] = None,
    skip_list: Annotated[Path | None, option("File with slides to leave out, one name per line.")] = None,
    resamples: options.Resamples = 2000,
    seed: options.BootstrapSeed = 0,
    method: options.OwnMethod = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare the heat maps of a run with annotations: FROC, Dice, specificity, missed regions, tile AUC.

    Every slide is evaluated with models that were not trained on it: those of its test fold, averaged over seeds.

    Example: asmil localize runs/abmil --annotations cohort/annotations
    """
    given = locals()
    from asmil.api import results as functions
    from asmil.console import print_json, results, say
    from asmil.evaluation.localization.report import localization_dict, localization_document
    from asmil.reporting import print_document

    localization = options.call(functions.localize, given)
    if as_json:
        print_json(localization_dict(localization))
    else:
        console = results()
        document = localization_document(localization)
        say(console, f"{localization.name}: {document.about}")
        print_document(document, console)
        for note in localization.notes:
            say(console, f"note: {note}")
        if localization.skipped:
            say(console, f"left out by {skip_list}: {', '.join(localization.skipped)}")
        say(console, f"page: {functions.localization_folder(run, out, role) / 'localization.html'}")
    total = len(localization.problems) + len(localization.slides)
    options.raise_failures(localization.problems, total, "slides could not be evaluated")
