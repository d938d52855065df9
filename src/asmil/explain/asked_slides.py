"""The slides that a user names: by name, feature file, slide image, or folders and tables of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asmil.cohort.locate import find_features
from asmil.cohort.manifest import Slide, cohort_from_features, load_cohort
from asmil.cohort.source import FeatureSource
from asmil.cohort.table import read_table
from asmil.errors import AsmilError, did_you_mean
from asmil.runs.cohort import RunCohort
from asmil.slides.discovery import SLIDES_FOLDER, SlideFile, find_slides
from asmil.slides.file_names import is_picture, is_slide, slide_name
from asmil.tables.names import is_feature_file
from asmil.tables.text_table import is_table


@dataclass(frozen=True)
class AskedSlide:
    """A slide to draw.

    slide: its features; None if scores have their own coordinates
    image: None if there is none
    joined: all slides of the same patient, including this one, for runs that join them
    """

    name: str
    slide: Slide | None
    image: Path | None
    mpp: float | None = None
    joined: tuple[Slide, ...] = ()


def cohort_slides(cohort: RunCohort, features: Path | None = None) -> dict[str, Slide]:
    """The slides of a run's cohort that have features, by name; empty if its manifest is missing.

    features: where they are, if the user gives it
    """
    return {slide.slide: slide for slide in cohort.read(features=features)[0].slides} if cohort.is_there else {}


def image_files(cohort: RunCohort, images: Path | None = None) -> dict[str, SlideFile]:
    """The images by slide: those in a folder or table that the user gives, or those of the manifest."""
    if images is not None:
        return {file.name: file for file in find_slides(images)}
    if cohort.manifest is None or not cohort.is_there:
        return {}
    beside = (cohort.manifest.parent / SLIDES_FOLDER).is_dir()
    if not beside and "image" not in read_table(cohort.manifest, cohort.columns).cells:
        return {}
    return {file.name: file for file in find_slides(cohort.manifest, cohort.columns)}


def asked_slides(
    asked: Sequence[str],
    trained_on: RunCohort,
    features: Path | None = None,
    images: Path | None = None,
    of_role: Sequence[str] = (),
    needs_features: bool = True,
) -> list[AskedSlide]:
    """The slides that the user names, each once and in their order.

    features, images: folders, files or tables that the user gives; default: those of the cohort
    of_role: the slides of the cohort to use if none is named; one without features fails when it is drawn
    needs_features: whether a slide without features is refused; scores may have coordinates of their own
    """
    cohort, files = cohort_slides(trained_on, features), image_files(trained_on, images)
    more = {} if features is None else {slide.slide: slide for slide in cohort_from_features(features).slides}
    chosen: dict[str, AskedSlide] = {}
    for word in asked or of_role:
        meant = _meaning(word, cohort, more) if asked else [(word, cohort.get(word), None)]
        for name, slide, image in meant:
            file = files.get(name)
            path = image or (file.path if file is not None and file.path.exists() else None)
            mpp = (file.mpp if file is not None else None) or (slide.mpp if slide is not None else None)
            if slide is None and needs_features and asked:
                where = features or (trained_on.manifest and trained_on.manifest.parent / "features")
                raise AsmilError(
                    f"{name}: no features of this slide were found{f' in {where}' if where else ''}; extract it with "
                    "`asmil extract` and give the folder with --features"
                )
            joined: tuple[Slide, ...] = ()
            if slide is not None:
                joined = tuple(other for other in cohort.values() if other.patient == slide.patient) or (slide,)
            chosen[name] = AskedSlide(name, slide, path, mpp, joined)
    if not chosen:
        raise AsmilError("no slide is named, and there is no cohort to take them from; name slides or feature files")
    return list(chosen.values())


def _meaning(
    word: str, cohort: Mapping[str, Slide], more: Mapping[str, Slide]
) -> list[tuple[str, Slide | None, Path | None]]:
    """Name, features and image of each slide that a word refers to."""
    known = {**more, **cohort}
    if word in known:
        return [(word, known[word], None)]
    path = FeatureSource.parse(word).path
    if not path.exists():
        hint = did_you_mean(word, known) if known else "correct the path"
        raise AsmilError(f"'{word}' is neither a slide of the cohort nor a file; {hint}")
    if path.is_file() and is_table(path):
        return [(slide.slide, slide, None) for slide in load_cohort(path, kind=None).slides]
    if _holds_features(path):
        return [(slide.slide, slide, None) for slide in cohort_from_features(word).slides]
    if path.is_dir() or is_slide(path) or is_picture(path):
        files = find_slides(path)
        return [(file.name, known.get(file.name), file.path) for file in files]
    name = slide_name(path)
    return [(name, known.get(name), path)]


def _holds_features(path: Path) -> bool:
    return bool(find_features(path)) if path.is_dir() else is_feature_file(path)
