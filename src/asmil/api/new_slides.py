"""New slides to predict: found as feature files, in a table or as images, and predicted with the models of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.progress import track

from asmil.api.certainty import Certainty
from asmil.api.inputs import warn
from asmil.api.labeled_predictions import prediction_warnings, rows_with_truth
from asmil.cohort.inspection import inspect_slides
from asmil.cohort.locate import extracted_features, find_features
from asmil.cohort.manifest import (
    Cohort,
    Slide,
    cohort_from_features,
    covariate_columns,
    load_cohort,
    refuse_without_covariates,
    slide_of_row,
)
from asmil.cohort.problems import fail
from asmil.cohort.source import FeatureSource
from asmil.cohort.table import read_table
from asmil.cohort.units import Unit, units_of
from asmil.console import messages
from asmil.errors import AsmilError
from asmil.evaluation.run_alarms import alarm_findings
from asmil.evaluation.uncertainty.predicted_sets import SetRequest
from asmil.files import remove_abandoned, replacing
from asmil.runs.prediction import SlidePrediction, load_models, predict_slides, write_attention
from asmil.runs.run import Run
from asmil.tables.columns import ColumnMapping
from asmil.tables.names import file_in, is_feature_file
from asmil.tables.text_table import is_table

MOST_NAMED = 5


def are_images(path: Path, columns: ColumnMapping | None = None) -> bool:
    """Whether slides are given rather than features; a table does so if it has a column 'image' and no features."""
    file = FeatureSource.parse(str(path)).path
    if file.is_dir():
        return not find_features(file)
    if not file.is_file() or is_feature_file(file):
        return False
    if not is_table(file):
        return True
    cells = read_table(file, columns).cells
    return "image" in cells and "features" not in cells and not (file.parent / "features").is_dir()


def rows_of_table(slides: Path, columns: ColumnMapping | None = None) -> dict[str, dict[str, str]]:
    """The row of each slide of a table; none if a folder or file of slides is given."""
    if not is_table(slides) or not slides.is_file():
        return {}
    return {row["slide"]: row for row in read_table(slides, columns).rows}


def feature_slides(
    path: Path, features: Path | None = None, columns: ColumnMapping | None = None, covariates: Sequence[str] = ()
) -> Cohort:
    """The slides of a folder of feature files, of one such file, or of a table, which must have the covariates."""
    file = FeatureSource.parse(str(path)).path
    if not file.is_file() or is_feature_file(file):
        return cohort_from_features(path)
    return load_cohort(path, features, kind=None, columns=columns, covariates=covariates)


def covariates_in(path: Path, columns: ColumnMapping | None, covariates: Sequence[str]) -> dict[str, str]:
    """The columns of a table that contain the covariates; an error if one is missing, or if there is no table."""
    if not covariates:
        return {}
    if not is_table(path) or not path.is_file():
        fail(path, f"the run needs the covariates {', '.join(covariates)}", "give a table with these columns")
    return covariate_columns(read_table(path, columns), covariates, kind=None)


def extracted_slides(
    names: Sequence[str],
    folder: Path,
    rows: Mapping[str, Mapping[str, str]],
    covariates: Mapping[str, str] | None = None,
) -> list[Slide]:
    """Slides whose features `asmil extract` wrote into a folder, with what a table says about them.

    covariates: the columns of the table that contain them
    """
    return [
        slide_of_row({"slide": name, **rows.get(name, {})}, extracted_features(folder, name), covariates)
        for name in names
    ]


def readable_units(units: Sequence[Unit], item_timeout_s: float | None = 0.0) -> tuple[list[Unit], list[str]]:
    """The slides (or patients) whose feature files can all be read, and the errors of the others."""
    slides = [slide for unit in units for slide in unit.slides]
    inspected = inspect_slides(slides, item_timeout_s=item_timeout_s)
    wrong = {slide.slide: str(info) for slide, info in inspected if isinstance(info, AsmilError)}
    good, bad = [], []
    for unit in units:
        reason = next((wrong[slide.slide] for slide in unit.slides if slide.slide in wrong), None)
        if reason is None:
            good.append(unit)
        else:
            bad.append(_naming(unit, reason))
    return good, bad


@dataclass(frozen=True)
class PredictionRequest:
    """New slides to predict, and how; see `TrainedRun.predict`.

    keep_features: the folder for the features of slide images; None: a temporary one
    encoder: confirms the run's encoder if it is code, `module:callable` or `file.py:callable`
    sets: conformal sets to predict
    """

    slides: Cohort | Path | str
    features: Path | None = None
    columns: ColumnMapping | None = None
    out: Path | None = None
    attention: bool = False
    keep_features: Path | None = None
    mpp: float | None = None
    weights: Path | None = None
    encoder: str | None = None
    workers: int | None = 0
    item_timeout: float | None = 0.0
    again: bool = False
    progress: bool = False
    sets: SetRequest = field(default_factory=SetRequest)

    @property
    def attention_folder(self) -> Path:
        """The folder for the attention of every tile."""
        if self.out is None:
            raise AsmilError("attention is written beside the table of predictions; give `out` as well")
        return self.out.with_name(f"{self.out.stem}_attention")

    def predict(self, run: Run) -> Predictions:
        """Predict all slides that can be; those of an interrupted command are written to `out`, too."""
        load_models(run)
        certainty = Certainty.of(run, self.sets)
        with ExitStack() as stack:
            slides, failures = self._find_slides(run, stack)
            units = units_of(slides, run.unit)
            if run.unit == "patient" and all(unit.name == unit.slides[0].slide for unit in units):
                warn("no patients are given, so every slide counts as one patient; give a table with them")
            readable, unreadable = readable_units(units, self.item_timeout)
            predictions = Predictions(run, [], [*failures, *unreadable], certainty)
            try:
                self._predict_units(predictions, readable)
            finally:
                if self.out is not None and predictions.predicted:
                    with replacing(self.out) as partial:
                        pd.DataFrame(predictions.rows()).to_csv(partial, index=False)
        return predictions

    def _predict_units(self, predictions: Predictions, units: Sequence[Unit]) -> None:
        alarms = alarm_findings([predictions.run.path])
        if self.attention:
            remove_abandoned(self.attention_folder)
        results = predict_slides(predictions.run, units, self.attention)
        for unit, result in track(results, "predicting", total=len(units), console=messages(not self.progress)):
            if isinstance(result, AsmilError):
                predictions.failures.append(_naming(unit, str(result)))
                continue
            if self.attention:
                file = file_in(self.attention_folder, unit.name, ".h5")
                write_attention(file, result, [slide.slide for slide in unit.slides], alarms)
            small = replace(result, tile_map=None, coords=None, slide_index=None, coords_um=None)
            predictions.predicted.append((unit, small))

    def _find_slides(self, run: Run, stack: ExitStack) -> tuple[list[Slide], list[str]]:
        """The slides, and the errors of those that cannot be used."""
        needed = run.settings.covariates
        if isinstance(self.slides, Cohort):
            refuse_without_covariates(self.slides, needed)
            return list(self.slides.slides), []
        path = Path(self.slides)
        columns = {**run.cohort.columns_in(path), **(self.columns or {})}
        covariates = covariates_in(path, columns, needed)
        if self.features is None and are_images(path, columns):
            folder = self.keep_features or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asmil-")))
            return self._extract(run, path, folder, columns, covariates)
        cohort = feature_slides(path, self.features, columns, needed)
        warn(*(f"{path}: {note}" for note in cohort.notes))
        return list(cohort.slides), []

    def _extract(
        self, run: Run, path: Path, folder: Path, columns: ColumnMapping, covariates: Mapping[str, str]
    ) -> tuple[list[Slide], list[str]]:
        # training and prediction from features need none of the slide libraries
        from asmil.api.progress import SlideProgress
        from asmil.extraction.extract import extract, with_mpp
        from asmil.extraction.machine import ExtractionMachine
        from asmil.runs.new_slides import extraction_plan
        from asmil.settings.made_from import DoneBefore
        from asmil.slides.discovery import find_slides

        files = with_mpp(find_slides(path, columns), self.mpp)
        shown = SlideProgress(len(files), not self.progress)
        limit = None if self.workers == 0 else self.item_timeout  # work in this process cannot be ended
        machine = ExtractionMachine(device=str(run.device), workers=self.workers, item_timeout=limit)
        engine, readers = machine.prepare(len(files), shown.report)
        plan = extraction_plan(run.description, run.path, self.weights, readers, self.encoder)
        results = shown.follow(extract(files, folder, plan, engine, done_before=DoneBefore(self.again)))
        names = [done.slide for done in results if done.error is None]
        slides = extracted_slides(names, folder, rows_of_table(path, columns), covariates)
        return slides, [done.error for done in results if done.error]


@dataclass(frozen=True)
class Predictions:
    """The predictions of new slides (or patients), and why others have none."""

    run: Run
    predicted: list[tuple[Unit, SlidePrediction]]
    failures: list[str]
    certainty: Certainty

    def rows(self) -> list[dict[str, Any]]:
        """One row per slide or patient."""
        columns = [self.certainty.columns(result) for _, result in self.predicted]
        return rows_with_truth(self.run, self.predicted, columns)

    def warnings(self) -> list[str]:
        """Reasons not to believe some of the predictions, one sentence each."""
        doubts = prediction_warnings([result for _, result in self.predicted])
        return [*doubts, *self.certainty.warnings(self.predicted)]

    def table(self) -> pd.DataFrame:
        """The rows as a table; failures and reasons for doubt are given as warnings."""
        rows, failures, kind = self.rows(), self.failures, self.run.unit
        if failures:
            more = f"; and {len(failures) - MOST_NAMED} more" if len(failures) > MOST_NAMED else ""
            shown = "; ".join(failures[:MOST_NAMED]) + more
            if not rows:
                raise AsmilError(f"nothing could be predicted: {shown}")
            warn(f"{len(failures)} {kind}s could not be predicted: {shown}")
        warn(*self.warnings())
        return pd.DataFrame(rows)


def _naming(unit: Unit, reason: str) -> str:
    """A reason, with the name of the slide or patient if it lacks it."""
    return reason if unit.name in reason else f"{unit.name}: {reason}"
