"""External validation: a trained model on a manifest of new patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from asmil.api.inputs import PathLike, RunLike, as_path, run_path, warn

if TYPE_CHECKING:
    import pandas as pd

    from asmil.api.new_slides import Predictions
    from asmil.cohort.manifest import Cohort
    from asmil.cohort.units import Unit
    from asmil.evaluation.validation import Overlap, Validation
    from asmil.evaluation.validation.grouping import Variable
    from asmil.runs.run import Run
    from asmil.tables.columns import ColumnMapping

PREDICTIONS = "predictions.csv"
MOST_EXAMPLES = 2
MOST_OTHER = 0.5
"""If the features of a larger share of the slides are not those of the training, the cohort is refused."""


def validate(
    model: RunLike,
    cohort: PathLike,
    out: PathLike | None = None,
    *,
    by: str | Sequence[str] = (),
    margin: float | None = None,
    times: Sequence[float] | None = None,
    coverage: float = 0.9,
    allow_overlap: bool = False,
    features: PathLike | None = None,
    columns: Mapping[str, str] | None = None,
    resamples: int = 2000,
    seed: int = 0,
    method: str | None = None,
    device: str = "auto",
    item_timeout: float | None = 0.0,
    progress: bool = True,
) -> Validation:
    """Validate a run or bundle on new patients: performance, calibration, decision curve, subgroups.

    cohort: the manifest of the new patients, with their outcomes
    out: a folder for the page, `validation.json` and `predictions.csv`; default: nothing is written
    by: columns that define subgroups, e.g. "site,sex,age:50,70"; numbers after a colon cut a column into ranges
    margin: test whether the main metric is at most so much worse than the internal estimate
    times: for survival: when calibration is shown; default: the quartiles of the event times
    coverage: the share of patients whose true class conformal sets should contain
    allow_overlap: go on if the model was trained on some of the slides or patients; the page says so
    features, columns: where the features are, and which columns to read
    resamples, seed: of the bootstrap over patients
    method: confirms the run's method if it is your own code
    item_timeout: give up on a feature file after this many seconds; 0: no limit

    Slides that cannot be predicted are in `validated.failures` of the result.
    """
    from asmil.api.labeled_predictions import labels_unknown_to, other_encoder_warnings
    from asmil.api.new_slides import PredictionRequest
    from asmil.cohort.problems import listed
    from asmil.cohort.units import units_of
    from asmil.errors import AsmilError
    from asmil.evaluation.validation import (
        ValidatedPredictions,
        ValidationRequest,
        validate_predictions,
        write_validation,
    )
    from asmil.evaluation.validation.grouping import parse_variables
    from asmil.runs.prediction import open_models

    path, variables = Path(cohort), parse_variables(by)
    request = ValidationRequest(variables, margin, None if times is None else tuple(times), resamples, seed, coverage)
    run = open_models(run_path(model), device, method)
    chosen = {**run.cohort.columns_in(path), **(columns or {})}
    labeled, problems = _read(run, path, as_path(features), chosen, variables)
    unknown = labels_unknown_to(run, units_of(labeled.slides, "slide"))
    if unknown:
        raise AsmilError(
            f"{path}: the labels {listed(unknown)} are not among those of {run.path} ({listed(run.classes)}); correct "
            "them, or validate a model that was trained on these classes"
        )
    overlap = _overlap_by_name(run, labeled)
    _refuse_overlap(path, run, overlap, len(labeled), allow_overlap)
    predictions = PredictionRequest(labeled, item_timeout=item_timeout, progress=progress).predict(run)
    _refuse_other_features(path, predictions)
    overlap = replace(overlap, by_features=_seen_by_features(predictions))
    _refuse_overlap(path, run, overlap, len(labeled), allow_overlap)
    warn(*other_encoder_warnings([result for _, result in predictions.predicted]))
    rows, groups, without = _tables(run, predictions, variables)
    failures = (*problems, *predictions.failures, *without)
    validated = ValidatedPredictions(run, path, rows, groups, predictions.predicted, request, overlap, failures)
    if run.kind == "survival" and not (validated.truth[:, 1] > 0).any():
        raise AsmilError(f"{path}: no patient has the event, so the model cannot be validated; follow them for longer")
    validation = validate_predictions(validated)
    if out is not None:
        write_validation(validation, Path(out))
        _write_predictions(predictions, Path(out) / PREDICTIONS)
    return validation


def _read(
    run: Run, path: Path, features: Path | None, columns: ColumnMapping, variables: Sequence[Variable]
) -> tuple[Cohort, list[str]]:
    """The slides with outcomes, covariates and subgroups, and the errors of those that cannot be used."""
    from asmil.cohort.manifest import read_manifest
    from asmil.cohort.problems import raise_errors
    from asmil.cohort.table import read_table
    from asmil.errors import AsmilError, did_you_mean
    from asmil.tables.text_table import is_table

    if not path.is_file() or not is_table(path):
        raise AsmilError(f"{path} is not a table; give a manifest of the new patients with their outcomes")
    table = read_table(path, columns)
    for variable in variables:
        column = table.spelled_like(variable.name)
        if column is None:
            raise AsmilError(
                f"{path}: --by {variable.name}: there is no such column; {did_you_mean(variable.name, table.cells)}"
            )
        variable.refuse_uncut(table.cells[column])
    kept = dict.fromkeys([*run.settings.covariates, *(variable.name for variable in variables)])
    cohort, problems, _ = read_manifest(path, features, run.kind, columns, list(kept))
    errors = [problem for problem in problems if problem.severity == "error"]
    of_slides = {problem.slide: str(problem) for problem in errors if problem.slide is not None}
    raise_errors([problem for problem in errors if problem.slide is None])
    slides = tuple(slide for slide in cohort.slides if slide.slide not in of_slides)
    if not slides:
        raise_errors(errors)
        raise AsmilError(f"{path}: there are no slides in the table")
    units = {cohort.time_unit, run.settings.task.time_unit} - {None}
    if run.kind == "survival" and len(units) > 1:
        raise AsmilError(
            f"{path}: times are in {cohort.time_unit}, but those of {run.path} are in {run.time_unit}; convert them"
        )
    return replace(cohort, slides=slides, classes=()), list(of_slides.values())


def _overlap_by_name(run: Run, cohort: Cohort) -> Overlap:
    from asmil.evaluation.validation import Overlap

    if run.seen_names is None:
        return Overlap(known=False)
    seen = run.seen_names.recognize(cohort.slides)
    tested = [
        slide.slide
        for slide in cohort.slides
        if slide.slide not in seen and "test" in (*run.roles_of(slide.slide), *run.roles_of(slide.patient, "patient"))
    ]
    return Overlap(seen, tested=tuple(tested))


def _seen_by_features(predictions: Predictions) -> tuple[str, ...]:
    seen = [unit for unit, result in predictions.predicted if result.used_in_training]
    return tuple(slide.slide for unit in seen for slide in unit.slides)


def _refuse_overlap(path: Path, run: Run, overlap: Overlap, n_slides: int, allowed: bool) -> None:
    from asmil.errors import AsmilError
    from asmil.reporting.formats import format_count

    if not overlap.slides or allowed:
        return
    names = [overlap.by_name.get(slide, f"slide {slide} (the same tiles)") for slide in overlap.slides]
    examples = list(dict.fromkeys(names))
    more = f" and {len(examples) - MOST_EXAMPLES} more" if len(examples) > MOST_EXAMPLES else ""
    raise AsmilError(
        f"{path}: {format_count(len(overlap.slides), 'slide')} of {n_slides} are not new: {run.path} was trained on "
        f"{', '.join(examples[:MOST_EXAMPLES])}{more}; remove them, or give --allow-overlap, which the page reports"
    )


def _refuse_other_features(path: Path, predictions: Predictions) -> None:
    from asmil.errors import AsmilError

    if not predictions.predicted:
        first = predictions.failures[0] if predictions.failures else "there are no slides"
        more = f" ({len(predictions.failures)} slides in all)" if len(predictions.failures) > 1 else ""
        raise AsmilError(f"{path}: nothing could be predicted: {first}{more}")
    other = [result for _, result in predictions.predicted if result.other_features]
    if len(other) > MOST_OTHER * len(predictions.predicted):
        raise AsmilError(
            f"{path}: the features of {len(other)} of {len(predictions.predicted)} slides are probably of another "
            f"encoder than those of the training ({other[0].slide}: {other[0].other_features}); extract them like the "
            "training slides"
        )


def _tables(
    run: Run, predictions: Predictions, variables: Sequence[Variable]
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Predictions with outcomes and subgroups, one row per slide or patient, and those without an outcome."""
    import pandas as pd

    from asmil.api.labeled_predictions import truth_of
    from asmil.errors import AsmilError

    rows, groups, without = [], [], []
    for unit, result in predictions.predicted:
        truth = truth_of(run, unit)
        if truth is None:
            without.append(f"{unit.name}: its outcome is missing, or its slides have different ones")
            continue
        key = {"slide": unit.name, "patient": unit.patient, "fold": 0, "seed": 0, "role": "test"}
        rows.append({**key, **truth, **result.values})
        groups.append({"patient": unit.patient, **{each.name: _value(unit, each.name) for each in variables}})
    if not rows:
        raise AsmilError("no slide has a known outcome; give a manifest of the new patients with their outcomes")
    return pd.DataFrame(rows), pd.DataFrame(groups), without


def _value(unit: Unit, name: str) -> str | None:
    """The value that all slides have; None if they differ."""
    values = {slide.covariates.get(name) for slide in unit.slides}
    return values.pop() if len(values) == 1 else None


def _write_predictions(predictions: Predictions, path: Path) -> None:
    import pandas as pd

    from asmil.files import replacing

    rows = predictions.rows()
    patients = [unit.patient for unit, _ in predictions.predicted]
    table = pd.DataFrame(rows)
    table.insert(1, "patient", patients)
    with replacing(path) as partial:
        table.to_csv(partial, index=False)
