"""New slides to predict: found as feature files, in a table or as images, and predicted with the models of a run."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from asmil.api.labeled_predictions import prediction_warnings, rows_with_truth
from asmil.cohort.inspection import inspect_slides
from asmil.cohort.locate import find_features
from asmil.cohort.manifest import Cohort, Slide, cohort_from_features, load_cohort, slide_of_row
from asmil.cohort.source import FeatureSource
from asmil.cohort.table import read_table
from asmil.cohort.units import Unit, units_of
from asmil.errors import AsmilError, AsmilWarning
from asmil.runs.prediction import SlidePrediction, load_models, predict_slides
from asmil.runs.run import Run
from asmil.tables.columns import ColumnMapping
from asmil.tables.names import is_feature_file
from asmil.tables.text_table import is_table

MOST_NAMED = 5


@dataclass(frozen=True)
class ImageOptions:
    """How slide images are extracted before they are predicted.

    keep_features: the folder for their features; None: a temporary one
    mpp: microns per level-0 pixel; overrides the files
    weights: file of the encoder's weights
    encoder: confirms the run's encoder if it is code, `module:callable` or `file.py:callable`
    again: extract slides again whose features were made from something else
    """

    keep_features: Path | None = None
    mpp: float | None = None
    weights: Path | None = None
    encoder: str | None = None
    again: bool = False


def are_images(path: Path, columns: ColumnMapping | None = None) -> bool:
    """Whether slides are given rather than features; a table does so if it has a column 'image' and no features."""
    place = FeatureSource.parse(str(path)).path
    if place.is_dir():
        return not find_features(place)
    if not place.is_file() or is_feature_file(place):
        return False
    if not is_table(place):
        return True
    cells = read_table(place, columns).cells
    return "image" in cells and "features" not in cells and not (place.parent / "features").is_dir()


def rows_of_table(slides: Path, columns: ColumnMapping | None = None) -> dict[str, dict[str, str]]:
    """The row of each slide of a table; none if a folder or file of slides is given."""
    if not is_table(slides) or not slides.is_file():
        return {}
    return {row["slide"]: row for row in read_table(slides, columns).rows}


def feature_slides(path: Path, features: Path | None = None, columns: ColumnMapping | None = None) -> Cohort:
    """The slides of a folder of feature files, of one such file, or of a table."""
    place = FeatureSource.parse(str(path)).path
    if not place.is_file() or is_feature_file(place):
        return cohort_from_features(path)
    return load_cohort(path, features, kind=None, columns=columns)


def extracted_slides(names: Sequence[str], folder: Path, rows: Mapping[str, Mapping[str, str]]) -> list[Slide]:
    """Slides whose features `asmil extract` wrote into a folder, with their patients and outcomes from a table."""
    return [slide_of_row({"slide": name, **rows.get(name, {})}, FeatureSource(folder / f"{name}.h5")) for name in names]


def readable_units(units: Sequence[Unit], item_timeout_s: float | None = 0.0) -> tuple[list[Unit], list[str]]:
    """The slides (or patients) whose feature files can all be read, and the errors of the others."""
    slides = [slide for unit in units for slide in unit.slides]
    found = inspect_slides(slides, item_timeout_s=item_timeout_s)
    wrong = {slide.slide: str(info) for slide, info in found if isinstance(info, AsmilError)}
    good, bad = [], []
    for unit in units:
        reason = next((wrong[slide.slide] for slide in unit.slides if slide.slide in wrong), None)
        if reason is None:
            good.append(unit)
        else:
            bad.append(naming(unit, reason))
    return good, bad


def predict_new_slides(
    run: Run, source: Cohort | Path | str, features: Path | str | None, images: ImageOptions
) -> pd.DataFrame:
    """One row per slide (or patient). A slide that cannot be predicted is left out with a warning that names it."""
    load_models(run)
    with ExitStack() as stack:
        slides, bad = _slides_of(run, source, features, images, stack)
        units = units_of(slides, run.unit)
        readable, unreadable = readable_units(units)
        bad += unreadable
        predicted: list[tuple[Unit, SlidePrediction]] = []
        for unit, result in predict_slides(run, readable):
            if isinstance(result, AsmilError):
                bad.append(naming(unit, str(result)))
            else:
                predicted.append((unit, result))
    rows = rows_with_truth(run, predicted)
    if bad:
        shown = "; ".join(bad[:MOST_NAMED]) + (f"; and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else "")
        if not rows:
            raise AsmilError(f"nothing could be predicted: {shown}")
        warnings.warn(f"{len(bad)} {run.unit}s could not be predicted: {shown}", AsmilWarning, stacklevel=4)
    for sentence in prediction_warnings([result for _, result in predicted]):
        warnings.warn(sentence, AsmilWarning, stacklevel=4)
    return pd.DataFrame(rows)


def _slides_of(
    run: Run,
    source: Cohort | Path | str,
    features: Path | str | None,
    images: ImageOptions,
    stack: ExitStack,
) -> tuple[list[Slide], list[str]]:
    """The slides of a source, and the errors of those that cannot be used."""
    if isinstance(source, Cohort):
        return list(source.slides), []
    path = Path(source)
    columns = run.cohort.columns_in(path)
    if features is not None or not are_images(path, columns):
        return list(feature_slides(path, None if features is None else Path(features), columns).slides), []
    folder = images.keep_features or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asmil-")))
    return _extract(run, path, folder, images, columns)


def _extract(
    run: Run, path: Path, folder: Path, images: ImageOptions, columns: ColumnMapping
) -> tuple[list[Slide], list[str]]:
    # training and prediction from features need none of the slide libraries
    from asmil.extraction.extract import extract, with_mpp
    from asmil.extraction.machine import ExtractionMachine
    from asmil.runs.new_slides import extraction_plan
    from asmil.settings.made_from import DoneBefore
    from asmil.slides.discovery import find_slides

    files = with_mpp(find_slides(path, columns), images.mpp)
    # in this process: workers would import the user's notebook or script again
    engine, readers = ExtractionMachine(device=str(run.device), workers=0).prepare(len(files))
    plan = extraction_plan(run.description, run.path, images.weights, readers, images.encoder)
    results = list(extract(files, folder, plan, engine, done_before=DoneBefore(images.again)))
    names = [done.slide for done in results if done.error is None]
    return extracted_slides(names, folder, rows_of_table(path, columns)), [done.error for done in results if done.error]


def naming(unit: Unit, reason: str) -> str:
    """A reason, with the name of the slide or patient if it lacks it."""
    return reason if unit.name in reason else f"{unit.name}: {reason}"
