"""Where a model looks, measured against annotations: FROC, Dice, specificity, missed regions, AUC of tiles."""

from __future__ import annotations

from asmil.evaluation.localization.froc_curve import (
    FP_TARGETS,
    PRESETS,
    Froc,
    FrocOptions,
    FrocSlide,
    SlideHits,
    froc,
    froc_of_hits,
    froc_options,
    judge_detections,
    resampled_froc,
)
from asmil.evaluation.localization.lesions import EvaluationMask, evaluation_mask
from asmil.evaluation.localization.points import CONVERSIONS, points_from_tiles
from asmil.evaluation.localization.scaling import THRESHOLDS, cohort_limits, scale_scores
from asmil.evaluation.localization.tile_maps import (
    all_tumor_tiles_positive,
    dice,
    highest_specificity,
    regions_found,
    specificity,
    tile_mask,
    tile_overlap,
    without_last_tiles,
)
from asmil.evaluation.localization.tile_ranking import RankedTiles, Ranking, TileRanking, rank_tiles

__all__ = [
    "CONVERSIONS",
    "FP_TARGETS",
    "PRESETS",
    "THRESHOLDS",
    "EvaluationMask",
    "Froc",
    "FrocOptions",
    "FrocSlide",
    "RankedTiles",
    "Ranking",
    "SlideHits",
    "TileRanking",
    "all_tumor_tiles_positive",
    "cohort_limits",
    "dice",
    "evaluation_mask",
    "froc",
    "froc_of_hits",
    "froc_options",
    "highest_specificity",
    "judge_detections",
    "points_from_tiles",
    "rank_tiles",
    "regions_found",
    "resampled_froc",
    "scale_scores",
    "specificity",
    "tile_mask",
    "tile_overlap",
    "without_last_tiles",
]
