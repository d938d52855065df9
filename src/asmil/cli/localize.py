"""The verb `localize`: whether a run looks where the tumor is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from asmil.evaluation.localization.run import Localization

Preset = Literal["release", "challenge2016", "asmil_text"]
ConversionName = Literal["nms", "tiles", "components"]


def localize(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `asmil train`.")],
    annotations: Annotated[
        Path | None, typer.Option(help="Folder of annotations: ASAP or Aperio XML, GeoJSON, mask TIFFs.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="In place of annotations: a table of tiles (slide, x, y, tumor).")
    ] = None,
    cohort: Annotated[Path | None, typer.Option(help="Manifest; default: the one the run was trained on.")] = None,
    features: Annotated[
        Path | None, typer.Option(help="Folder of the features; default: as the manifest has it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for page and tables; default: RUN/localization.")] = None,
    role: Annotated[Literal["test", "val", "train"], typer.Option(help="Part of the run's slides to judge.")] = "test",
    preset: Annotated[Preset, typer.Option(help="FROC convention.")] = "release",
    conversion: Annotated[ConversionName, typer.Option(help="How tiles become points for FROC.")] = "nms",
    radius: Annotated[int, typer.Option(min=1, help="nms: tiles around a point that it silences.")] = 3,
    scaling: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Scaling beside minmax, may be repeated: gated, times_n, cohort, rank. Default: gated, or times_n "
            "where no class is normal.",
        ),
    ] = None,
    heatmap: Annotated[str | None, typer.Option(metavar="KIND", help="Another heat map of the method.")] = None,
    tumor: Annotated[list[str] | None, typer.Option(help="Annotated class that is tumor, may be repeated.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Annotated class to cut out, may be repeated.")] = None,
    mask_value: Annotated[int | None, typer.Option(help="Value of tumor in mask TIFFs; default: all but 0.")] = None,
    normal: Annotated[list[str] | None, typer.Option(help="Label of normal slides, may be repeated.")] = None,
    skip_list: Annotated[Path | None, typer.Option(help="File with names of slides to leave out, one a line.")] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Draws of patients behind an interval.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of those draws.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Judge the heat maps of a run against annotations: FROC, Dice, specificity, missed regions, AUC of tiles.

    Every slide is judged by models that were not trained on it: those of the fold that tests it, averaged over seeds.
    """
    import json

    from rich.console import Console
    from rich.progress import Progress

    from asmil.errors import AsmilError
    from asmil.evaluation.localization.page import write_localization
    from asmil.evaluation.localization.run import localize_run
    from asmil.evaluation.localization.settings import LocalizeSettings, known_scalings
    from asmil.evaluation.localization.tables import localization_dict
    from asmil.evaluation.localization.words import (
        convention,
        few_patients,
        froc_words,
        minmax_words,
        scaling_title,
        sizes,
    )
    from asmil.slides.annotations import ClassNames

    settings = LocalizeSettings(
        annotations=annotations,
        truth=truth,
        cohort=cohort,
        features=features,
        role=role,
        preset=preset,
        conversion=conversion,
        radius=radius,
        scalings=known_scalings(scaling or ()),
        heatmap=heatmap,
        normal=tuple(normal or ()),
        classes=ClassNames(tuple(tumor or ()), tuple(exclude or ())),
        mask_value=mask_value,
        skip_list=skip_list,
        resamples=resamples,
        seed=seed,
        device=device,
    )
    with Progress(console=Console(stderr=True, quiet=quiet), transient=True) as progress:
        task = progress.add_task("slides", total=None)
        found = localize_run(
            run, settings, progress=lambda done, total: progress.update(task, completed=done, total=total)
        )
    folder = out or run / ("localization" if role == "test" else f"localization-{role}")
    page = write_localization(found, folder)
    if as_json:
        typer.echo(json.dumps(localization_dict(found), indent=1, ensure_ascii=False))
    else:
        console = Console(highlight=False)
        console.print(f"{found.name} ({found.method}), {sizes(found)}", markup=False)
        console.print(f"{convention(found)}; value and 95 % interval by patient", markup=False)
        console.print(_summary(found))
        for name in found.judging.scalings:
            words = froc_words(found.summary.scaled[name].froc)
            console.print(f"lesions found at false positives a slide, {scaling_title(name)}: {words}", markup=False)
        for sentence in [*minmax_words(found), *few_patients(found)]:
            console.print(sentence, style="yellow", markup=False)
        for note in found.notes:
            console.print(f"note: {note}", markup=False)
        if found.skipped:
            console.print(f"left out by {skip_list}: {', '.join(found.skipped)}", markup=False)
        console.print(f"page: {page}", markup=False, soft_wrap=True)
    if found.problems:
        listed = "\n".join(f"  - {line}" for line in found.problems)
        total = len(found.problems) + len(found.slides)
        raise AsmilError(f"{len(found.problems)} of {total} slides could not be judged:\n{listed}")


def _summary(found: Localization) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from asmil.evaluation.localization.summary import SCALED_METRICS, TITLES, UNSCALED_METRICS
    from asmil.evaluation.localization.words import scaling_title
    from asmil.reporting.formats import format_interval, format_number

    scalings = found.judging.scalings
    table = Table(box=SIMPLE_HEAD)
    table.add_column("measure", no_wrap=True)
    for scaling in scalings:
        table.add_column(scaling_title(scaling), justify="right", no_wrap=True)
    numbers = {name: [found.summary.scaled[scaling].numbers[name] for scaling in scalings] for name in SCALED_METRICS}
    numbers |= {name: [found.summary.unscaled[name]] * len(scalings) for name in UNSCALED_METRICS}
    for name, values in numbers.items():
        cells = [f"{format_number(one.value)} [dim]{format_interval(one.interval, '–')}[/dim]" for one in values]
        table.add_row(TITLES[name], *cells)
    return table
