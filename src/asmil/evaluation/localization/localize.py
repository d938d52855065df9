"""Compare the heat maps of a run with annotations: metrics of each slide and of all slides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from asmil.cohort.manifest import Cohort
from asmil.cohort.splits import Roles
from asmil.engine.jobs import Progress
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.localization.evaluated_maps import EvaluatedMaps
from asmil.evaluation.localization.froc_curve import Froc, FrocOptions, froc_of_hits, froc_options, resampled_froc
from asmil.evaluation.localization.points import Conversion
from asmil.evaluation.localization.scaling import THRESHOLDS, Scaling
from asmil.evaluation.localization.slide_evaluator import LocalizationProtocol, SlideMeasures, evaluate_maps
from asmil.evaluation.localization.tile_maps import TileTruth, Truth
from asmil.evaluation.localization.tile_ranking import rank_tiles, resampled_ranking
from asmil.evaluation.run_alarms import alarms_of_run
from asmil.evaluation.stability.alarms import Alarm
from asmil.reporting import Estimate
from asmil.runs.bundle import refuse_bundle
from asmil.runs.cohort import RunCohort
from asmil.runs.stored_labels import label_changes
from asmil.slides.class_names import ClassNames
from asmil.tables.arrays import Booleans, Floats
from asmil.tables.names import plain_spaces
from asmil.tasks.classification import normal_labels
from asmil.tasks.intervals import drawn_slides, estimate, mean_estimate, ratio_estimate


@dataclass(frozen=True)
class LocalizeSettings:
    """Options of a localization.

    annotations or truth: a folder of annotations, or a table of tiles; one of them is required
    cohort, features: used instead of the manifest and features of the run
    scalings: in addition to `minmax`; by default `gated`, or `times_n` if no class is normal
    normal: labels of normal slides
    classes, mask_value: which annotated classes, and which value of a mask, are tumor
    slides: evaluate only these; None: all
    skip_list: a file that lists slides to leave out
    """

    annotations: Path | None = None
    truth: Path | None = None
    cohort: Path | None = None
    features: Path | None = None
    role: Roles = "test"
    preset: str = "release"
    conversion: Conversion = "nms"
    radius: int = 3
    scalings: tuple[Scaling, ...] = ()
    kind: str | None = None
    normal: tuple[str, ...] = ()
    classes: ClassNames = field(default_factory=ClassNames)
    mask_value: int | None = None
    slides: frozenset[str] | None = None
    skip_list: Path | None = None
    resamples: int = 2000
    seed: int = 0
    device: str = "auto"
    method: str | None = None


@dataclass(frozen=True)
class ScalingSummary:
    """All metrics under one scaling, and the FROC curve."""

    numbers: dict[str, Estimate]
    froc: Froc


@dataclass(frozen=True)
class Summary:
    """All metrics of a run; counts refer to evaluated slides."""

    scaled: dict[Scaling, ScalingSummary]
    unscaled: dict[str, Estimate]
    best_specificity: float
    n_tumor: int
    n_normal: int
    n_patients: int
    n_tumor_patients: int
    n_normal_patients: int
    resamples: int


@dataclass(frozen=True)
class Localization:
    """The localization results of one run.

    normal: labels that count as normal
    masks: the tumor masks of some slides, for figures
    skipped: slides left out by the skip list
    alarms: reasons not to rely on the maps; trained_on: the cohort (slide images may be next to its manifest)
    notes: caveats; problems: slides that could not be evaluated, each with the reason
    """

    path: Path
    method: str
    map_kind: str
    n_seeds: int
    settings: LocalizeSettings
    protocol: LocalizationProtocol
    normal: frozenset[str]
    slides: tuple[SlideMeasures, ...]
    summary: Summary
    masks: Mapping[str, Booleans]
    skipped: tuple[str, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    alarms: tuple[Alarm, ...] = ()
    trained_on: RunCohort = field(default_factory=lambda: RunCohort(None))

    @property
    def name(self) -> str:
        return self.path.resolve().name


def localize_run(
    run: Path | str, settings: LocalizeSettings, n_masks: int = 4, progress: Progress | None = None
) -> Localization:
    """Compare the heat maps of a run with annotations; slides that cannot be evaluated are listed in `problems`.

    n_masks: number of tumor slides whose masks are kept for figures
    progress: called with (steps done, all steps); each slide takes two steps
    """
    if (settings.annotations is None) == (settings.truth is None):
        raise AsmilError("give either --annotations (a folder) or --truth (a table of tiles)")
    options = froc_options(settings.preset)
    maps = EvaluatedMaps(run, settings.role, settings.kind, settings.device, settings.method, settings.normal)
    cohort, problems = _read_cohort(maps, settings)
    skipped = read_skip_list(settings.skip_list) if settings.skip_list else ()
    asked = [slide for slide in cohort.slides if settings.slides is None or slide.slide in settings.slides]
    wanted = [
        slide for slide in asked if slide.label is not None and slide.slide not in skipped and maps.may_evaluate(slide)
    ]
    normal = normal_labels([*maps.run.classes, *cohort.classes], settings.normal)
    protocol = LocalizationProtocol(_scalings(settings, normal), options, settings.conversion, settings.radius)
    truth = _truth(settings, cohort)
    report = progress or (lambda done, total: None)
    slides, masks, failed = evaluate_maps(maps, wanted, truth, protocol, normal, n_masks, report)
    problems += failed
    if not slides:
        listed = "".join(f"\n  - {line}" for line in [*problems, *truth.notes()])
        raise AsmilError(
            f"{run}: no slide with the role {settings.role} could be evaluated{':' * bool(listed)}{listed}"
        )
    notes = [*_run_notes(maps, cohort, settings, skipped, normal), *truth.notes(), *_spacing_notes(slides)]
    return Localization(
        path=maps.run.path,
        method=maps.run.method,
        map_kind=maps.kind,
        n_seeds=len(maps.seeds),
        settings=settings,
        protocol=protocol,
        normal=normal,
        slides=tuple(slides),
        summary=summarize(slides, options, settings.resamples, settings.seed),
        masks=masks,
        skipped=tuple(name for name in skipped if name in cohort),
        notes=tuple(notes),
        problems=tuple(problems),
        alarms=alarms_of_run(maps.run.path),
        trained_on=_cohort_of(maps, settings),
    )


def tile_auc_and_froc(run: Path | str, settings: LocalizeSettings) -> tuple[Estimate, Estimate] | None:
    """Tile AUC and FROC (min-max scaling) of a run's maps; None if no slide can be evaluated."""
    try:
        summary = localize_run(run, settings, n_masks=0).summary
    except AsmilError:
        return None
    return summary.unscaled["tile_auc"], summary.scaled["minmax"].numbers["froc"]


def _read_cohort(maps: EvaluatedMaps, settings: LocalizeSettings) -> tuple[Cohort, list[str]]:
    """The cohort, and the errors in slides that should be evaluated.

    For the run's own manifest only slides with the role matter; for another manifest, all do.
    """
    own = settings.cohort is None
    if own:
        refuse_bundle(maps.run.path)
    evaluated = _cohort_of(maps, settings)
    path = evaluated.manifest
    if own and not evaluated.is_there:
        raise AsmilError(f"{path}: the manifest of the run was not found; give its path with --cohort")
    cohort, cohort_problems = evaluated.read("classification", settings.features)
    errors = [str(problem) for problem in cohort_problems if problem.severity == "error"]
    if not own:
        return cohort, errors
    problems = []
    for name in sorted(maps.run.slides_of_role(maps.role)):
        about = [text for text in errors if f"'{name}'" in text]
        if about:
            problems.append(about[0])
        elif name not in cohort:
            problems.append(f"{name}: the slide is missing from {path} or has no features; restore it")
    return cohort, problems


def _cohort_of(maps: EvaluatedMaps, settings: LocalizeSettings) -> RunCohort:
    """The cohort of the run, or the one that the user names."""
    return maps.run.cohort if settings.cohort is None else RunCohort(settings.cohort)


def _scalings(settings: LocalizeSettings, normal: frozenset[str]) -> tuple[Scaling, ...]:
    if "gated" in settings.scalings and not normal:
        raise AsmilError(
            "--scaling gated: no class of the run is normal, so there is no tumor probability; give the normal class "
            "with --normal, or use times_n"
        )
    others: tuple[Scaling, ...] = settings.scalings or (("gated",) if normal else ("times_n",))
    return tuple(dict.fromkeys(("minmax", *others)))


def _truth(settings: LocalizeSettings, cohort: Cohort) -> Truth:
    if settings.truth is not None:
        return TileTruth(settings.truth)
    assert settings.annotations is not None
    # image readers, which machines for training may lack
    from asmil.evaluation.localization.annotation_truth import AnnotationTruth
    from asmil.slides.annotations import find_annotations

    files = find_annotations(settings.annotations, [slide.slide for slide in cohort.slides])
    return AnnotationTruth(files, settings.classes, settings.mask_value)


def known_scalings(names: Iterable[str]) -> tuple[Scaling, ...]:
    """Check the names of scalings; an unknown name is an error."""
    chosen = tuple(names)
    for name in chosen:
        if name not in THRESHOLDS:
            raise AsmilError(f"--scaling {name}: there is no such scaling; {did_you_mean(name, THRESHOLDS)}")
    return cast(tuple[Scaling, ...], chosen)


def read_skip_list(path: Path | str) -> tuple[str, ...]:
    """The slides to leave out: one name per line; text after a `#` or a comma is ignored."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AsmilError(f"{path}: the list of slides to leave out cannot be read ({error}); fix the file") from None
    names = [plain_spaces(line.split("#")[0].split(",")[0]) for line in lines]
    return tuple(dict.fromkeys(name for name in names if name))


def _run_notes(
    maps: EvaluatedMaps, cohort: Cohort, settings: LocalizeSettings, skipped: Sequence[str], normal: frozenset[str]
) -> Iterator[str]:
    """Caveats about the run and the choice of slides."""
    left_out = [slide.slide for slide in cohort.slides if not maps.may_evaluate(slide)]
    if left_out and settings.cohort is not None:
        yield f"{len(left_out)} slides of {settings.cohort} are left out: the run used them or their patients"
    changes = label_changes(maps.run) if settings.cohort is None else None
    if changes is not None:
        yield changes.sentence("the models are those of the old ones, and slides count as normal by the new ones")
    if settings.role != "test":
        yield f"these are {settings.role} slides, which the models have seen in training: the numbers are optimistic"
    if len(maps.seeds) > 1:
        yield f"maps and probabilities are averaged over {len(maps.seeds)} seeds before metrics are computed"
    if maps.run.unit == "patient":
        yield "the run joins the slides of a patient into one bag; here every slide is a separate bag"
    if maps.run.n_unfinished:
        yield f"{maps.run.n_unfinished} trainings of the run are unfinished; their models are not used"
    if not normal:
        yield "the run has no normal label, so all slides count as tumor slides; give the normal label with --normal"
    unknown = [name for name in skipped if name not in cohort]
    if unknown:
        yield f"the skip list names {len(unknown)} slides that are not in the cohort: {', '.join(unknown[:5])}"


def _spacing_notes(slides: Sequence[SlideMeasures]) -> Iterator[str]:
    """Caveats about the size of mask pixels, which affects the lesions of FROC."""
    frames = [slide.map.frame for slide in slides]
    known = {(frame.downsample, round(frame.um_per_pixel, 3)) for frame in frames if frame.mpp is not None}
    if known:
        sizes = ", ".join(f"{side} px = {um:g} um" for side, um in sorted(known))
        yield f"the side of a mask pixel is {sizes}, from the resolution of the slides"
    unknown = sum(frame.mpp is None for frame in frames)
    if unknown:
        yield f"the resolution of {unknown} slides is unknown: a mask pixel of 32 px is assumed to be 7.776 um"
    extents = sum(not frame.size_is_stated for frame in frames)
    if extents:
        yield f"the features of {extents} slides do not state the slide size: the extent of the tiles is used"


def summarize(slides: Sequence[SlideMeasures], options: FrocOptions, resamples: int, seed: int) -> Summary:
    """Means over slides, and region recall and FROC over all slides, with patient-level bootstrap intervals.

    All metrics use the same resamples. Dice, region recall and the no-miss rates are for tumor slides, specificity for
    normal slides. Tile AUC and AP are means over slides with both kinds of tiles; the pooled versions use all tiles.
    """
    patients = [slide.map.slide.patient for slide in slides]
    counts = drawn_slides(patients, resamples, seed)
    scalings = list(slides[0].scaled)
    return Summary(
        scaled={scaling: _summarize_scaling(slides, scaling, options, counts) for scaling in scalings},
        unscaled={
            "tile_auc": mean_estimate([slide.tile_auc for slide in slides], counts),
            "tile_ap": mean_estimate([slide.tile_ap for slide in slides], counts),
        },
        best_specificity=mean_estimate([slide.best_specificity for slide in slides], counts[:1]).value,
        n_tumor=sum(not slide.is_normal for slide in slides),
        n_normal=sum(slide.is_normal for slide in slides),
        n_patients=len(set(patients)),
        n_tumor_patients=len({slide.map.slide.patient for slide in slides if not slide.is_normal}),
        n_normal_patients=len({slide.map.slide.patient for slide in slides if slide.is_normal}),
        resamples=resamples,
    )


def _summarize_scaling(
    slides: Sequence[SlideMeasures], scaling: Scaling, options: FrocOptions, counts: Floats
) -> ScalingSummary:
    scaled = [slide.scaled[scaling] for slide in slides]
    hits = [measures.hits for measures in scaled]
    tumor, scores = [slide.tumor for slide in slides], [measures.scores for measures in scaled]
    pooled = rank_tiles(tumor, scores).pooled
    aucs, precisions = resampled_ranking(tumor, scores, counts[1:])
    froc = froc_of_hits(hits, options)

    def mean(name: str) -> Estimate:
        return mean_estimate([getattr(measures, name) for measures in scaled], counts)

    regions = [measures.regions_found for measures in scaled], [slide.n_regions for slide in slides]
    numbers = {
        "froc": estimate(froc.score, resampled_froc(hits, options, counts[1:]), n=len(slides)),
        "dice": mean("dice"),
        "specificity": mean("specificity"),
        "no_miss_regions": mean("without_missed_region"),
        "no_miss_tiles": mean("without_missed_tile"),
        "region_recall": ratio_estimate(*regions, counts),
        "pooled_auc": estimate(pooled.auc, aucs, n=len(slides)),
        "pooled_ap": estimate(pooled.ap, precisions, n=len(slides)),
    }
    return ScalingSummary(numbers, froc)
