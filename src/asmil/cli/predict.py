"""`asmil predict`: predictions for new slides, from their features or from the slides themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asmil.api.inputs import warn_of_changed_labels
from asmil.cli.options import (
    Again,
    Columns,
    Device,
    Json,
    OwnMethod,
    Quiet,
    RunFolder,
    argument,
    option,
    out_option,
    raise_failures,
)

if TYPE_CHECKING:
    from asmil.api.labeled_predictions import LabeledPredictions
    from asmil.api.new_slides import Predictions

SHOWN_ROWS = 10


def predict(
    run: RunFolder,
    slides: Annotated[Path, argument("Slides or feature files: a folder, one file, or a table.")],
    out: Annotated[Path, out_option("The CSV file to write.")] = Path("predictions.csv"),
    attention: Annotated[
        bool, option("Also write the attention of every tile, to OUT_attention/SLIDE.h5.", "--attention")
    ] = False,
    features: Annotated[Path | None, option("For a table: where the features are.")] = None,
    columns: Columns = None,
    mpp: Annotated[float | None, option("For slides: microns per level-0 pixel; overrides the files.")] = None,
    weights: Annotated[Path | None, option("For slides: file with the encoder's weights.")] = None,
    encoder: Annotated[
        str | None, option("For slides: confirm the run's encoder if it is your own code.", metavar="NAME")
    ] = None,
    method: OwnMethod = None,
    coverage: Annotated[
        float | None,
        option("Add conformal sets of classes that contain the true class of this share of patients, e.g. 0.9."),
    ] = None,
    per_class: Annotated[
        bool, option("Reach the coverage in each class, not only in all together.", "--per-class")
    ] = False,
    max_missed: Annotated[
        float | None, option("Rule out a class so that at most this share of its patients is missed, e.g. 0.05.")
    ] = None,
    positive: Annotated[
        str | None, option("The class to rule out. Default: the second of two classes.", metavar="CLASS")
    ] = None,
    confidence: Annotated[
        float | None, option("Confidence of --max-missed, e.g. 0.95. Default: it holds on average.")
    ] = None,
    workers: Annotated[
        int | None, option("For slides: processes that extract. Default: one per GPU, or one per core.", min=0)
    ] = None,
    device: Device = "auto",
    item_timeout: Annotated[
        float | None, option("As in `asmil extract` (slides) and `asmil check` (features).", min=0)
    ] = None,
    as_json: Json = False,
    again: Again = False,
    quiet: Quiet = False,
) -> None:
    """Predict new slides with the models of a run, averaged over its folds and seeds.

    Labels are not needed; if the table has them, the predictions are also evaluated, without slides that were used in
    training. Slides are first extracted in the same way as the training slides; their features are kept in
    OUT_features/. A run that joined the slides of each patient (survival) does the same here, by the column `patient`
    of the table.

    Example: asmil predict runs/asmil new_slides --out predictions.csv --attention
    """
    from asmil.api.new_slides import PredictionRequest
    from asmil.console import print_json
    from asmil.errors import printable
    from asmil.evaluation.run_alarms import alarm_findings
    from asmil.evaluation.uncertainty.predicted_sets import SetRequest
    from asmil.machine.memory import keep_freed_memory
    from asmil.runs.prediction import open_models

    keep_freed_memory()
    request = PredictionRequest(
        slides,
        features,
        columns,  # type: ignore[arg-type]  # the callback of the option makes it a mapping
        out,
        attention,
        out.with_name(f"{out.stem}_features"),
        mpp,
        weights,
        encoder,
        workers,
        item_timeout,
        again,
        progress=not quiet,
        sets=SetRequest(coverage, per_class, max_missed, positive, confidence),
    )
    opened = open_models(run, device, method)
    predictions = request.predict(opened)
    warn_of_changed_labels([run])
    rows, n_models = predictions.rows(), len(opened.models)
    evaluated, unevaluated = _evaluate(predictions)
    warned = [*predictions.warnings(), *unevaluated]
    guaranteed = [] if predictions.certainty.sets is None else predictions.certainty.sets.sentences(rows)
    if as_json:
        print_json(
            {
                "out": str(out) if rows else None,
                "models": n_models,
                "predictions": rows,
                "sets": guaranteed,
                "evaluation": None if evaluated is None else evaluated.to_dict(),
                "warnings": warned,
                "failed": predictions.failures,
            }
        )
    elif rows:
        averaged = f", each the mean of {n_models} models (folds and seeds of the run)" if n_models > 1 else ""
        maps = f", attention in {request.attention_folder}" if attention else ""
        typer.echo(f"{len(rows)} {opened.unit}{'s' * (len(rows) != 1)} predicted{averaged}: {out}{maps}")
        for sentence in guaranteed:
            typer.echo(printable(sentence))
        _print_rows(rows)
        if evaluated is not None:
            _print_metrics(evaluated)
    for alarm in alarm_findings([run]):
        typer.echo(f"alarm: {alarm}", err=True)
    for sentence in warned:
        typer.secho(printable(f"warning: {sentence}"), fg=typer.colors.YELLOW, err=True)
    if missing := predictions.certainty.missing:
        typer.echo(f"note: {missing}", err=True)
    if opened.n_unfinished:
        typer.echo(f"note: {opened.n_unfinished} trainings of the run have not ended and were left out", err=True)
    total = len(predictions.failures) + len(predictions.predicted)
    raise_failures(predictions.failures, total, f"{opened.unit}s could not be predicted")


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


def _evaluate(predictions: Predictions) -> tuple[LabeledPredictions | None, list[str]]:
    """The metrics of predictions whose outcomes are in the table, and why some or all could not be evaluated."""
    from asmil.api.labeled_predictions import evaluate_predictions, labels_unknown_to
    from asmil.cohort.problems import listed
    from asmil.errors import AsmilError

    run = predictions.run
    unknown = labels_unknown_to(run, [unit for unit, _ in predictions.predicted])
    known = listed(run.classes)
    notes = [f"the labels {listed(unknown)} of the table are not among those of the run ({known})"] * bool(unknown)
    try:
        return evaluate_predictions(run, predictions.predicted), notes
    except AsmilError as error:
        return None, [*notes, f"the predictions could not be evaluated: {error}"]


def _print_metrics(labeled: LabeledPredictions) -> None:
    from asmil.console import results, say
    from asmil.reporting import Table, print_table
    from asmil.reporting.formats import format_interval, format_number

    evaluation = labeled.evaluation
    counts = []
    if labeled.n_seen:
        only = "all were used in training, so these metrics are too good"
        counts.append(only if labeled.only_seen else f"{labeled.n_seen} used in training are left out")
    if labeled.n_unlabeled:
        counts.append(f"{labeled.n_unlabeled} without a known outcome")
    about = f" ({'; '.join(counts)})" if counts else ""
    say(results(), f"evaluated: {evaluation.sizes}{about}, with 95 % confidence intervals")
    titles = {metric.name: metric.title for metric in evaluation.run.format.metrics}
    rows = [
        [titles.get(name, name), format_number(metric.value), format_interval(metric.interval)]
        for name, metric in evaluation.metrics.items()
    ]
    print_table(Table(["metric", "value", "interval"], rows), results())


def _is_list(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("[")


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
