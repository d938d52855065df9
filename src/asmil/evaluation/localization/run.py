"""Localization of a run: from its models and annotations to measures of every slide and of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asmil.cohort.manifest import Cohort, read_manifest
from asmil.errors import AsmilError
from asmil.evaluation.localization.froc_curve import froc_options
from asmil.evaluation.localization.judge import Judge, Mask, Progress
from asmil.evaluation.localization.measures import Judging, SlideMeasures
from asmil.evaluation.localization.notes import run_notes, spacing_notes
from asmil.evaluation.localization.run_maps import RunMaps
from asmil.evaluation.localization.scaling import Scaling
from asmil.evaluation.localization.settings import LocalizeSettings
from asmil.evaluation.localization.slide_labels import normal_labels, read_skip_list
from asmil.evaluation.localization.summary import Summary, summarize
from asmil.evaluation.localization.truth import AnnotationTruth, TileTruth, Truth
from asmil.slides.annotations import find_annotations


@dataclass(frozen=True)
class Localization:
    """What was found.

    normal: labels that count as normal
    masks: the tumor of some slides, for pictures
    skipped: slides that the user's list leaves out
    notes: what a reader must know; problems: slides that could not be judged, each with the reason
    """

    path: Path
    method: str
    heatmap_kind: str
    n_seeds: int
    settings: LocalizeSettings
    judging: Judging
    normal: frozenset[str]
    slides: tuple[SlideMeasures, ...]
    summary: Summary
    masks: Mapping[str, Mask]
    skipped: tuple[str, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.path.resolve().name


def localize_run(
    run: Path | str, settings: LocalizeSettings, n_masks: int = 4, progress: Progress | None = None
) -> Localization:
    """Judge the heat maps of a run against annotations; slides that cannot be judged are listed in `problems`.

    n_masks: of how many tumor slides the masks are kept, for pictures
    progress: called with (steps done, steps in all); a slide takes two
    """
    if (settings.annotations is None) == (settings.truth is None):
        raise AsmilError("give either --annotations (a folder) or --truth (a table of tiles)")
    options = froc_options(settings.preset)
    maps = RunMaps(run, settings.role, settings.heatmap, settings.device)
    cohort, problems = _read_cohort(maps, settings)
    skipped = read_skip_list(settings.skip_list) if settings.skip_list else ()
    wanted = [
        slide
        for slide in cohort.slides
        if slide.label is not None and slide.slide not in skipped and maps.may_judge(slide)
    ]
    normal = normal_labels([*maps.description.classes, *cohort.classes], settings.normal)
    judging = Judging(_scalings(settings, normal), options, settings.conversion, settings.radius)
    truth = _truth(settings, cohort)
    judged = Judge(maps, truth, judging, normal, n_masks).judge(wanted, progress or (lambda done, total: None))
    problems += judged.problems
    if not judged.slides:
        listed = "".join(f"\n  - {line}" for line in [*problems, *truth.notes()])
        raise AsmilError(f"{run}: no slide with the role {settings.role} could be judged{':' * bool(listed)}{listed}")
    notes = [*run_notes(maps, cohort, settings, skipped, normal), *truth.notes(), *spacing_notes(judged.slides)]
    return Localization(
        path=maps.path,
        method=maps.description.config.method,
        heatmap_kind=maps.kind,
        n_seeds=len(maps.seeds),
        settings=settings,
        judging=judging,
        normal=normal,
        slides=tuple(judged.slides),
        summary=summarize(judged.slides, options, settings.resamples, settings.seed),
        masks=judged.masks,
        skipped=tuple(name for name in skipped if name in cohort),
        notes=tuple(notes),
        problems=tuple(problems),
    )


def _read_cohort(maps: RunMaps, settings: LocalizeSettings) -> tuple[Cohort, list[str]]:
    """The cohort, and what is wrong with slides of it that should be judged.

    Of the run's own manifest only slides with the role matter; of another one, all.
    """
    own = settings.cohort is None
    path = settings.cohort or Path(maps.description.cohort["manifest"])
    if own and not path.is_file():
        raise AsmilError(f"{path}: the manifest of the run is not there, seen from this folder; give it with --cohort")
    cohort, found = read_manifest(path, settings.features)
    told = [str(problem) for problem in found if problem.severity == "error"]
    if not own:
        return cohort, told
    problems = []
    for name in sorted(maps.slides_of_role()):
        about = [text for text in told if f"'{name}'" in text]
        if about:
            problems.append(about[0])
        elif name not in cohort:
            problems.append(f"{name}: the slide is not in {path} any more, or has no features; put it back")
    return cohort, problems


def _scalings(settings: LocalizeSettings, normal: frozenset[str]) -> tuple[Scaling, ...]:
    if "gated" in settings.scalings and not normal:
        raise AsmilError(
            "--scaling gated: no class of the run is normal, so there is no probability of tumor; name one with "
            "--normal, or take times_n"
        )
    others: tuple[Scaling, ...] = settings.scalings or (("gated",) if normal else ("times_n",))
    return tuple(dict.fromkeys(("minmax", *others)))


def _truth(settings: LocalizeSettings, cohort: Cohort) -> Truth:
    if settings.truth is not None:
        return TileTruth(settings.truth)
    assert settings.annotations is not None
    files = find_annotations(settings.annotations, [slide.slide for slide in cohort.slides])
    return AnnotationTruth(files, settings.classes, settings.mask_value)
