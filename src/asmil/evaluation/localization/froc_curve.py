"""FROC: sensitivity for lesions against false positives per slide, under three conventions in common use.

The same detections get different scores under different conventions, so a result names its convention. Presets:
`challenge2016` follows the code of the challenge (with the interpolation of NCRF and MONAI, since that code computes
no score), `release` the script that ships with the public data, and `asmil_text` the text of papers: false positives
on normal slides only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.localization.lesions import MASK_DOWNSAMPLE
from asmil.tables.arrays import Floats
from asmil.tasks.checked_arrays import floats_of, numbers_of

Index = Literal["floor", "round"]
Thresholds = Literal["drop_lowest", "positive"]
FpSlides = Literal["all", "normal"]
Rule = Literal["linear", "up", "down"]

FP_TARGETS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CHOICES: dict[str, tuple[str, ...]] = {
    "index": get_args(Index),
    "thresholds": get_args(Thresholds),
    "fp_slides": get_args(FpSlides),
    "rule": get_args(Rule),
}


@dataclass(frozen=True)
class FrocOptions:
    """A FROC convention.

    index: how level-0 pixels become rows and columns of the mask
    thresholds: all distinct scores except the smallest, or all that are above 0
    fp_slides: whether false positives are counted on, and averaged over, all slides or only normal ones
    rule: sensitivity at a number of false positives that no threshold reaches exactly: `linear` interpolates, `up`
        uses the first point with at least as many, `down` the best point with at most as many
    fp_targets: the numbers of false positives per slide at which sensitivities are averaged
    """

    index: Index = "round"
    thresholds: Thresholds = "positive"
    fp_slides: FpSlides = "all"
    rule: Rule = "up"
    fp_targets: tuple[float, ...] = FP_TARGETS

    def __post_init__(self) -> None:
        for name, words in CHOICES.items():
            word = getattr(self, name)
            if word not in words:
                raise AsmilError(f"the FROC option {name} cannot be {word!r}: {did_you_mean(str(word), words)}")
        if not self.fp_targets or not all(target >= 0 for target in self.fp_targets):
            raise AsmilError(f"fp_targets: give false positives per slide, at least 0, not {self.fp_targets}")


PRESETS: dict[str, FrocOptions] = {
    "challenge2016": FrocOptions("floor", "drop_lowest", "all", "linear"),
    "release": FrocOptions("round", "positive", "all", "up"),
    "asmil_text": FrocOptions("round", "positive", "normal", "down"),
}


@dataclass(frozen=True)
class FrocSlide:
    """Detections and lesions of a slide.

    detections: n x 3 rows (score, x, y), in level-0 pixels; scores above 0 and comparable between slides
    labels: the H x W evaluation mask (0, or the number 1 .. L of the lesion); None for a normal slide
    itc: the labels of isolated tumor cells
    downsample: level-0 pixels along the side of a mask pixel
    """

    name: str
    detections: npt.ArrayLike
    labels: npt.ArrayLike | None = None
    itc: frozenset[int] = field(default_factory=frozenset)
    downsample: float = MASK_DOWNSAMPLE


@dataclass(frozen=True)
class SlideHits:
    """The detections of a slide, assigned to its lesions; enough to compute the FROC of any resample of slides.

    false_positives: scores, in the order of the detections
    lesion_scores: one per label: the best score of its hits, 0 for missed lesions and for isolated tumor cells
    is_target: one per label: whether it counts as a lesion
    n_outside: number of false positives more than a pixel outside the mask
    """

    name: str
    is_normal: bool
    false_positives: Floats
    lesion_scores: Floats
    is_target: npt.NDArray[np.bool_]
    n_outside: int = 0

    @property
    def n_lesions(self) -> int:
        """Number of lesions that count as targets."""
        return int(self.is_target.sum())


def judge_detections(slide: FrocSlide, index: Index = "round") -> SlideHits:
    """Look up every detection in the evaluation mask at row y / downsample, column x / downsample.

    `floor` and `round` (half to even) define how these become integers. Under `floor` the scores of lesions are
    rounded to float32, as in the code of the challenge. One row or column past the end counts as the last one;
    detections further outside hit no lesion.
    """
    score, x, y = _checked_detections(slide)
    if slide.labels is None:
        nothing = np.zeros(0)
        return SlideHits(slide.name, True, score, nothing, nothing.astype(bool))
    labels = _checked_labels(slide, slide.labels)
    row, row_inside = _pixel(y / slide.downsample, labels.shape[0], index)
    column, column_inside = _pixel(x / slide.downsample, labels.shape[1], index)
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
            f"slide {slide.name}: labels must be a two-dimensional evaluation mask, not an array of shape "
            f"{labels.shape}; use None for a normal slide"
        )
    if labels.min() < 0 or not (is_whole or (labels == np.floor(labels)).all()):
        raise AsmilError(f"slide {slide.name}: labels must be 0 outside lesions and 1, 2, ... inside them")
    if not slide.downsample > 0:
        raise AsmilError(f"slide {slide.name}: downsample must be above 0, not {slide.downsample:g}")
    return labels


def _checked_detections(slide: FrocSlide) -> Floats:
    detections = floats_of(f"slide {slide.name}: detections", slide.detections)
    if detections.size == 0:
        return np.zeros((3, 0))
    if detections.ndim != 2 or detections.shape[1] != 3:
        raise AsmilError(
            f"slide {slide.name}: detections must be n rows of (score, x, y), not an array of shape {detections.shape}"
        )
    if not np.isfinite(detections).all():
        raise AsmilError(f"slide {slide.name}: the score or position of a detection is not finite; remove it")
    lowest = detections[:, 0].min()
    if lowest <= 0:
        raise AsmilError(
            f"slide {slide.name}: a detection has the score {lowest:g}, but scores must be above 0, the score of a "
            "missed lesion; map the scores of all slides to positive values, for example with a sigmoid"
        )
    return detections.T


def _pixel(position: Floats, length: int, index: Index) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Integer positions, and which of them are on the mask; one past the end counts as the end."""
    whole = np.floor(position) if index == "floor" else np.rint(position)
    inside = (whole >= 0) & (whole <= length)
    return np.minimum(whole, length - 1).astype(np.intp), inside


@dataclass(frozen=True)
class Froc:
    """A FROC curve and its score, the mean of the sensitivities at the targets.

    average_fp, sensitivity: the curve, from the lowest threshold to the highest, then (0, 0)
    thresholds: the lowest score that counts as a detection at each point of the curve; infinity at the last point
    reason: why the score is nan; empty otherwise
    """

    score: float
    sensitivities: Floats
    fp_targets: tuple[float, ...]
    average_fp: Floats
    sensitivity: Floats
    thresholds: Floats
    n_lesions: int
    n_slides: int
    n_normal: int
    preset: str
    options: FrocOptions
    reason: str = ""


def froc(slides: Sequence[FrocSlide], preset: str = "release", options: FrocOptions | None = None) -> Froc:
    """Compute the FROC of slides under a preset or custom options.

    sensitivity(t) = lesions with a score >= t, divided by all lesions of all slides, without isolated tumor cells;
    average_fp(t) = false positives with a score >= t, divided by the number of slides (all, or normal ones).
    """
    options = froc_options(preset) if options is None else options
    return froc_of_hits([judge_detections(slide, options.index) for slide in slides], options)


def froc_options(preset: str) -> FrocOptions:
    """The options of a preset."""
    if preset not in PRESETS:
        raise AsmilError(f"there is no FROC preset {preset!r}; {did_you_mean(preset, PRESETS)}")
    return PRESETS[preset]


def froc_of_hits(hits: Sequence[SlideHits], options: FrocOptions) -> Froc:
    """The FROC of slides whose detections are already assigned to lesions, with the index of these options."""
    pool = HitPool(hits, options)
    thresholds, average_fp, sensitivity = pool.curve(np.ones(len(hits)))
    reason = pool.reason()
    sensitivities = np.full(len(options.fp_targets), np.nan)
    if not reason:
        sensitivities = sensitivity_at(options.fp_targets, average_fp, sensitivity, options.rule)
    return Froc(
        score=float(sensitivities.mean()),
        sensitivities=sensitivities,
        fp_targets=options.fp_targets,
        average_fp=average_fp,
        sensitivity=sensitivity,
        thresholds=thresholds,
        n_lesions=sum(slide.n_lesions for slide in hits),
        n_slides=len(hits),
        n_normal=sum(slide.is_normal for slide in hits),
        preset=next((name for name, known in PRESETS.items() if known == options), "own options"),
        options=options,
        reason=reason,
    )


def resampled_froc(hits: Sequence[SlideHits], options: FrocOptions, counts: npt.ArrayLike) -> Floats:
    """R scores under R resamples; counts: R x S, how often each slide is drawn; nan if a score is undefined."""
    pool = HitPool(hits, options)
    return np.array([pool.score(row) for row in np.atleast_2d(np.asarray(counts, dtype=np.float64))])


class HitPool:
    """The hits of many slides, sorted once, so that the curve of each resample is cheap."""

    def __init__(self, hits: Sequence[SlideHits], options: FrocOptions) -> None:
        self.options = options
        self.is_normal = np.array([slide.is_normal for slide in hits], dtype=bool)
        self.n_lesions = np.array([slide.n_lesions for slide in hits], dtype=np.float64)
        counted = [slide.is_normal or options.fp_slides == "all" for slide in hits]
        false_positives = [
            slide.false_positives if with_fp else np.zeros(0) for slide, with_fp in zip(hits, counted, strict=True)
        ]
        fp_score, self._fp_slide = _join(false_positives)
        lesion_score, self._lesion_slide = _join([slide.lesion_scores for slide in hits])
        self.thresholds, index = np.unique(np.concatenate([fp_score, lesion_score]), return_inverse=True)
        self._fp_index, self._lesion_index = index[: len(fp_score)], index[len(fp_score) :]
        # Under `floor` lesions have float32 scores, which are compared with the threshold in float32.
        reached = self.thresholds.astype(np.float32) if options.index == "floor" else self.thresholds
        self._lesion_reach = np.searchsorted(reached, lesion_score, side="right") - 1
        is_target = np.concatenate([np.zeros(0, dtype=bool), *(slide.is_target for slide in hits)])
        self._is_target = is_target.astype(np.float64)

    def reason(self) -> str:
        """Why the score is undefined; empty if it is defined."""
        if self.n_lesions.sum() == 0:
            return "no slide has a lesion larger than isolated tumor cells"
        if self.options.fp_slides == "normal" and not self.is_normal.any():
            return "false positives are averaged over normal slides, and there are none"
        return ""

    def curve(self, counts: Floats) -> tuple[Floats, Floats, Floats]:
        """Thresholds (lowest first, then infinity), average_fp and sensitivity if slide s is drawn counts[s] times.

        A division by 0 gives nan.
        """
        n = len(self.thresholds)
        of_fp, of_lesion = counts[self._fp_slide], counts[self._lesion_slide]
        false = _counts_from(self._fp_index, of_fp, n)
        hit = _counts_from(self._lesion_reach, of_lesion * self._is_target, n)
        present = np.bincount(self._fp_index, of_fp, n) + np.bincount(self._lesion_index, of_lesion, n) > 0
        if self.options.thresholds == "positive":
            kept = present & (self.thresholds > 0)
        else:
            kept = present.copy()
            kept[np.flatnonzero(present)[:1]] = False
        slides = counts[self.is_normal].sum() if self.options.fp_slides == "normal" else counts.sum()
        with np.errstate(invalid="ignore", divide="ignore"):
            average_fp = np.append(false[kept], 0.0) / slides
            sensitivity = np.append(hit[kept], 0.0) / (counts @ self.n_lesions)
        return np.append(self.thresholds[kept], np.inf), average_fp, sensitivity

    def score(self, counts: Floats) -> float:
        """The score if slide s is drawn counts[s] times; nan without lesions or without slides to average over."""
        averaged_over = self.is_normal if self.options.fp_slides == "normal" else np.ones(len(counts), dtype=bool)
        if counts @ self.n_lesions == 0 or not counts[averaged_over].any():
            return float("nan")
        _, average_fp, sensitivity = self.curve(counts)
        return float(sensitivity_at(self.options.fp_targets, average_fp, sensitivity, self.options.rule).mean())


def sensitivity_at(fp_targets: Sequence[float], average_fp: Floats, sensitivity: Floats, rule: Rule) -> Floats:
    """The sensitivity of a curve (lowest threshold first) at every target.

    At equal numbers of false positives, `up` uses the lowest sensitivity and `down` the highest; `linear` uses the
    highest at the number itself and the lowest when interpolating from below. Beyond the last point the sensitivity is
    constant.
    """
    rising_fp, rising_sensitivity = average_fp[::-1], sensitivity[::-1]
    if rule == "linear":
        return np.asarray(np.interp(fp_targets, rising_fp, rising_sensitivity))
    if rule == "up":
        index = np.searchsorted(rising_fp, fp_targets, side="left")
        return rising_sensitivity[np.minimum(index, len(rising_fp) - 1)]
    return rising_sensitivity[np.searchsorted(rising_fp, fp_targets, side="right") - 1]


def _join(parts: Sequence[Floats]) -> tuple[Floats, npt.NDArray[np.intp]]:
    """All values, and the index of the part that each one belongs to."""
    of_part = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return np.concatenate([np.zeros(0), *parts]), of_part


def _counts_from(index: npt.NDArray[np.intp], weights: Floats, n: int) -> Floats:
    """n sums: for each k, the total weight of all indices from k on."""
    return np.asarray(np.bincount(index, weights, n)[::-1].cumsum()[::-1])
