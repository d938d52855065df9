"""`asmil predict`: predictions for new slides, from their features or from the slides themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asmil.cli.options import Again, Columns
from asmil.cli.run_warnings import warn_of_changed_labels

if TYPE_CHECKING:
    from asmil.api.labeled_predictions import LabeledPredictions
    from asmil.cohort.units import Unit
    from asmil.extraction.machine import ExtractionMachine
    from asmil.runs.prediction import RunPredictor, SlidePrediction
    from asmil.tables.columns import ColumnMapping

SHOWN_ROWS = 10


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder of `asmil train`.")],
    slides: Annotated[Path, typer.Argument(help="Slides or feature files: a folder, one file, or a table.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The CSV file to write.")] = Path("predictions.csv"),
    attention: Annotated[
        bool, typer.Option("--attention", help="Also write the attention of every tile, to OUT_attention/SLIDE.h5.")
    ] = False,
    features: Annotated[Path | None, typer.Option(help="For a table: where the features are.")] = None,
    columns: Columns = None,
    mpp: Annotated[
        float | None, typer.Option(help="For slides: microns per level-0 pixel; overrides the files.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="For slides: file with the encoder's weights.")] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="NAME", help="For slides: confirm the run's encoder if it is your own code.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", "-m", metavar="NAME", help="Confirm the run's method if it is your own code."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="For slides: processes that extract. Default: one per GPU, or one per core."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    item_timeout: Annotated[
        float | None, typer.Option(min=0, help="As in `asmil extract` (slides) and `asmil check` (features).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the predictions as JSON.")] = False,
    again: Again = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Predict new slides with the models of a run, averaged over its folds and seeds.

    Labels are not needed; if the table has them, the predictions are also evaluated, without slides that were used in
    training. Slides are first extracted in the same way as the training slides; their features are kept in
    OUT_features/. A run that joined the slides of each patient (survival) does the same here, by the column `patient`
    of the table.

    Example: asmil predict runs/asmil new_slides --out predictions.csv --attention
    """
    from dataclasses import replace

    import pandas as pd
    from rich.progress import track

    from asmil.api.labeled_predictions import prediction_warnings, rows_with_truth
    from asmil.api.new_slides import are_images, extracted_slides, feature_slides, naming, readable_units, rows_of_table
    from asmil.cohort.units import units_of
    from asmil.console import messages, print_json
    from asmil.errors import AsmilError, printable
    from asmil.evaluation.run_alarms import alarm_findings
    from asmil.files import remove_abandoned, replacing
    from asmil.machine.memory import keep_freed_memory
    from asmil.runs.cohort import RunCohort
    from asmil.runs.prediction import RunPredictor, write_attention
    from asmil.tables.columns import parse_mapping
    from asmil.tables.names import file_in

    console = messages(quiet)
    keep_freed_memory()
    predictor = RunPredictor(run, device, method)
    predicted: list[tuple[Unit, SlidePrediction]] = []
    bad: list[str] = []
    mapping = {**RunCohort.of(predictor.description.to_dict()).columns_in(slides), **parse_mapping(columns)}
    if features is None and are_images(slides, mapping):
        from asmil.extraction.machine import ExtractionMachine

        place = out.with_name(f"{out.stem}_features")
        machine = ExtractionMachine(device=device, workers=workers, item_timeout=item_timeout)
        names, bad = _extract(predictor, run, slides, mapping, place, mpp, weights, encoder, machine, again, quiet)
        cohort = extracted_slides(names, place, rows_of_table(slides, mapping))
    else:
        found = feature_slides(slides, features, mapping)
        for note in found.notes:
            typer.echo(f"note: {slides}: {note}", err=True)
        cohort = list(found.slides)
    units = units_of(cohort, predictor.unit)
    if predictor.unit == "patient" and all(unit.name == unit.slides[0].slide for unit in units):
        typer.echo(
            "note: no patients are given, so every slide counts as one patient; give a table with them", err=True
        )
    total = len(units) + len(bad)
    readable, unreadable = readable_units(units, item_timeout)
    bad += unreadable
    maps = out.with_name(f"{out.stem}_attention")
    alarms = alarm_findings([run])
    if attention:
        remove_abandoned(maps)
    try:
        results = predictor.predict_all(readable, attention)
        for unit, result in track(results, "predicting", total=len(readable), console=console):
            if isinstance(result, AsmilError):
                bad.append(naming(unit, str(result)))
                continue
            if attention:
                joined = [slide.slide for slide in unit.slides]
                write_attention(file_in(maps, unit.name, ".h5"), result, joined, alarms)
            predicted.append((unit, replace(result, tile_map=None, coords=None, slide_index=None, coords_um=None)))
    finally:
        # What was predicted before an interruption is written, too.
        rows = rows_with_truth(predictor, predicted)
        if rows:
            with replacing(out) as partial:
                pd.DataFrame(rows).to_csv(partial, index=False)
    n_models = len(predictor.models)
    averaged = f", each the mean of {n_models} models (folds and seeds of the run)" if n_models > 1 else ""
    warn_of_changed_labels([run])
    warned = prediction_warnings([result for _, result in predicted])
    evaluated, unevaluated = _evaluate(predictor, predicted)
    if as_json:
        print_json(
            {
                "out": str(out) if rows else None,
                "models": n_models,
                "predictions": rows,
                "evaluation": None if evaluated is None else evaluated.to_dict(),
                "warnings": [*warned, *unevaluated],
                "failed": bad,
            }
        )
    elif rows:
        typer.echo(
            f"{len(rows)} {predictor.unit}{'s' * (len(rows) != 1)} predicted{averaged}: {out}"
            + (f", attention in {maps}" if attention else "")
        )
        _print_rows(rows)
        if evaluated is not None:
            _print_metrics(evaluated)
    for alarm in alarms:
        typer.echo(f"alarm: {alarm}", err=True)
    for sentence in [*warned, *unevaluated]:
        typer.secho(printable(f"warning: {sentence}"), fg=typer.colors.YELLOW, err=True)
    if predictor.unfinished:
        typer.echo(f"note: {predictor.unfinished} trainings of the run have not ended and were left out", err=True)
    if bad:
        listed = "\n".join(f"  - {line}" for line in bad)
        raise AsmilError(f"{len(bad)} of {total} {predictor.unit}s could not be predicted:\n{listed}")


def _print_rows(rows: list[dict[str, Any]]) -> None:
    """Up to ten rows as a table; columns that only a program reads are left out."""
    from asmil.console import results, say
    from asmil.errors import printable
    from asmil.reporting import Table, print_table
    from asmil.runs.prediction import FORMER_COLUMNS

    console = results()
    noted = any(row["notes"] for row in rows)
    hidden = {*FORMER_COLUMNS, "n_models", *(() if noted else ("notes",))}
    names = [name for name in rows[0] if name not in hidden and not _is_list(rows[0][name])]
    # what does not fit into a narrow window is in the file; the slide and its class come first
    names = names[: max(2, console.width // 12)]
    names += ["notes"] if noted and "notes" not in names else []
    shown = [[printable(_cell(row[name])) for name in names] for row in rows[:SHOWN_ROWS]]
    print_table(Table([name.replace("_", " ") for name in names], shown), console)
    if len(rows) > SHOWN_ROWS:
        say(console, f"and {len(rows) - SHOWN_ROWS} more rows in the file")


def _evaluate(
    predictor: RunPredictor, predicted: list[tuple[Unit, SlidePrediction]]
) -> tuple[LabeledPredictions | None, list[str]]:
    """The metrics of predictions whose outcomes are in the table, and why some or all could not be evaluated."""
    from asmil.api.labeled_predictions import evaluate_predictions, labels_unknown_to
    from asmil.cohort.problems import listed
    from asmil.errors import AsmilError

    unknown = labels_unknown_to(predictor, [unit for unit, _ in predicted])
    known = listed(predictor.description.classes)
    notes = [f"the labels {listed(unknown)} of the table are not among those of the run ({known})"] * bool(unknown)
    try:
        return evaluate_predictions(predictor, predicted), notes
    except AsmilError as error:
        return None, [*notes, f"the predictions could not be evaluated: {error}"]


def _print_metrics(found: LabeledPredictions) -> None:
    from asmil.console import results, say
    from asmil.reporting import Table, print_table
    from asmil.reporting.formats import format_interval, format_number

    evaluation = found.evaluation
    counts = []
    if found.n_seen:
        only = "all were used in training, so these metrics are too good"
        counts.append(only if found.only_seen else f"{found.n_seen} used in training are left out")
    if found.n_unlabeled:
        counts.append(f"{found.n_unlabeled} without a known outcome")
    about = f" ({'; '.join(counts)})" if counts else ""
    say(results(), f"evaluated: {evaluation.sizes}{about}, with 95 % confidence intervals")
    titles = {metric.name: metric.title for metric in evaluation.run.format.metrics}
    rows = [
        [titles.get(name, name), format_number(one.value), format_interval(one.interval)]
        for name, one in evaluation.metrics.items()
    ]
    print_table(Table(["metric", "value", "interval"], rows), results())


def _is_list(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("[")


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def _extract(
    predictor: RunPredictor,
    run: Path,
    slides: Path,
    columns: ColumnMapping,
    out: Path,
    mpp: float | None,
    weights: Path | None,
    encoder: str | None,
    machine: ExtractionMachine,
    again: bool,
    quiet: bool,
) -> tuple[list[str], list[str]]:
    """Extract features of slides: the names of those that have them, and what is wrong with the others."""
    from asmil.cli.slide_progress import SlideProgress
    from asmil.extraction.extract import extract, with_mpp
    from asmil.runs.new_slides import extraction_plan
    from asmil.settings.made_from import DoneBefore
    from asmil.slides.discovery import find_slides

    files = with_mpp(find_slides(slides, columns), mpp)
    progress = SlideProgress(len(files), quiet)
    engine, readers = machine.prepare(len(files), progress.report)
    plan = extraction_plan(predictor.description, run, weights, readers, encoder)
    results = progress.follow(extract(files, out, plan, engine, done_before=DoneBefore(again)))
    return [done.slide for done in results if done.error is None], [done.error for done in results if done.error]
