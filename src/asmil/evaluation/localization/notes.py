"""What a reader of localization numbers must know, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asmil.cohort.manifest import Cohort
from asmil.evaluation.localization.measures import SlideMeasures
from asmil.evaluation.localization.run_maps import RunMaps
from asmil.evaluation.localization.settings import LocalizeSettings


def run_notes(
    maps: RunMaps, cohort: Cohort, settings: LocalizeSettings, skipped: Sequence[str], normal: frozenset[str]
) -> Iterator[str]:
    """About the run and the slides that were chosen."""
    left_out = [slide.slide for slide in cohort.slides if not maps.may_judge(slide)]
    if left_out and settings.cohort is not None:
        yield f"{len(left_out)} slides of {settings.cohort} were trained on, or are of such patients, and are left out"
    if settings.role != "test":
        yield f"these are slides of the {settings.role} part: the models have seen them, and the numbers are optimistic"
    if len(maps.seeds) > 1:
        yield f"the maps and probabilities of {len(maps.seeds)} seeds are averaged before anything is measured"
    if maps.joins_slides:
        yield "the run joins the slides of a patient into one bag; here every slide is a bag of its own"
    if maps.unfinished:
        yield f"{maps.unfinished} trainings of the run have not ended; their models are not used"
    if not normal:
        yield "no label means normal (name it with --normal): all slides count as tumor slides"
    unknown = [name for name in skipped if name not in cohort]
    if unknown:
        named = ", ".join(unknown[:5])
        yield f"the list of slides to leave out names {len(unknown)} that the cohort does not have: {named}"


def spacing_notes(slides: Sequence[SlideMeasures]) -> Iterator[str]:
    """About the size of mask pixels, on which FROC and its lesions depend."""
    frames = [one.map.frame for one in slides]
    known = {(frame.downsample, round(frame.um_per_pixel, 3)) for frame in frames if frame.mpp is not None}
    if known:
        sizes = ", ".join(f"{side} px = {um:g} um" for side, um in sorted(known))
        yield f"a mask pixel is {sizes}, by the resolution of the slides"
    unknown = sum(frame.mpp is None for frame in frames)
    if unknown:
        yield (
            f"the resolution of {unknown} slides is not known: as in CAMELYON16, a mask pixel of 32 px is taken for "
            "7.776 um"
        )
    extents = sum(not frame.size_is_stated for frame in frames)
    if extents:
        yield f"the features of {extents} slides do not state the size of the slide: the extent of its tiles is taken"
