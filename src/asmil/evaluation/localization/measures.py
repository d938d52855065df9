"""What is measured on one slide, under each scaling of its heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from asmil.evaluation.localization.detections import FrocSlide, SlideHits, judge_detections
from asmil.evaluation.localization.froc_curve import FrocOptions
from asmil.evaluation.localization.lesions import EvaluationMask, evaluation_mask
from asmil.evaluation.localization.points import Conversion, points_from_tiles
from asmil.evaluation.localization.run_maps import SlideMap
from asmil.evaluation.localization.scaling import THRESHOLDS, Scaling, cohort_limits, scale_scores
from asmil.evaluation.localization.tile_maps import (
    all_tumor_tiles_positive,
    dice,
    highest_specificity,
    regions_found,
    specificity,
    tile_mask,
    tile_overlap,
)
from asmil.evaluation.localization.tile_ranking import rank_tiles
from asmil.tasks.checked_arrays import Floats

Mask = npt.NDArray[np.bool_]
NAN = float("nan")


@dataclass(frozen=True)
class Judging:
    """How maps become numbers: the scalings, the FROC convention, and how tiles become points."""

    scalings: tuple[Scaling, ...]
    options: FrocOptions
    conversion: Conversion = "nms"
    radius: int = 3


@dataclass(frozen=True)
class ScaledMeasures:
    """One slide under one scaling; nan where a measure is not defined for such a slide.

    scores: N, the scaled map
    dice, regions_found, without_missed_region, without_missed_tile: of tumor slides
    specificity: of normal slides
    hits: the slide's detections, judged by the rules of CAMELYON16
    """

    scores: Floats
    positive_tiles: int
    n_detections: int
    hits: SlideHits
    dice: float = NAN
    specificity: float = NAN
    regions_found: float = NAN
    without_missed_region: float = NAN
    without_missed_tile: float = NAN


@dataclass(frozen=True)
class SlideMeasures:
    """One slide: what is there, how well its tiles are ordered, and the measures of every scaling.

    tumor: N, whether a tile overlaps the tumor
    best_specificity: what min-max scaling allows at most; nan on tumor slides
    """

    map: SlideMap
    is_normal: bool
    tumor_probability: float
    tumor: Mask
    tumor_mm2: float
    n_regions: int
    n_lesions: int
    n_itc: int
    tile_auc: float
    tile_ap: float
    best_specificity: float
    scaled: Mapping[Scaling, ScaledMeasures]

    @property
    def name(self) -> str:
        """The slide."""
        return self.map.slide.slide


def comparable_values(heat: Floats, is_attention: bool) -> Floats:
    """A map in values that can be held against those of other slides: attention by its fair share, others as is."""
    return scale_scores(heat, "times_n") if is_attention else heat


def limits_of(maps: Sequence[SlideMap], is_attention: bool) -> tuple[float, float]:
    """The ends of the scale that all slides share under the scaling `cohort`."""
    return cohort_limits(comparable_values(one.heat, is_attention) for one in maps)


def scaled_map(
    heat: Floats, scaling: Scaling, probability: float, limits: tuple[float, float] | None, is_attention: bool
) -> Floats:
    """N scores of a slide under a scaling."""
    values = comparable_values(heat, is_attention) if scaling == "cohort" else heat
    return scale_scores(values, scaling, limits=limits, probability=probability)


def measure_slide(
    one: SlideMap,
    truth: Mask | None,
    tumor_probability: float,
    scores: Mapping[Scaling, Floats],
    judging: Judging,
) -> SlideMeasures:
    """Hold the scaled maps of a slide against its tumor mask; None for a normal slide."""
    frame = one.frame
    lesions = None if truth is None else evaluation_mask(truth, frame.um_per_pixel)
    overlap = (
        np.zeros(len(one.coords)) if truth is None else tile_overlap(truth, one.coords, frame.tile_px, frame.downsample)
    )
    tumor = overlap > 0
    ranking = rank_tiles([tumor], [one.heat]).mean
    scaled = {
        scaling: _measure_scaled(one, truth, overlap, lesions, values, THRESHOLDS[scaling], judging)
        for scaling, values in scores.items()
    }
    return SlideMeasures(
        map=one,
        is_normal=truth is None,
        tumor_probability=tumor_probability,
        tumor=tumor,
        tumor_mm2=0.0 if truth is None else float(truth.sum()) * (frame.um_per_pixel / 1000) ** 2,
        n_regions=0 if truth is None else len(regions_found(truth, truth)),
        n_lesions=0 if lesions is None else lesions.n_lesions,
        n_itc=0 if lesions is None else len(lesions.itc),
        tile_auc=ranking.auc,
        tile_ap=ranking.ap,
        best_specificity=highest_specificity(len(tumor)) if truth is None else NAN,
        scaled=scaled,
    )


def _measure_scaled(
    one: SlideMap,
    truth: Mask | None,
    overlap: Floats,
    lesions: EvaluationMask | None,
    scores: Floats,
    threshold: float,
    judging: Judging,
) -> ScaledMeasures:
    frame = one.frame
    points = points_from_tiles(one.coords, scores, frame.tile_px, judging.conversion, threshold, judging.radius)
    labels, itc = (None, frozenset[int]()) if lesions is None else (lesions.labels, lesions.itc)
    hits = judge_detections(FrocSlide(one.slide.slide, points, labels, itc, frame.downsample), judging.options.index)
    positive = scores >= threshold
    measures = ScaledMeasures(scores, int(positive.sum()), len(points), hits)
    if truth is None:
        return replace(measures, specificity=specificity(scores, threshold))
    predicted = tile_mask(one.coords, positive, frame.tile_px, truth.shape, frame.downsample)
    found = regions_found(truth, predicted)
    return replace(
        measures,
        dice=dice(predicted, truth),
        regions_found=float(found.sum()),
        without_missed_region=float(found.all()),
        without_missed_tile=float(all_tumor_tiles_positive(overlap, positive)),
    )
