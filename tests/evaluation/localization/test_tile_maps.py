"""Masks of tiles, overlap shares, Dice, specificity and missed regions, by hand and by slices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asmil.errors import AsmilError
from asmil.evaluation.localization import (
    all_tumor_tiles_positive,
    dice,
    highest_specificity,
    regions_found,
    specificity,
    tile_mask,
    tile_overlap,
    without_last_tiles,
)

corners = hnp.arrays(np.int64, st.tuples(st.integers(0, 8), st.just(2)), elements=st.integers(-100, 900))


@given(corners, hnp.arrays(bool, (20, 25)), st.sampled_from([(256, 32), (128, 32), (100, 32), (75, 12.5)]))
@settings(max_examples=60)
def test_tiles_cover_their_rows_and_columns(coords, truth, sizes) -> None:
    side, downsample = sizes
    mask, shares = np.zeros((20, 25), dtype=bool), []
    for x, y in coords.tolist():
        rows = slice(max(int(y // downsample), 0), max(int((y + side) // downsample), 0))
        columns = slice(max(int(x // downsample), 0), max(int((x + side) // downsample), 0))
        mask[rows, columns] = True
        covered = truth[rows, columns]
        shares.append(covered.mean() if covered.size else 0.0)
    found = tile_mask(coords, np.ones(len(coords), dtype=bool), side, (20, 25), downsample)
    np.testing.assert_array_equal(found, mask)
    np.testing.assert_allclose(tile_overlap(truth, coords, side, downsample), shares)


def test_only_positive_tiles_are_drawn() -> None:
    mask = tile_mask([[0, 0], [64, 32]], [False, True], 64, (4, 5))
    assert np.argwhere(mask).tolist() == [[1, 2], [1, 3], [2, 2], [2, 3]]


def test_tiles_smaller_than_a_mask_pixel_are_refused() -> None:
    with pytest.raises(AsmilError, match="smaller downsample"):
        tile_overlap(np.ones((3, 3), dtype=bool), [[0, 0]], 16, 32)


def test_dice_of_empty_masks() -> None:
    full, empty = np.ones((2, 2), dtype=bool), np.zeros((2, 2), dtype=bool)
    assert dice(empty, empty) == 1.0
    assert dice(full, empty) == dice(empty, full) == 0.0
    assert dice(full, full) == 1.0
    assert dice([1, 1, 0, 0], [0, 1, 1, 1]) == pytest.approx(2 / 5)
    with pytest.raises(AsmilError, match="shape"):
        dice(full, empty[:1])


def test_specificity_and_its_ceiling_under_min_max() -> None:
    scores = [0.0, 0.2, 0.5, 1.0]
    assert specificity(scores) == 0.5
    assert specificity(scores, threshold_is_positive=False) == 0.75
    assert specificity(scores, threshold=0.1) == 0.25
    assert np.isnan(specificity([]))
    assert highest_specificity(4) == 0.75


def test_regions_touching_at_a_corner_are_one() -> None:
    truth = np.zeros((6, 6), dtype=bool)
    truth[0, 0] = truth[1, 1] = truth[4, 4] = truth[0, 5] = True
    predicted = np.zeros_like(truth)
    predicted[1, 1] = predicted[0, 5] = True
    assert regions_found(truth, predicted).tolist() == [True, True, False]
    assert regions_found(np.zeros_like(truth), predicted).tolist() == []


def test_the_strict_reading_wants_every_tile_with_tumor() -> None:
    assert all_tumor_tiles_positive([0.0, 0.1, 1.0], [False, True, True])
    assert not all_tumor_tiles_positive([0.0, 0.1, 1.0], [True, False, True])


def test_ms_clam_empties_the_last_tile_of_rows_and_columns() -> None:
    cleared = without_last_tiles(np.ones((5, 6), dtype=bool), 64)
    assert cleared[:3, :4].all()
    assert cleared.sum() == 12
    assert not without_last_tiles(np.ones((2, 2), dtype=bool), 256).any()


@pytest.mark.parametrize(
    ("function", "arguments", "told"),
    [
        (tile_mask, ([[0, 0]], [True, False], 256, (5, 5)), "1 tiles and 2 values"),
        (tile_mask, ([[0, np.nan]], [True], 256, (5, 5)), "coords: .* 0, 1 "),
        (tile_mask, ([[0, 0]], [True], 256, (5, 5), 0), "downsample"),
        (tile_overlap, (np.ones((9, 9, 3)), [[0, 0]], 256), "tumor mask"),
        (tile_overlap, (np.ones((9, 9)), [[0, 0, 0]], 256), "rows of .x, y."),
        (regions_found, (np.ones((3, 3)), np.ones((4, 3))), "shape"),
        (regions_found, ([1, 0], [1, 0]), "tumor mask"),
        (dice, ([np.nan, 1], [0, 1]), "predicted: .* 0 "),
        (dice, ([[1, 0], [1]], [0, 1]), "predicted: "),
        (specificity, ([0.1, np.nan],), "scores: .* 1 "),
    ],
)
def test_mistakes_are_told(function, arguments, told) -> None:
    with pytest.raises(AsmilError, match=told):
        function(*arguments)


def test_masks_can_be_lists_or_images() -> None:
    assert regions_found([[1, 0], [0, 1]], [[1, 0], [0, 0]]).tolist() == [True]
    assert dice(np.array([0, 255], dtype=np.uint8), [0, 1]) == 1
    assert tile_overlap([[1, 0]], [[0, 0]], 64).tolist() == [0.5]
