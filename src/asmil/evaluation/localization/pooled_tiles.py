"""AUC and AP of the tiles of all slides together, for thousands of resamples of slides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from asmil.tasks.checked_arrays import Floats

Booleans = npt.NDArray[np.bool_]
MOST_SCORES = 4096
"""More distinct scores than these are gathered into as many bins of equal size, whose tiles count as ties."""
ROWS_AT_ONCE = 256


def resampled_ranking(tumor: Sequence[Booleans], scores: Sequence[Floats], counts: Floats) -> tuple[Floats, Floats]:
    """R areas under the ROC curve and R average precisions of R x S counts: how often each slide is in a resample.

    tumor, scores: one array of N_s values a slide. The numbers are those of `RankedTiles`, to about 1 / MOST_SCORES
    where there are more distinct scores; nan where a resample has no tumor tile, the AUC also where it has no other.
    """
    place = _places(np.concatenate(scores))
    n_places = int(place.max()) + 1
    slide = np.repeat(np.arange(len(scores)), [len(part) for part in scores])
    is_tumor = np.concatenate(tumor)
    cell = slide * n_places + (n_places - 1 - place)
    size = len(scores) * n_places
    true = np.bincount(cell[is_tumor], minlength=size).reshape(len(scores), n_places).astype(np.float64)
    false = np.bincount(cell[~is_tumor], minlength=size).reshape(len(scores), n_places).astype(np.float64)
    parts = [
        _rank(counts[first : first + ROWS_AT_ONCE] @ true, counts[first : first + ROWS_AT_ONCE] @ false)
        for first in range(0, len(counts), ROWS_AT_ONCE)
    ]
    return np.concatenate([auc for auc, _ in parts]), np.concatenate([ap for _, ap in parts])


def _places(scores: Floats) -> npt.NDArray[np.intp]:
    """The place of every score among the distinct ones, or its bin where they are too many."""
    distinct, place = np.unique(scores, return_inverse=True)
    if len(distinct) <= MOST_SCORES:
        return np.asarray(place)
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, MOST_SCORES + 1)[1:-1]))
    return np.asarray(np.searchsorted(edges, scores, side="right"))


def _rank(true: Floats, false: Floats) -> tuple[Floats, Floats]:
    """Of R x B weights of tumor and other tiles, the highest scores first."""
    true_so_far, false_so_far = true.cumsum(axis=1), false.cumsum(axis=1)
    all_true, all_false = true_so_far[:, -1], false_so_far[:, -1]
    precision = true_so_far / np.maximum(true_so_far + false_so_far, 1.0)
    below = all_false[:, None] - false_so_far + false / 2
    ap, wins, pairs = (true * precision).sum(axis=1), (true * below).sum(axis=1), all_true * all_false
    nan = np.full(len(true), np.nan)
    return np.divide(wins, pairs, out=nan.copy(), where=pairs > 0), np.divide(ap, all_true, out=nan, where=all_true > 0)
