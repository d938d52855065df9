"""Compare the heat map of one slide with its annotated tumor, under each scaling of the map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from asmil.cohort.manifest import Slide
from asmil.engine.jobs import Progress
from asmil.errors import AsmilError
from asmil.evaluation.localization import tile_maps
from asmil.evaluation.localization.evaluated_maps import EvaluatedMaps, SlideMap
from asmil.evaluation.localization.froc_curve import FrocOptions, FrocSlide, SlideHits, judge_detections
from asmil.evaluation.localization.lesions import EvaluationMask, evaluation_mask
from asmil.evaluation.localization.points import Conversion, points_from_tiles
from asmil.evaluation.localization.scaling import THRESHOLDS, Scaling, cohort_limits, scale_scores
from asmil.evaluation.localization.tile_maps import Truth
from asmil.evaluation.localization.tile_ranking import rank_tiles
from asmil.reporting.estimate import NAN
from asmil.tables.arrays import Booleans, Floats


@dataclass(frozen=True)
class LocalizationProtocol:
    """How maps are evaluated: the scalings, the FROC convention, and the conversion of tiles to detections."""

    scalings: tuple[Scaling, ...]
    options: FrocOptions
    conversion: Conversion = "nms"
    radius: int = 3


@dataclass(frozen=True)
class ScaledMeasures:
    """Metrics of one slide under one scaling; nan if a metric is undefined for this kind of slide.

    scores: N, the scaled map
    dice, regions_found, without_missed_region, without_missed_tile: for tumor slides
    specificity: for normal slides
    hits: the slide's detections, compared with its lesions by the rules of CAMELYON16
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
    """One slide: its tumor, the ranking of its tiles, and the metrics under every scaling.

    tumor: N, whether a tile overlaps the tumor
    best_specificity: the highest specificity that min-max scaling allows; nan on tumor slides
    """

    map: SlideMap
    is_normal: bool
    tumor_probability: float
    tumor: Booleans
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
        return self.map.slide.slide


def evaluate_maps(
    maps: EvaluatedMaps,
    slides: Sequence[Slide],
    truth: Truth,
    protocol: LocalizationProtocol,
    normal: frozenset[str],
    n_masks: int,
    progress: Progress,
) -> tuple[list[SlideMeasures], dict[str, Booleans], list[str]]:
    """The metrics of the slides, the masks of the first `n_masks` tumor slides, and the errors of slides that failed.

    There are two passes: first all maps, since a scaling may need all of them, then the truth of each slide.

    normal: labels of normal slides
    """
    measured: list[SlideMeasures] = []
    masks: dict[str, Booleans] = {}
    problems: list[str] = []
    read: list[SlideMap] = []
    for done, slide in enumerate(slides, start=1):
        try:
            read.append(maps.map_of(slide))
        except AsmilError as error:
            problems.append(_describe(slide, error))
        progress(done, 2 * len(slides))
    is_attention = maps.kind == "attention"
    limits = limits_of(read, is_attention) if read and "cohort" in protocol.scalings else None
    normal_classes = [index for index, name in enumerate(maps.run.classes) if name in normal]
    for done, slide_map in enumerate(read, start=1):
        try:
            tumor = _tumor_mask(slide_map, truth, normal)
            probability = float(np.clip(1 - slide_map.probabilities[normal_classes].sum(), 0, 1))
            scores = {
                scaling: scaled_map(slide_map.heat, scaling, probability, limits, is_attention)
                for scaling in protocol.scalings
            }
            tiles = None if tumor is None else truth.tiles(slide_map.slide.slide, slide_map.frame)
            measured.append(measure_slide(slide_map, tumor, probability, scores, protocol, tiles))
            if tumor is not None and len(masks) < n_masks:
                masks[slide_map.slide.slide] = tumor
        except AsmilError as error:
            problems.append(_describe(slide_map.slide, error))
        progress(len(slides) + done, len(slides) + len(read))
    return measured, masks, problems


def _tumor_mask(slide_map: SlideMap, truth: Truth, normal: frozenset[str]) -> Booleans | None:
    """The mask of a tumor slide, None for a normal slide; an annotation that contradicts the label is an error."""
    name, label = slide_map.slide.slide, slide_map.slide.label
    mask = truth.tumor(name, slide_map.frame)
    if label in normal:
        if mask is not None and mask.any():
            raise AsmilError(f"{name}: the label is {label}, but tumor is annotated; correct one of them")
        return None
    if mask is None:
        raise AsmilError(
            f"{name}: the label is {label}, but there is no annotation; add one, use --normal {label} if this "
            "label means normal, or leave the slide out with --skip-list"
        )
    if not mask.any():
        raise AsmilError(
            f"{name}: the label is {label}, but no tumor is annotated; give the tumor classes with --tumor, "
            "or leave the slide out with --skip-list"
        )
    return mask


def _describe(slide: Slide, error: AsmilError) -> str:
    text = str(error)
    return text if slide.slide in text else f"{slide.slide}: {text}"


def limits_of(maps: Sequence[SlideMap], is_attention: bool) -> tuple[float, float]:
    """The limits of the common scale of all slides under the scaling `cohort`: of attention relative to uniform."""
    heats = (slide_map.heat for slide_map in maps)
    return cohort_limits(scale_scores(heat, "times_n") if is_attention else heat for heat in heats)


def scaled_map(
    heat: Floats, scaling: Scaling, probability: float, limits: tuple[float, float] | None, is_attention: bool
) -> Floats:
    """N scores of a slide under a scaling."""
    if scaling == "cohort" and is_attention:
        heat = scale_scores(heat, "times_n")
    return scale_scores(heat, scaling, limits=limits, probability=probability)


def measure_slide(
    slide_map: SlideMap,
    truth: Booleans | None,
    tumor_probability: float,
    scores: Mapping[Scaling, Floats],
    protocol: LocalizationProtocol,
    tiles: Booleans | None = None,
) -> SlideMeasures:
    """Compare the scaled maps of a slide with its tumor mask.

    truth: the mask; None for a normal slide
    tiles: which tiles are tumor; None: those that overlap the mask
    """
    frame = slide_map.frame
    lesions = None if truth is None else evaluation_mask(truth, frame.um_per_pixel)
    if truth is None:
        overlap = np.zeros(len(frame.coords))
    elif tiles is not None:
        overlap = tiles.astype(np.float64)
    else:
        overlap = tile_maps.tile_overlap(truth, frame.coords, frame.tile_px, frame.downsample)
    tumor = overlap > 0
    ranking = rank_tiles([tumor], [slide_map.heat]).mean
    scaled = {
        scaling: _measure_scaled(slide_map, truth, overlap, lesions, values, THRESHOLDS[scaling], protocol)
        for scaling, values in scores.items()
    }
    return SlideMeasures(
        map=slide_map,
        is_normal=truth is None,
        tumor_probability=tumor_probability,
        tumor=tumor,
        tumor_mm2=0.0 if truth is None else float(truth.sum()) * (frame.um_per_pixel / 1000) ** 2,
        n_regions=0 if truth is None else len(tile_maps.regions_found(truth, truth)),
        n_lesions=0 if lesions is None else lesions.n_lesions,
        n_itc=0 if lesions is None else len(lesions.itc),
        tile_auc=ranking.auc,
        tile_ap=ranking.ap,
        best_specificity=tile_maps.highest_specificity(len(tumor)) if truth is None else NAN,
        scaled=scaled,
    )


def _measure_scaled(
    slide_map: SlideMap,
    truth: Booleans | None,
    overlap: Floats,
    lesions: EvaluationMask | None,
    scores: Floats,
    threshold: float,
    protocol: LocalizationProtocol,
) -> ScaledMeasures:
    frame = slide_map.frame
    points = points_from_tiles(frame.coords, scores, frame.tile_px, protocol.conversion, threshold, protocol.radius)
    labels, itc = (None, frozenset[int]()) if lesions is None else (lesions.labels, lesions.itc)
    hits = judge_detections(
        FrocSlide(slide_map.slide.slide, points, labels, itc, frame.downsample), protocol.options.index
    )
    positive = scores >= threshold
    measures = ScaledMeasures(scores, int(positive.sum()), len(points), hits)
    if truth is None:
        return replace(measures, specificity=tile_maps.specificity(scores, threshold))
    predicted = tile_maps.tile_mask(frame.coords, positive, frame.tile_px, truth.shape, frame.downsample)
    found_regions = tile_maps.regions_found(truth, predicted)
    return replace(
        measures,
        dice=tile_maps.dice(predicted, truth),
        regions_found=float(found_regions.sum()),
        without_missed_region=float(found_regions.all()),
        without_missed_tile=float(tile_maps.all_tumor_tiles_positive(overlap, positive)),
    )
