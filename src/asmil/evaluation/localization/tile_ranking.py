"""How well scores rank tiles, without a threshold: AUC and average precision (AP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.reporting.estimate import mean_defined
from asmil.tables.arrays import Booleans, Floats
from asmil.tasks.checked_arrays import floats_of
from asmil.tasks.weighted import binary_auc, binary_average_precision

MOST_SCORES = 4096
"""If there are more distinct scores, they are grouped into this many bins of equal size, whose tiles count as ties."""
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Ranking:
    """AUC and AP: nan without tumor tiles; AUC also without other tiles."""

    auc: float
    ap: float


@dataclass(frozen=True)
class TileRanking:
    """AUC and AP of all tiles pooled, of every slide, and their means over slides in which they are defined."""

    pooled: Ranking
    mean: Ranking
    per_slide: list[Ranking]
    tumor_share: float


class RankedTiles:
    """The tiles of many slides, with their pooled AUC and AP under any resample of slides."""

    def __init__(self, tumor: Sequence[npt.ArrayLike], scores: Sequence[npt.ArrayLike]) -> None:
        truths = [np.asarray(part, dtype=bool).reshape(-1) for part in tumor]
        values = [floats_of("scores", part).reshape(-1) for part in scores]
        if [len(part) for part in truths] != [len(part) for part in values]:
            raise AsmilError("every slide needs one score and one truth per tile")
        joined = np.concatenate([np.zeros(0), *values])
        if np.isnan(joined).any():
            raise AsmilError(f"{int(np.isnan(joined).sum())} of {len(joined)} tile scores are not numbers")
        self._scores, self._tumor = joined, np.concatenate([np.zeros(0, dtype=bool), *truths])
        self._slide = np.repeat(np.arange(len(values)), [len(part) for part in values])

    def measure(self, counts: npt.ArrayLike) -> Ranking:
        """AUC and AP if slide s is drawn counts[s] times.

        AUC: the probability that a tumor tile has a higher score than another tile; ties count half.
        AP: the mean precision at the tumor tiles, the sum over thresholds of (increase in recall) x precision.
        """
        if not len(self._scores):
            return Ranking(float("nan"), float("nan"))
        weights = np.asarray(counts, dtype=np.float64)[None, self._slide]
        auc, ap = (rank(self._tumor, self._scores, weights) for rank in (binary_auc, binary_average_precision))
        return Ranking(float(auc[0]), float(ap[0]))


def rank_tiles(tumor: Sequence[npt.ArrayLike], scores: Sequence[npt.ArrayLike]) -> TileRanking:
    """AUC and AP of the tiles of S slides; `tumor` and `scores` contain one array of N_s values per slide.

    The pooled values need scores that are comparable between slides; the values of single slides are the same under
    every scaling that keeps the order of the tiles.
    """
    pooled = RankedTiles(tumor, scores).measure(np.ones(len(scores)))
    ones = np.ones(1)
    per_slide = [RankedTiles([truth], [values]).measure(ones) for truth, values in zip(tumor, scores, strict=True)]
    mean = Ranking(*(mean_defined(getattr(ranking, name) for ranking in per_slide) for name in ("auc", "ap")))
    truth = np.concatenate([np.zeros(0), *(np.asarray(part, dtype=np.float64).reshape(-1) for part in tumor)])
    return TileRanking(pooled, mean, per_slide, float(truth.mean()) if truth.size else float("nan"))


def resampled_ranking(tumor: Sequence[Booleans], scores: Sequence[Floats], counts: Floats) -> tuple[Floats, Floats]:
    """R AUCs and R average precisions under R resamples; counts: R x S, how often each slide is drawn.

    tumor, scores: one array of N_s values per slide. The values agree with `RankedTiles`, to about 1 / MOST_SCORES if
    there are more distinct scores; nan for resamples without tumor tiles, for the AUC also without other tiles.
    """
    score_index = _score_indices(np.concatenate(scores))
    n_scores = int(score_index.max()) + 1
    slide = np.repeat(np.arange(len(scores)), [len(part) for part in scores])
    is_tumor = np.concatenate(tumor)
    cell = slide * n_scores + (n_scores - 1 - score_index)
    size = len(scores) * n_scores
    true = np.bincount(cell[is_tumor], minlength=size).reshape(len(scores), n_scores).astype(np.float64)
    false = np.bincount(cell[~is_tumor], minlength=size).reshape(len(scores), n_scores).astype(np.float64)
    parts = [
        _rank(counts[first : first + ROWS_AT_ONCE] @ true, counts[first : first + ROWS_AT_ONCE] @ false)
        for first in range(0, len(counts), ROWS_AT_ONCE)
    ]
    return np.concatenate([auc for auc, _ in parts]), np.concatenate([ap for _, ap in parts])


def _score_indices(scores: Floats) -> npt.NDArray[np.intp]:
    """The index of every score among the distinct scores, or its bin if there are too many."""
    distinct, index = np.unique(scores, return_inverse=True)
    if len(distinct) <= MOST_SCORES:
        return np.asarray(index)
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, MOST_SCORES + 1)[1:-1]))
    return np.asarray(np.searchsorted(edges, scores, side="right"))


def _rank(true: Floats, false: Floats) -> tuple[Floats, Floats]:
    """AUC and AP from the R x B weights of tumor and other tiles, highest scores first."""
    n_scores = true.shape[1]
    is_tumor, score = np.repeat([True, False], n_scores), np.tile(-np.arange(n_scores, dtype=np.float64), 2)
    weights = np.hstack([true, false])
    return binary_auc(is_tumor, score, weights), binary_average_precision(is_tumor, score, weights)
