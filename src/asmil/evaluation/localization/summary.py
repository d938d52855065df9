"""The measures of all slides as numbers with intervals by patient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asmil.evaluation.bootstrap import Interval, draw_patients, number_patients, percentile_interval
from asmil.evaluation.localization.froc_curve import Froc, FrocOptions, froc_of_hits, resampled_froc
from asmil.evaluation.localization.measures import NAN, SlideMeasures
from asmil.evaluation.localization.pooled_tiles import resampled_ranking
from asmil.evaluation.localization.scaling import Scaling
from asmil.evaluation.localization.tile_ranking import RankedTiles
from asmil.reporting import Estimate
from asmil.tasks.checked_arrays import Floats

TITLES = {
    "froc": "FROC",
    "dice": "Dice",
    "specificity": "specificity",
    "no_miss_regions": "no missed region",
    "no_miss_tiles": "no missed tile",
    "region_recall": "region recall",
    "pooled_auc": "tile AUC, pooled",
    "pooled_ap": "tile AP, pooled",
    "tile_auc": "tile AUC",
    "tile_ap": "tile AP",
}
MEANINGS = {
    "froc": "mean share of lesions found at 1/4 to 8 false positives a slide",
    "dice": "mean over tumor slides",
    "specificity": "share of tiles below the cut, mean over normal slides",
    "no_miss_regions": "share of tumor slides where a positive tile touches every region",
    "no_miss_tiles": "share of tumor slides where every tile with tumor is positive",
    "region_recall": "regions touched by a positive tile, of all regions",
    "pooled_auc": "tiles of all slides together",
    "pooled_ap": "tiles of all slides together",
    "tile_auc": "mean over slides with tumor; the same under every scaling",
    "tile_ap": "mean over slides with tumor; the same under every scaling",
}
SCALED_METRICS = (
    *("froc", "dice", "specificity", "no_miss_regions", "no_miss_tiles", "region_recall", "pooled_auc", "pooled_ap"),
)
UNSCALED_METRICS = ("tile_auc", "tile_ap")
"""The same under every scaling that keeps the order of a slide's tiles."""


@dataclass(frozen=True)
class ScalingSummary:
    """All measures under one scaling, and the FROC behind the first of them."""

    numbers: dict[str, Estimate]
    froc: Froc


@dataclass(frozen=True)
class Summary:
    """All measures of a run; counts are those of the slides that were judged."""

    scaled: dict[Scaling, ScalingSummary]
    unscaled: dict[str, Estimate]
    best_specificity: float
    n_tumor: int
    n_normal: int
    n_patients: int
    n_tumor_patients: int
    n_normal_patients: int
    resamples: int


def summarize(slides: Sequence[SlideMeasures], options: FrocOptions, resamples: int, seed: int) -> Summary:
    """Means over slides, region recall and FROC over all of them, with intervals by drawing patients.

    The same draws serve every measure. Dice, recall and the rates without a miss are of tumor slides, specificity of
    normal ones; the AUC and AP of tiles are of slides with both kinds of tiles, the pooled ones of all tiles together.
    """
    patients = number_patients([one.map.slide.patient for one in slides])
    drawn = draw_patients(int(patients.max()) + 1, resamples, seed)[:, patients].astype(np.float64)
    counts = np.vstack([np.ones(len(slides)), drawn])
    scalings = list(slides[0].scaled)
    return Summary(
        scaled={scaling: _summarize_scaling(slides, scaling, options, counts) for scaling in scalings},
        unscaled={
            "tile_auc": _mean([one.tile_auc for one in slides], counts),
            "tile_ap": _mean([one.tile_ap for one in slides], counts),
        },
        best_specificity=_mean([one.best_specificity for one in slides], counts[:1]).value,
        n_tumor=sum(not one.is_normal for one in slides),
        n_normal=sum(one.is_normal for one in slides),
        n_patients=len(set(patients.tolist())),
        n_tumor_patients=_count_patients(slides, is_normal=False),
        n_normal_patients=_count_patients(slides, is_normal=True),
        resamples=resamples,
    )


def _count_patients(slides: Sequence[SlideMeasures], is_normal: bool) -> int:
    return len({one.map.slide.patient for one in slides if one.is_normal == is_normal})


def _summarize_scaling(
    slides: Sequence[SlideMeasures], scaling: Scaling, options: FrocOptions, counts: Floats
) -> ScalingSummary:
    scaled = [one.scaled[scaling] for one in slides]
    hits = [one.hits for one in scaled]
    tumor, scores = [one.tumor for one in slides], [one.scores for one in scaled]
    pooled = RankedTiles(tumor, scores).measure(counts[0])
    aucs, precisions = resampled_ranking(tumor, scores, counts[1:])
    froc = froc_of_hits(hits, options)
    numbers = {
        "froc": _number(np.r_[froc.score, resampled_froc(hits, options, counts[1:])], len(slides)),
        "dice": _mean([one.dice for one in scaled], counts),
        "specificity": _mean([one.specificity for one in scaled], counts),
        "no_miss_regions": _mean([one.without_missed_region for one in scaled], counts),
        "no_miss_tiles": _mean([one.without_missed_tile for one in scaled], counts),
        "region_recall": _ratio([one.regions_found for one in scaled], [one.n_regions for one in slides], counts),
        "pooled_auc": _number(np.r_[pooled.auc, aucs], len(slides)),
        "pooled_ap": _number(np.r_[pooled.ap, precisions], len(slides)),
    }
    return ScalingSummary(numbers, froc)


def _mean(values: Sequence[float], counts: Floats) -> Estimate:
    """The mean of the values that are defined."""
    return _ratio(values, [float(not np.isnan(value)) for value in values], counts)


def _ratio(parts: Sequence[float], wholes: Sequence[float], counts: Floats) -> Estimate:
    """The sum of the parts over the sum of the wholes, of the slides whose part is defined."""
    part, whole = np.array(parts, dtype=np.float64), np.array(wholes, dtype=np.float64)
    defined = ~np.isnan(part)
    above, below = counts[:, defined] @ part[defined], counts[:, defined] @ whole[defined]
    return _number(np.where(below > 0, above / np.where(below > 0, below, 1.0), NAN), int(defined.sum()))


def _number(samples: Floats, n_slides: int) -> Estimate:
    """The first sample is of the slides as they are, the others are of resamples."""
    value = float(samples[0])
    return Estimate(value, Interval(NAN, NAN) if np.isnan(value) else percentile_interval(samples[1:]), n=n_slides)
