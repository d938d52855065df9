"""Check a cohort before training, and report all problems at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from asmil.cohort.consistency import mixture_problems
from asmil.cohort.inspection import usable_headers
from asmil.cohort.leakage import duplicate_problems
from asmil.cohort.manifest import Cohort, Slide, read_manifest
from asmil.cohort.outcomes import contradictions
from asmil.cohort.patient_names import patient_name_problems
from asmil.cohort.problems import Problem, listed, problems_of
from asmil.cohort.source import FeatureInfo, stored_bytes
from asmil.cohort.splits import make_splits
from asmil.cohort.table import OUTCOME_COLUMNS, label_names, number
from asmil.cohort.units import units_of
from asmil.engine.jobs import Progress
from asmil.errors import AsmilError
from asmil.tables.columns import ColumnMapping
from asmil.tasks.base import TaskKind


@dataclass(frozen=True)
class CohortSummary:
    """Summary of the slides of a manifest; a value is None if files differ or do not state it.

    readable: the slides whose feature files could be read, which all numbers below describe
    classes: number of slides of each class, or of each group of outcomes (events, censored)
    mpp: microns per pixel of the tiles given to the encoder
    """

    slides: int
    patients: int
    classes: dict[str, int]
    readable: int
    tiles_min: int | None
    tiles_median: float | None
    tiles_max: int | None
    width: int | None
    encoder: str | None
    mpp: float | None
    bytes_on_disk: int


@dataclass(frozen=True)
class CheckReport:
    """The problems of a cohort, errors first, and its summary (None if the manifest cannot be read).

    notes: how the manifest was interpreted, if it differs from asmil's own format
    files: of a run that was checked instead of a cohort
    """

    problems: tuple[Problem, ...]
    summary: CohortSummary | None
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that prevent training."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def ok(self) -> bool:
        """Whether the cohort can be trained on."""
        return not self.errors


def check_cohort(
    manifest_path: Path | str,
    features: Path | str | None = None,
    folds: int | None = None,
    deep: bool = True,
    progress: Progress | None = None,
    kind: TaskKind = "classification",
    item_timeout_s: float | None = 0.0,
    columns: ColumnMapping | None = None,
) -> CheckReport:
    """Collect all problems of a manifest, its files and its splits.

    folds: number of folds to check (default: one split, or the folds of the manifest)
    deep: also read every bag, which detects NaN and damage inside the files, and compare checksums
    progress: called with (slides checked, slides in total)
    kind: the task whose outcomes the manifest must contain
    item_timeout_s: time limit for one feature file, see `inspect_slides`
    columns: which columns of the manifest to read, see `load_cohort`
    """
    try:
        reading = read_manifest(manifest_path, features, kind, columns)
    except AsmilError as error:
        return CheckReport(problems_of(error, manifest_path), None)
    cohort, problems = reading.cohort, list(reading.problems)
    infos, unusable = usable_headers(cohort.slides, deep, item_timeout_s, progress)
    problems += unusable
    readable = [slide for slide in cohort.slides if slide.slide in infos]
    problems += mixture_problems(list(infos.values()))
    problems += duplicate_problems(readable, tiles=deep)
    problems += [*_role_problems(reading.everyone, folds), *_split_problems(reading.everyone, folds, kind)]
    problems += _coords_problems(readable, infos)
    ordered = sorted(problems, key=lambda problem: problem.severity)
    return CheckReport(tuple(ordered), _summary(reading.everyone, list(infos.values()), kind), cohort.notes)


def _role_problems(cohort: Cohort, folds: int | None) -> list[Problem]:
    """Patients with several roles or folds in the manifest; with several folds, a column `split` is not used."""
    column = "split" if any(slide.split for slide in cohort.slides) else "fold"
    if column == "split" and (folds or 1) > 1:
        return []
    by_patient: dict[str, dict[str, list[str]]] = {}
    for slide in cohort.slides:
        role = getattr(slide, column)
        if role is not None:
            name = role if column == "split" else f"fold {role}"
            by_patient.setdefault(slide.patient, {}).setdefault(name, []).append(slide.slide)
    todo = f"give all slides of a patient the same {'role' if column == 'split' else 'fold'}"
    problems = []
    for patient, roles in by_patient.items():
        if len(roles) > 1:
            several = " and in ".join(f"{name} ({listed(slides)})" for name, slides in sorted(roles.items()))
            problems.append(Problem("error", str(cohort.path), f"patient '{patient}' is in {several}", todo))
    return problems


def _split_problems(cohort: Cohort, folds: int | None, kind: TaskKind) -> list[Problem]:
    # slides without an outcome, or without the split or fold that others have, have already been reported
    has_split = any(slide.split for slide in cohort.slides)
    has_fold = any(slide.fold is not None for slide in cohort.slides)
    placed_slides = tuple(
        slide
        for slide in cohort.slides
        if all(getattr(slide, column) is not None for column in OUTCOME_COLUMNS[kind])
        and (kind != "regression" or number(slide.label or "") is not None)
        and (slide.split is not None or not has_split)
        and (slide.fold is not None or not has_fold)
    )
    if not placed_slides:
        return []
    placed = Cohort(cohort.path, placed_slides)
    # by default only survival joins the slides of a patient
    problems = contradictions(placed, units_of(placed.slides, "patient"), kind) if kind == "survival" else []
    try:
        splits = make_splits(placed, folds or 1, kind=kind)
    except AsmilError as error:
        return [*problems, *problems_of(error, cohort.path), *patient_name_problems(placed, None)]
    return [*problems, *patient_name_problems(placed, splits)]


def _coords_problems(slides: Sequence[Slide], infos: dict[str, FeatureInfo]) -> list[Problem]:
    bare = [slide.slide for slide in slides if infos[slide.slide].coords_unit is None]
    microns = [slide.slide for slide in slides if infos[slide.slide].coords_unit == "um" and slide.mpp is None]
    problems = []
    if bare:
        what = f"{len(bare)} slides have no coordinates ({listed(bare)})"
        problems.append(Problem("warning", "features", what, "their heat maps cannot be drawn"))
    if microns:
        what = f"coordinates of {len(microns)} slides are in microns ({listed(microns)})"
        problems.append(Problem("warning", "features", what, "add a column 'mpp' to convert them to pixels"))
    return problems


def _summary(cohort: Cohort, infos: Sequence[FeatureInfo], kind: TaskKind) -> CohortSummary:
    tiles = [info.n_tiles for info in infos]
    widths = {info.width for info in infos}
    encoders = {info.encoder for info in infos}
    resolutions = {round(info.tile_mpp, 4) for info in infos if info.tile_mpp is not None}
    paths = {path for info in infos for path in info.source.paths}
    return CohortSummary(
        slides=len(cohort),
        patients=len({slide.patient for slide in cohort.slides}),
        classes=_group_sizes(cohort, kind),
        readable=len(infos),
        tiles_min=min(tiles, default=None),
        tiles_median=median(tiles) if tiles else None,
        tiles_max=max(tiles, default=None),
        width=widths.pop() if len(widths) == 1 else None,
        encoder=encoders.pop() if len(encoders) == 1 else None,
        mpp=resolutions.pop() if len(resolutions) == 1 else None,
        bytes_on_disk=sum(map(stored_bytes, paths)),
    )


def _group_sizes(cohort: Cohort, kind: TaskKind) -> dict[str, int]:
    """Number of slides of each class or label, or with and without an event; empty for regression."""
    if kind == "survival":
        events = [slide.event for slide in cohort.slides]
        return {"with an event": events.count(True), "censored": events.count(False)}
    if kind == "regression":
        return {}
    labels = [label_names(slide.label or "") if kind == "multilabel" else {slide.label} for slide in cohort.slides]
    counts = Counter(name for names in labels for name in names)
    return {name: counts[name] for name in (cohort.classes if kind == "classification" else sorted(map(str, counts)))}
