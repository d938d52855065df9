"""The slides of runs and cohorts that the viewer shows, joined by name."""

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
    """Where files are if they are not next to the manifest.

    mpp: microns per level-0 pixel of every slide
    mask_value: the value of tumor in masks with several values
    """

    cohort: Path | None = None
    slides: Path | None = None
    features: Path | None = None
    annotations: Path | None = None
    mpp: float | None = None
    mask_value: int | None = None


@dataclass(frozen=True)
class ViewedSlide:
    """A slide: its row of the manifest, and its files.

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
    """Everything that the page may show. notes: what could not be found; mask_value: see `Places`."""

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
            files = _of_run(source, places)
            runs.append(ViewedRun(source, source.resolve().name, files.with_features))
        else:
            refuse_absent(source)
            files = _of_cohort(source, places)
        notes += files.notes
        for slide in files.slides:
            known = joined.get(slide.name)
            joined[slide.name] = slide if known is None else _joined(known, slide)
    slides = _with_annotations(list(joined.values()), places, sources, notes)
    if not slides:
        raise AsmilError(f"{sources[0]}: there is no slide in it; {'; '.join(notes) or 'give another folder'}")
    title = ", ".join(source.resolve().name for source in sources)
    names = unique_names([run.path for run in runs])
    named = tuple(replace(run, name=name) for run, name in zip(runs, names, strict=True))
    return Collection(title, tuple(slides), named, tuple(dict.fromkeys(notes)), places.mask_value)


@dataclass
class _Source:
    """The slides of one run, manifest or folder; with_features: those with features, for a run."""

    slides: list[ViewedSlide]
    with_features: dict[str, Slide] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def _of_run(path: Path, places: Places) -> _Source:
    run = Run(path)
    trained_on = run.cohort
    if places.cohort is not None:
        trained_on = trained_on.at(places.cohort)
    if not trained_on.is_there:
        manifest = trained_on.manifest
        where = "a manifest that it does not name" if manifest is None else f"{manifest}, which does not exist"
        raise AsmilError(f"{path}: the run was trained on {where}; give the manifest with --cohort")
    files = _of_manifest(trained_on, places)
    if places.cohort is None and (changes := label_changes(run)) is not None:
        files.notes.append(changes.sentence(f"the models of {path} were trained with the old ones"))
    return files


def _of_cohort(source: Path, places: Places) -> _Source:
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
    return _Source(slides)


def _slide_files(source: Path) -> list[SlideFile]:
    try:
        return find_slides(source)
    except AsmilError as error:
        if not source.is_dir():
            raise
        raise AsmilError(f"{source}: this is neither a run folder (no config.yaml) nor a cohort ({error})") from None


def _of_features(source: Path, places: Places) -> _Source:
    notes: list[str] = []
    images = _images(places, source.parent, {}, notes)
    slides = [
        ViewedSlide(slide.slide, slide.patient, None, images.get(slide.slide), slide.source, mpp=places.mpp)
        for slide in cohort_from_features(source).slides
    ]
    return _Source(slides, {}, notes)


def _of_manifest(given: RunCohort, places: Places) -> _Source:
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
    return _Source(slides, features, notes)


def _outcome(row: Mapping[str, str], unit: str) -> str | None:
    if row.get("label"):
        return row["label"]
    if row.get("time"):
        ended = "event" if row.get("event", "").lower() in ("1", "1.0", "true") else "censored"
        return f"{row['time']} {unit} ({ended})"
    return None


def _images(places: Places, beside: Path, own: Mapping[str, SlideFile], notes: list[str]) -> dict[str, SlideFile]:
    """The images by slide: of the given folder, else of the manifest, else of the folder `slides` next to it.

    own: those of the manifest
    """
    images = {name: file for name, file in own.items() if file.path.exists()}
    if places.slides is not None:
        images |= {file.name: file for file in find_slides(places.slides)}
    elif (beside / SLIDES_FOLDER).is_dir():
        try:
            images = {file.name: file for file in find_slides(beside / SLIDES_FOLDER)} | images
        except AsmilError as error:
            notes.append(str(error))
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
    """The slides with their annotation files: of the given folder, or of folders `annotations` next to their files."""
    names = [slide.name for slide in slides]
    files: Mapping[str, Path] = {}
    if places.annotations is not None:
        files = find_annotations(places.annotations, names).by_slide
    else:
        roots = [slide.features.path.parent.parent for slide in slides if slide.features is not None]
        roots += [slide.image.path.parent.parent for slide in slides if slide.image is not None]
        roots += [source if source.is_dir() else source.parent for source in sources]
        for folder in dict.fromkeys(root / ANNOTATIONS_FOLDER for root in roots):
            if folder.is_dir():
                try:
                    files = {**find_annotations(folder, names).by_slide, **files}
                except AsmilError as error:
                    notes.append(str(error))
    return [replace(slide, annotation=files.get(slide.name)) for slide in slides]
