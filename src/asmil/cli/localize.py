"""`asmil localize`: whether the heat maps of a run show the annotated tumor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Preset = Literal["release", "challenge2016", "asmil_text"]
ConversionName = Literal["nms", "tiles", "components"]


def localize(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `asmil train`.")],
    annotations: Annotated[
        Path | None, typer.Option(help="Folder of annotations: ASAP or Aperio XML, GeoJSON, mask TIFFs.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="Instead of annotations: a table of tiles (slide, x, y, tumor).")
    ] = None,
    cohort: Annotated[Path | None, typer.Option(help="The manifest. Default: the one the run was trained on.")] = None,
    features: Annotated[Path | None, typer.Option(help="Where the features are. Default: beside the manifest.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the page and tables. Default: RUN/localization.")
    ] = None,
    role: Annotated[Literal["test", "val", "train"], typer.Option(help="Part of the run to evaluate.")] = "test",
    preset: Annotated[Preset, typer.Option(help="FROC convention.")] = "release",
    conversion: Annotated[ConversionName, typer.Option(help="How tiles become points for FROC.")] = "nms",
    radius: Annotated[
        int, typer.Option(min=1, help="For nms: radius in tiles within which a point suppresses others.")
    ] = 3,
    scaling: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Scaling in addition to minmax: gated, times_n, cohort or rank; may be repeated. Default: gated, or "
            "times_n if no class is normal.",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", "--heatmap", metavar="KIND", help="Another kind of map, as in `asmil heatmap --kind`."),
    ] = None,
    tumor: Annotated[
        list[str] | None, typer.Option(metavar="CLASS", help="Annotated class that is tumor; may be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="CLASS", help="Annotated class to cut out; may be repeated.")
    ] = None,
    mask_value: Annotated[int | None, typer.Option(help="Value of tumor in mask TIFFs. Default: all but 0.")] = None,
    normal: Annotated[
        list[str] | None, typer.Option(metavar="LABEL", help="Label of normal slides; may be repeated.")
    ] = None,
    skip_list: Annotated[Path | None, typer.Option(help="File with slides to leave out, one name per line.")] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Bootstrap resamples of patients.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
    method: Annotated[
        str | None, typer.Option("--method", metavar="NAME", help="Confirm the run's method if it is your own code.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Compare the heat maps of a run with annotations: FROC, Dice, specificity, missed regions, tile AUC.

    Every slide is evaluated with models that were not trained on it: those of its test fold, averaged over seeds.

    Example: asmil localize runs/abmil --annotations cohort/annotations
    """
    from asmil.console import print_json, progress_bar, results, say
    from asmil.errors import AsmilError
    from asmil.evaluation.localization.localize import LocalizeSettings, known_scalings, localize_run
    from asmil.evaluation.localization.report import localization_dict, localization_document, write_localization
    from asmil.reporting import print_document
    from asmil.slides.annotations import ClassNames

    settings = LocalizeSettings(
        method=method,
        annotations=annotations,
        truth=truth,
        cohort=cohort,
        features=features,
        role=role,
        preset=preset,
        conversion=conversion,
        radius=radius,
        scalings=known_scalings(scaling or ()),
        kind=kind,
        normal=tuple(normal or ()),
        classes=ClassNames(tuple(tumor or ()), tuple(exclude or ())),
        mask_value=mask_value,
        skip_list=skip_list,
        resamples=resamples,
        seed=seed,
        device=device,
    )
    with progress_bar("slides", quiet) as show:
        found = localize_run(run, settings, progress=show)
    folder = out or run / ("localization" if role == "test" else f"localization-{role}")
    page = write_localization(found, folder)
    if as_json:
        print_json(localization_dict(found))
    else:
        console = results()
        document = localization_document(found)
        say(console, f"{found.name}: {document.about}")
        print_document(document, console)
        for note in found.notes:
            say(console, f"note: {note}")
        if found.skipped:
            say(console, f"left out by {skip_list}: {', '.join(found.skipped)}")
        say(console, f"page: {page}")
    if found.problems:
        listed = "\n".join(f"  - {line}" for line in found.problems)
        total = len(found.problems) + len(found.slides)
        raise AsmilError(f"{len(found.problems)} of {total} slides could not be evaluated:\n{listed}")
