"""From points to hits: which detections of a slide are false, and how sure its lesions were found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.evaluation.localization.lesions import MASK_DOWNSAMPLE
from asmil.tasks.checked_arrays import Floats, floats_of, numbers_of

Index = Literal["floor", "round"]


@dataclass(frozen=True)
class FrocSlide:
    """What was detected on a slide, and what is there.

    detections: n x 3 rows (score, x, y), in level-0 pixels; scores above 0 and comparable between slides
    labels: H x W of the evaluation mask (0, or the lesion's number 1 .. L); None on a normal slide
    itc: the labels of isolated tumor cells
    downsample: level-0 pixels to the side of a mask pixel
    """

    name: str
    detections: npt.ArrayLike
    labels: npt.ArrayLike | None = None
    itc: frozenset[int] = field(default_factory=frozenset)
    downsample: float = MASK_DOWNSAMPLE


@dataclass(frozen=True)
class SlideHits:
    """The detections of a slide, judged. A FROC of any resample of slides follows from these.

    false_positives: scores, in the order of the detections
    lesion_scores: one a label: the best score of its hits, 0 for missed lesions and for isolated tumor cells
    is_target: one a label: whether it counts as a lesion
    n_outside: how many of the false positives lie outside of the mask by more than a pixel
    """

    name: str
    is_normal: bool
    false_positives: Floats
    lesion_scores: Floats
    is_target: npt.NDArray[np.bool_]
    n_outside: int = 0

    @property
    def n_lesions(self) -> int:
        """How many lesions are to be found."""
        return int(self.is_target.sum())


def judge_detections(slide: FrocSlide, index: Index = "round") -> SlideHits:
    """Look up every detection in the evaluation mask at row y / downsample, column x / downsample.

    `floor` and `round` (half to even) say how these become whole numbers. Under `floor` the scores of lesions are
    rounded to float32, as the challenge's own code keeps them. One row or column past the end is the last one; what
    is further outside is in no lesion.
    """
    score, x, y = _checked_detections(slide)
    if slide.labels is None:
        nothing = np.zeros(0)
        return SlideHits(slide.name, True, score, nothing, nothing.astype(bool))
    labels = _checked_labels(slide, slide.labels)
    row, row_inside = _place(y / slide.downsample, labels.shape[0], index)
    column, column_inside = _place(x / slide.downsample, labels.shape[1], index)
    inside = row_inside & column_inside
    hit = np.zeros(len(score), dtype=np.intp)
    hit[inside] = labels[row[inside], column[inside]]
    n_labels = int(labels.max(initial=0))
    is_target = ~np.isin(np.arange(1, n_labels + 1), sorted(slide.itc))
    lesion_scores = np.zeros(n_labels + 1)
    np.maximum.at(lesion_scores, hit, score)
    lesion_scores = np.where(is_target, lesion_scores[1:], 0.0)
    if index == "floor":
        lesion_scores = lesion_scores.astype(np.float32).astype(np.float64)
    return SlideHits(slide.name, False, score[hit == 0], lesion_scores, is_target, int((~inside).sum()))


def _checked_labels(slide: FrocSlide, given: npt.ArrayLike) -> npt.NDArray[Any]:
    is_whole = isinstance(given, np.ndarray) and given.dtype.kind in "iu"
    labels = np.asarray(given) if is_whole else numbers_of(f"slide {slide.name}: labels", given)
    if labels.ndim != 2 or labels.size == 0:
        raise AsmilError(
            f"slide {slide.name}: labels are rows and columns of the evaluation mask, not an array of shape "
            f"{labels.shape}; a normal slide has None"
        )
    if labels.min() < 0 or not (is_whole or (labels == np.floor(labels)).all()):
        raise AsmilError(f"slide {slide.name}: labels are 0 outside of lesions and 1, 2, ... in them, and some are not")
    if not slide.downsample > 0:
        raise AsmilError(f"slide {slide.name}: downsample must be above 0, not {slide.downsample:g}")
    return labels


def _checked_detections(slide: FrocSlide) -> Floats:
    detections = floats_of(f"slide {slide.name}: detections", slide.detections)
    if detections.size == 0:
        return np.zeros((3, 0))
    if detections.ndim != 2 or detections.shape[1] != 3:
        raise AsmilError(
            f"slide {slide.name}: detections are n rows of (score, x, y), not an array of shape {detections.shape}"
        )
    if not np.isfinite(detections).all():
        raise AsmilError(f"slide {slide.name}: a detection has a score or place that is not a finite number; remove it")
    lowest = detections[:, 0].min()
    if lowest <= 0:
        raise AsmilError(
            f"slide {slide.name}: a detection has the score {lowest:g}, but 0 is the score of a missed lesion; map "
            "scores to above 0 in the same way on all slides, for instance by a sigmoid"
        )
    return detections.T


def _place(position: Floats, length: int, index: Index) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Whole positions, and which of them are on the mask when one past the end counts as the end."""
    whole = np.floor(position) if index == "floor" else np.rint(position)
    inside = (whole >= 0) & (whole <= length)
    return np.minimum(whole, length - 1).astype(np.intp), inside
