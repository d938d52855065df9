"""What is shown: the slides of runs and cohorts, joined by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from asmil.cohort.locate import find_features
from asmil.cohort.manifest import Slide, cohort_from_features
from asmil.cohort.source import FeatureSource
from asmil.cohort.table import positive, read_table
from asmil.errors import AsmilError
from asmil.runs.cohort import RunCohort
from asmil.runs.layout import RunLayout
from asmil.runs.run import Run
from asmil.runs.stored_labels import label_changes
from asmil.slides.annotations import find_annotations
from asmil.slides.discovery import SLIDES_FOLDER, SlideFile, find_slides
from asmil.slides.opening import refuse_absent
from asmil.tables.names import is_feature_file, unique_names
from asmil.tables.text_table import TABLE_SUFFIXES
from asmil.tables.time_units import unit_in_words

MANIFEST_NAMES = ("cohort.csv", "cohort.parquet")
ANNOTATIONS_FOLDER = "annotations"
MOST_NOTES = 5


@dataclass(frozen=True)
class Places:
    """Where things are if they are not beside the manifest.

    mpp: microns per level-0 pixel of every slide
    mask_value: that of tumor in masks with several values
    """

    cohort: Path | None = None
    slides: Path | None = None
    features: Path | None = None
    annotations: Path | None = None
    mpp: float | None = None
    mask_value: int | None = None


@dataclass(frozen=True)
class ViewedSlide:
    """A slide: its row of the manifest, and what there is of it.

    label: class, value, or follow-up time with its event, as text
    """

    name: str
    patient: str
    label: str | None = None
    image: SlideFile | None = None
    features: FeatureSource | None = None
    annotation: Path | None = None
    mpp: float | None = None
    site: str | None = None


@dataclass(frozen=True)
class ViewedRun:
    """A run folder. slides: the slides of its cohort that have features."""

    path: Path
    name: str
    slides: Mapping[str, Slide]


@dataclass(frozen=True)
class Collection:
    """Everything that the page may show. notes: what could not be found; mask_value: that of tumor in masks."""

    title: str
    slides: tuple[ViewedSlide, ...]
    runs: tuple[ViewedRun, ...]
    notes: tuple[str, ...]
    mask_value: int | None = None


def collect(sources: Sequence[Path], places: Places) -> Collection:
    """The slides of runs, manifests, and folders of slides or features; a slide in several of them is one slide."""
    if not sources:
        raise AsmilError("there is nothing to view; give run folders, manifests, or folders of slides")
    joined: dict[str, ViewedSlide] = {}
    runs: list[ViewedRun] = []
    notes: list[str] = []
    for source in sources:
        if RunLayout(source).config.is_file():
            found = _of_run(source, places)
            runs.append(found.run)
        else:
            refuse_absent(source)
            found = _of_cohort(source, places)
        notes += found.notes
        for slide in found.slides:
            known = joined.get(slide.name)
            joined[slide.name] = slide if known is None else _joined(known, slide)
    slides = _with_annotations(list(joined.values()), places, sources, notes)
    if not slides:
        raise AsmilError(f"{sources[0]}: there is no slide in it; {'; '.join(notes) or 'give another folder'}")
    title = ", ".join(source.resolve().name for source in sources)
    named = tuple(_named_apart(runs))
    return Collection(title, tuple(slides), named, tuple(dict.fromkeys(notes)), places.mask_value)


@dataclass
class _Found:
    slides: list[ViewedSlide]
    with_features: dict[str, Slide] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    path: Path | None = None

    @property
    def run(self) -> ViewedRun:
        assert self.path is not None
        return ViewedRun(self.path, self.path.resolve().name, self.with_features)


def _of_run(path: Path, places: Places) -> _Found:
    run = Run(path)
    trained_on = run.cohort
    if places.cohort is not None:
        trained_on = trained_on.at(places.cohort)
    if not trained_on.is_there:
        manifest = trained_on.manifest
        where = "a manifest that it does not name" if manifest is None else f"{manifest}, which is not there"
        raise AsmilError(f"{path}: the run was trained on {where}; give the manifest with --cohort")
    found = _of_manifest(trained_on, places)
    found.path = path
    if places.cohort is None and (changes := label_changes(run)) is not None:
        found.notes.append(changes.sentence(f"the models of {path} were trained with the old ones"))
    return found


def _of_cohort(source: Path, places: Places) -> _Found:
    if source.is_dir():
        for name in MANIFEST_NAMES:
            if (source / name).is_file():
                return _of_manifest(RunCohort(source / name), places)
        if find_features(source):
            return _of_features(source, places)
    elif source.suffix.lower() in TABLE_SUFFIXES:
        return _of_manifest(RunCohort(source), places)
    elif is_feature_file(source):
        return _of_features(source, places)
    features = find_features(places.features) if places.features else {}
    slides = [
        ViewedSlide(file.name, file.name, None, file, features.get(file.name), mpp=file.mpp)
        for file in _with_mpp(_slide_files(source), places.mpp)
    ]
    return _Found(slides)


def _slide_files(source: Path) -> list[SlideFile]:
    try:
        return find_slides(source)
    except AsmilError as error:
        if not source.is_dir():
            raise
        raise AsmilError(f"{source}: this is neither a run folder (no config.yaml) nor a cohort ({error})") from None


def _of_features(source: Path, places: Places) -> _Found:
    notes: list[str] = []
    images = _images(places, source.parent, {}, notes)
    slides = [
        ViewedSlide(one.slide, one.patient, None, images.get(one.slide), one.source, mpp=places.mpp)
        for one in cohort_from_features(source).slides
    ]
    return _Found(slides, {}, notes)


def _of_manifest(given: RunCohort, places: Places) -> _Found:
    manifest = given.manifest
    assert manifest is not None
    cohort, problems = given.read(features=places.features)
    table = read_table(manifest, given.columns)
    rows = {row["slide"]: row for row in table.rows if row.get("slide")}
    unit = unit_in_words(given.time_unit or table.time_unit)
    errors = [str(problem) for problem in problems if problem.severity == "error"]
    notes = errors[:MOST_NOTES]
    if len(errors) > MOST_NOTES:
        notes.append(f"{len(errors) - MOST_NOTES} more problems: `asmil check {manifest}` lists them")
    own = {
        name: SlideFile(name, manifest.parent / row["image"], positive(row.get("mpp", "")))
        for name, row in rows.items()
        if row.get("image")
    }
    images = _images(places, manifest.parent, own, notes)
    features = {slide.slide: slide for slide in cohort.slides}
    slides = [
        ViewedSlide(
            name,
            row.get("patient") or name,
            _outcome(row, unit),
            images.get(name),
            features[name].source if name in features else None,
            mpp=places.mpp or positive(row.get("mpp", "")),
            site=row.get("site") or None,
        )
        for name, row in rows.items()
    ]
    return _Found(slides, features, notes)


def _outcome(row: Mapping[str, str], unit: str) -> str | None:
    if row.get("label"):
        return row["label"]
    if row.get("time"):
        ended = "event" if row.get("event", "").lower() in ("1", "1.0", "true") else "censored"
        return f"{row['time']} {unit} ({ended})"
    return None


def _images(places: Places, beside: Path, own: Mapping[str, SlideFile], notes: list[str]) -> dict[str, SlideFile]:
    """The images by slide: those of the folder that was given, those that a table names, those in `slides`."""
    found: list[SlideFile] = []
    named = {name: file for name, file in own.items() if file.path.exists()}
    if places.slides is not None:
        images = named | {file.name: file for file in find_slides(places.slides)}
        return {file.name: file for file in _with_mpp(images.values(), places.mpp)}
    if (beside / SLIDES_FOLDER).is_dir():
        try:
            found = find_slides(beside / SLIDES_FOLDER)
        except AsmilError as error:
            notes.append(str(error))
    images = {file.name: file for file in found} | named
    return {file.name: file for file in _with_mpp(images.values(), places.mpp)}


def _with_mpp(files: Iterable[SlideFile], mpp: float | None) -> list[SlideFile]:
    return [file if mpp is None else replace(file, mpp=mpp) for file in files]


def _joined(known: ViewedSlide, other: ViewedSlide) -> ViewedSlide:
    return replace(
        known,
        patient=known.patient if known.patient != known.name else other.patient,
        label=known.label or other.label,
        image=known.image or other.image,
        features=known.features or other.features,
        mpp=known.mpp or other.mpp,
        site=known.site or other.site,
    )


def _with_annotations(
    slides: list[ViewedSlide], places: Places, sources: Sequence[Path], notes: list[str]
) -> list[ViewedSlide]:
    """The slides with their annotation files: of the folder given, or of `annotations` beside the features."""
    names = [slide.name for slide in slides]
    if places.annotations is not None:
        files = find_annotations(places.annotations, names)
        return [replace(slide, annotation=files.by_slide.get(slide.name)) for slide in slides]
    roots = [slide.features.path.parent.parent for slide in slides if slide.features is not None]
    roots += [slide.image.path.parent.parent for slide in slides if slide.image is not None]
    roots += [source if source.is_dir() else source.parent for source in sources]
    found: dict[str, Path] = {}
    for folder in dict.fromkeys(root / ANNOTATIONS_FOLDER for root in roots):
        if folder.is_dir():
            try:
                found = find_annotations(folder, names).by_slide | found
            except AsmilError as error:
                notes.append(str(error))
    return [replace(slide, annotation=found.get(slide.name)) for slide in slides]


def _named_apart(runs: Sequence[ViewedRun]) -> list[ViewedRun]:
    """Runs of one name get those of the folders above them in front."""
    names = unique_names([run.path for run in runs])
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]
