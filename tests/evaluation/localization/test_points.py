"""Tile maps made points: the slow form of suppression, groups of tiles, grids of any origin."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asmil.errors import AsmilError
from asmil.evaluation.localization import points_from_tiles

maps = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 8).map(lambda s: s / 8)
)


def plain_suppression(scores_xy, radius, stop):
    """Again and again the largest cell of the whole map."""
    left, points = scores_xy.copy(), []
    while left.max() > stop:
        x, y = np.unravel_index(left.argmax(), left.shape)
        points.append((left[x, y], (x + 0.5) * 256, (y + 0.5) * 256))
        left[max(x - radius, 0) : x + radius, max(y - radius, 0) : y + radius] = 0
    return np.array(points).reshape(-1, 3)


def tiles_of(scores_xy, side=256):
    return np.indices(scores_xy.shape).reshape(2, -1).T * side, scores_xy.ravel()


@given(maps, st.integers(1, 4), st.sampled_from([0.0, 0.3, 0.5]), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_suppression_in_any_order_of_tiles_and_from_any_origin(scores_xy, radius, stop, random) -> None:
    coords, scores = tiles_of(scores_xy)
    order = list(range(len(scores)))
    random.shuffle(order)
    expected = plain_suppression(scores_xy, radius, stop)
    found = points_from_tiles(coords[order] + (1000, 77), scores[order], 256, "nms", stop, radius)
    np.testing.assert_array_equal(found - [0, 1000, 77], expected)


def test_tiles_are_points_at_their_centers_from_the_threshold_on() -> None:
    found = points_from_tiles([[0, 0], [100, 50], [7, 9]], [0.5, 0.4, 0.9], 10, "tiles")
    assert found.tolist() == [[0.5, 5, 5], [0.9, 12, 14]]


def test_a_score_of_zero_is_never_a_point() -> None:
    for conversion in ("tiles", "components", "nms"):
        assert points_from_tiles([[0, 0]], [0.0], 10, conversion, threshold=0.0).shape == (0, 3)
        assert points_from_tiles([[0, 0]], [-1.0], 10, conversion, threshold=-2.0).shape == (0, 3)


def test_components_join_tiles_that_touch_at_a_corner() -> None:
    scores_xy = np.zeros((6, 6))
    scores_xy[0, 0], scores_xy[1, 1], scores_xy[5, 5], scores_xy[1, 0] = 0.6, 0.7, 0.9, 0.7
    found = points_from_tiles(*tiles_of(scores_xy), 256, "components")
    assert found.tolist() == [[0.9, 5.5 * 256, 5.5 * 256], [0.7, 1.5 * 256, 0.5 * 256]]


def test_tiles_between_the_places_of_the_grid_go_to_the_nearest() -> None:
    # contours with grids of their own, off by a third of a tile: columns 0, 1 and 5
    coords, scores = [[0, 0], [340, 0], [1200, 85]], [0.6, 0.8, 0.7]
    assert points_from_tiles(coords, scores, 256, "components")[:, 0].tolist() == [0.8, 0.7]
    assert points_from_tiles(coords, scores, 256, "nms", radius=1)[:, 0].tolist() == [0.8, 0.7]
    assert points_from_tiles(coords, scores, 256, "nms", radius=6)[:, 0].tolist() == [0.8]


def test_overlapping_tiles_have_a_grid_of_their_step() -> None:
    coords = [[0, 0], [128, 0], [256, 0], [512, 0]]
    scores = [0.9, 0.8, 0.7, 0.6]
    of_side = points_from_tiles(coords, scores, 256, "nms", radius=2)
    of_step = points_from_tiles(coords, scores, 256, "nms", radius=2, step_px_level0=128)
    assert of_side[:, 0].tolist() == [0.9, 0.6]
    assert of_step[:, :2].tolist() == [[0.9, 128], [0.7, 384], [0.6, 640]]


def test_200_000_tiles_take_little_memory() -> None:
    random = np.random.default_rng(0)
    place = random.permutation(700 * 700)[:200_000]
    coords, scores = np.stack([place % 700, place // 700], axis=1) * 256, random.random(200_000)
    tracemalloc.start()
    points = points_from_tiles(coords, scores, 256, "nms", threshold=0.1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6, "distances of all pairs have 320 GB"
    assert (np.diff(points[:, 0]) <= 0).all()


def test_no_tiles_make_no_points() -> None:
    assert points_from_tiles(np.zeros((0, 2)), [], 256).shape == (0, 3)
    assert points_from_tiles([[0, 0]], [0.5], 256, "nms", threshold=0.5).shape == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([[0, 0]], [0.5, 0.6], 256), "1 tiles and 2 scores"),
        (([[0, 0]], [np.nan], 256), "scores: .* 0 "),
        (([0, 1, 2, 3], [0.5, 0.6], 256), "rows of .x, y."),
        (([[0, 1, 2]], [0.5], 256), "rows of .x, y."),
        (([[0, np.nan]], [0.5], 256), "coords: .* 0, 1 "),
        (([[0, 0]], ["high"], 256), "scores: "),
        (([[0, 0]], [0.5], 0), "above 0 px"),
        (([[0, 0]], [0.5], 256, "nmss"), "'nms'"),
        (([[0, 0]], [0.5], 256, "nms", 0.5, 0), "at least 1 tile"),
    ],
)
def test_mistakes_are_told(arguments, told) -> None:
    with pytest.raises(AsmilError, match=told):
        points_from_tiles(*arguments)
