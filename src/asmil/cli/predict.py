"""`asmil predict`: what a run says of new slides, from their features or from the slides themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asmil.cli.column_option import COLUMNS_HELP

if TYPE_CHECKING:
    from asmil.extraction.machine import Machine
    from asmil.training.prediction import RunPredictor


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder of `asmil train`.")],
    slides: Annotated[Path, typer.Argument(help="Slides or feature files: a folder, one file, or a table (manifest).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The CSV file to write.")] = Path("predictions.csv"),
    attention: Annotated[
        bool, typer.Option("--attention", help="Also write the attention of every tile, to OUT_attention/SLIDE.h5.")
    ] = False,
    features: Annotated[Path | None, typer.Option(help="Folder of the features, for a manifest.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="NAME=COLUMN,...", help=COLUMNS_HELP)] = None,
    mpp: Annotated[float | None, typer.Option(help="Slides: microns per level-0 pixel; wins over the files.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Slides: file of the encoder's weights.")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Slides: confirm the run's encoder where it is code, module:callable.")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Confirm the run's method where it is code, module:Class.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Slides: processes that extract. Default: one a GPU, or one a core.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    item_timeout: Annotated[
        float | None, typer.Option(min=0, help="Slides and feature files: as in `asmil extract` and `asmil check`.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Predict slides with the models of a run, averaged over its folds and seeds. Labels are not needed.

    A run that joined the slides of a patient (survival) joins them here, too, by the table's column `patient`.

    Slides are extracted first, as those of the training were; their features are kept in OUT_features/.
    """
    import pandas as pd
    from rich.console import Console
    from rich.progress import track

    from asmil.api.new_slides import are_images, extracted_slides, feature_slides, naming, patients_of, readable_units
    from asmil.cohort.units import units_of
    from asmil.columns import parse_mapping
    from asmil.errors import AsmilError
    from asmil.files import replacing
    from asmil.memory import keep_freed_memory
    from asmil.names import file_in
    from asmil.training.prediction import RunPredictor, write_attention

    console = Console(quiet=quiet, stderr=True)
    keep_freed_memory()
    predictor = RunPredictor(run, device, method)
    rows: list[dict[str, Any]] = []
    bad: list[str] = []
    mapping = parse_mapping(columns)
    if features is None and are_images(slides, mapping):
        from asmil.extraction.machine import Machine

        place = out.with_name(f"{out.stem}_features")
        machine = Machine(device=device, workers=workers, item_timeout=item_timeout)
        names, bad = _extract(predictor, run, slides, place, mpp, weights, encoder, machine, quiet)
        cohort = extracted_slides(names, place, patients_of(slides, mapping))
    else:
        found = feature_slides(slides, features, mapping)
        for note in found.notes:
            typer.echo(f"note: {slides}: {note}", err=True)
        cohort = list(found.slides)
    units = units_of(cohort, predictor.unit)
    if predictor.unit == "patient" and all(unit.name == unit.slides[0].slide for unit in units):
        typer.echo("note: no patients are named, so every slide counts as a patient; name them in a table", err=True)
    total = len(units) + len(bad)
    readable, unreadable = readable_units(units, item_timeout)
    bad += unreadable
    maps = out.with_name(f"{out.stem}_attention")
    try:
        results = predictor.predict_all(readable, attention)
        for unit, result in track(results, "predicting", total=len(readable), console=console):
            if isinstance(result, AsmilError):
                bad.append(naming(unit, str(result)))
                continue
            if attention:
                write_attention(file_in(maps, unit.name, ".h5"), result, [slide.slide for slide in unit.slides])
            rows.append(predictor.row(result))
    finally:
        # What was predicted before an interruption is written, too.
        if rows:
            with replacing(out) as partial:
                pd.DataFrame(rows).to_csv(partial, index=False)
    n_models = len(predictor.models)
    averaged = f", each the mean of {n_models} models (folds and seeds of the run)" if n_models > 1 else ""
    if rows:
        typer.echo(
            f"{len(rows)} {predictor.unit}{'s' * (len(rows) != 1)} predicted{averaged}: {out}"
            + (f", attention in {maps}" if attention else "")
        )
    if predictor.unfinished:
        typer.echo(f"note: {predictor.unfinished} trainings of the run have not ended and were left out", err=True)
    if bad:
        listed = "\n".join(f"  - {line}" for line in bad)
        raise AsmilError(f"{len(bad)} of {total} {predictor.unit}s could not be predicted:\n{listed}")


def _extract(
    predictor: RunPredictor,
    run: Path,
    slides: Path,
    out: Path,
    mpp: float | None,
    weights: Path | None,
    encoder: str | None,
    machine: Machine,
    quiet: bool,
) -> tuple[list[str], list[str]]:
    """Take slides to features: the names of those that are there, and what is wrong with the others."""
    from asmil.cli.slide_progress import SlideProgress
    from asmil.extraction.extract import extract, with_mpp
    from asmil.slides.discovery import find_slides
    from asmil.training.new_slides import extraction_plan

    files = with_mpp(find_slides(slides), mpp)
    progress = SlideProgress(len(files), quiet)
    engine, readers = machine.prepare(len(files), progress.report)
    plan = extraction_plan(predictor.description, run, weights, readers, encoder)
    results = progress.follow(extract(files, out, plan, engine))
    return [done.slide for done in results if done.error is None], [done.error for done in results if done.error]
