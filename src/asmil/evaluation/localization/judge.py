"""Judging the slides of a run one by one; one that cannot be judged does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from asmil.cohort.manifest import Slide
from asmil.errors import AsmilError
from asmil.evaluation.localization.measures import Judging, SlideMeasures, limits_of, measure_slide, scaled_map
from asmil.evaluation.localization.run_maps import RunMaps, SlideMap
from asmil.evaluation.localization.truth import Truth

Mask = npt.NDArray[np.bool_]
Progress = Callable[[int, int], None]


@dataclass
class Judged:
    """The measures of the slides, the masks of the first tumor slides, and what was wrong with others."""

    slides: list[SlideMeasures] = field(default_factory=list)
    masks: dict[str, Mask] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Judge:
    """Holds the maps of a run against the truth.

    normal: labels of normal slides
    n_masks: of how many tumor slides the masks are kept, for pictures
    """

    maps: RunMaps
    truth: Truth
    judging: Judging
    normal: frozenset[str]
    n_masks: int

    def judge(self, slides: Sequence[Slide], progress: Progress) -> Judged:
        """Go through the slides twice: all maps first, since a scaling may need them all, then the truth of each."""
        judged = Judged()
        read: list[SlideMap] = []
        for done, slide in enumerate(slides, start=1):
            try:
                read.append(self.maps.read(slide))
            except AsmilError as error:
                judged.problems.append(_told(slide, error))
            progress(done, 2 * len(slides))
        limits = limits_of(read, self._is_attention) if read and "cohort" in self.judging.scalings else None
        for done, one in enumerate(read, start=1):
            try:
                self._judge_one(one, limits, judged)
            except AsmilError as error:
                judged.problems.append(_told(one.slide, error))
            progress(len(slides) + done, len(slides) + len(read))
        return judged

    @property
    def _is_attention(self) -> bool:
        return self.maps.kind == "attention"

    def _judge_one(self, one: SlideMap, limits: tuple[float, float] | None, judged: Judged) -> None:
        tumor = self._tumor_mask(one)
        probability = self._tumor_probability(one)
        scores = {
            scaling: scaled_map(one.heat, scaling, probability, limits, self._is_attention)
            for scaling in self.judging.scalings
        }
        judged.slides.append(measure_slide(one, tumor, probability, scores, self.judging))
        if tumor is not None and len(judged.masks) < self.n_masks:
            judged.masks[one.slide.slide] = tumor

    def _tumor_mask(self, one: SlideMap) -> Mask | None:
        """The mask of a tumor slide, None for a normal one; a truth that contradicts the label is an error."""
        name, label = one.slide.slide, one.slide.label
        mask = self.truth.tumor(name, one.frame)
        if label in self.normal:
            if mask is not None and mask.any():
                raise AsmilError(f"{name}: its label is {label}, but its annotation holds tumor; correct one of them")
            return None
        if mask is None:
            raise AsmilError(
                f"{name}: there is no annotation of it, and its label is {label}; give one, or --normal {label} if "
                "that means normal, or leave the slide out with --skip-list"
            )
        if not mask.any():
            raise AsmilError(
                f"{name}: its label is {label}, but its annotation holds no tumor; name its classes with --tumor, or "
                "leave the slide out with --skip-list"
            )
        return mask

    def _tumor_probability(self, one: SlideMap) -> float:
        normal = [place for place, name in enumerate(self.maps.description.classes) if name in self.normal]
        return float(np.clip(1 - one.probabilities[normal].sum(), 0, 1))


def _told(slide: Slide, error: AsmilError) -> str:
    text = str(error)
    return text if slide.slide in text else f"{slide.slide}: {text}"
