"""AUC and AP of tiles against scikit-learn, of one slide, of all, and of resamples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from asmil.errors import AsmilError
from asmil.evaluation.localization import RankedTiles, rank_tiles

tiles = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=12)


def split(slides):
    return [[tumor for tumor, _ in slide] for slide in slides], [[score / 5 for _, score in slide] for slide in slides]


@given(st.lists(tiles, min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=4, max_size=4))
@settings(max_examples=100)
def test_resamples_of_slides_as_scikit_learn_has_them(slides, counts) -> None:
    tumor, scores = split(slides)
    found = RankedTiles(tumor, scores).measure(counts[: len(slides)])
    weights = np.concatenate([np.full(len(slide), count) for slide, count in zip(slides, counts, strict=False)])
    truth, score = np.concatenate(tumor)[weights > 0], np.concatenate(scores)[weights > 0]
    weights = weights[weights > 0]
    if truth.any():
        assert found.ap == pytest.approx(average_precision_score(truth, score, sample_weight=weights))
    else:
        assert np.isnan(found.ap)
    if truth.any() and not truth.all():
        assert found.auc == pytest.approx(roc_auc_score(truth, score, sample_weight=weights))
    else:
        assert np.isnan(found.auc)


def test_pooled_and_per_slide_differ_where_slides_have_other_scales() -> None:
    tumor = [[True, False], [False, True, False], [False, False]]
    scores = [[0.9, 0.8], [0.1, 0.2, 0.1], [0.5, 0.6]]
    found = rank_tiles(tumor, scores)
    assert [slide.auc for slide in found.per_slide[:2]] == [1.0, 1.0]
    assert np.isnan(found.per_slide[2].auc)
    assert (found.mean.auc, found.mean.ap) == (1.0, 1.0)
    assert found.pooled.auc == pytest.approx((5 + 2) / 10)
    assert found.tumor_share == pytest.approx(2 / 7)


def test_no_slides_have_no_ranking() -> None:
    found = rank_tiles([], [])
    assert np.isnan([found.pooled.auc, found.pooled.ap, found.mean.auc, found.tumor_share]).all()


def test_mistakes_are_told() -> None:
    with pytest.raises(AsmilError, match="per tile"):
        RankedTiles([[True]], [[0.1, 0.2]])
    with pytest.raises(AsmilError, match="1 of 2 tile scores"):
        RankedTiles([[True, False]], [[0.1, np.nan]])
