import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.errors import AsmilError
from asmil.slides.image import Resolution
from asmil.slides.polygon_grid import PointGrid, locate_points
from asmil.slides.settings import TilingConfig, TissueConfig
from asmil.slides.tiling import grid_tiles, keep_tiles, place_tiles, tile_side_level0, tissue_share
from asmil.slides.tissue.regions import Region, Tissue
from level_slide import LevelSlide

EACH = settings(deadline=None, max_examples=60)


def answers_of_opencv(polygon, grid, half=1):
    """`cv2.pointPolygonTest` point by point; with half 2, polygon and grid are in half pixels."""
    contour = (polygon // half).astype(np.int32)
    found = np.empty((grid.columns, grid.rows))
    for i in range(grid.columns):
        for j in range(grid.rows):
            point = ((grid.x0 + i * grid.step_x) / half, (grid.y0 + j * grid.step_y) / half)
            found[i, j] = cv2.pointPolygonTest(contour, point, False)
    return found


def assert_same(polygon, grid, half=1):
    located, official = locate_points(polygon, grid), answers_of_opencv(polygon, grid, half)
    np.testing.assert_array_equal(located.inside, official > 0)
    np.testing.assert_array_equal(located.boundary, official == 0)


@st.composite
def polygons(draw):
    """Outlines and holes of a random mask, stretched to level 0 as CLAM does, or mere random points."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        return random.integers(-6, 7, size=(draw(st.integers(1, 9)), 2)).astype(np.int32)
    mask = (random.random((14, 14)) < draw(st.floats(0.3, 0.9))).astype(np.uint8)
    mask[draw(st.integers(2, 12)), :] = 1
    contours, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    contour = contours[draw(st.integers(0, len(contours) - 1))].reshape(-1, 2)
    return (contour * draw(st.sampled_from([1.0, 2.0, 2.0004, 4.0, 16.087]))).astype(np.int32)


@EACH
@given(polygons(), st.integers(1, 5), st.integers(1, 5), st.integers(-4, 4), st.integers(-4, 4))
def test_points_lie_where_opencv_says(polygon, step_x, step_y, x, y):
    corner = polygon.min(axis=0)
    spread = np.ptp(polygon, axis=0)
    columns, rows = min(spread[0] // step_x + 4, 40), min(spread[1] // step_y + 4, 40)
    assert_same(polygon, PointGrid(int(corner[0]) + x, int(corner[1]) + y, step_x, step_y, int(columns), int(rows)))


@EACH
@given(polygons(), st.integers(1, 7), st.integers(-5, 5))
def test_half_pixels_lie_where_opencv_says(polygon, step, shift):
    doubled = 2 * polygon.astype(np.int64)
    x, y = doubled.min(axis=0) + shift
    assert_same(doubled, PointGrid(int(x), int(y), step, step, 20, 20), half=2)


def test_a_line_of_long_slanted_edges_far_out():
    polygon = np.array([[0, 0], [199_999, 70_001], [150_000, 190_000], [3, 99_999]], dtype=np.int32)
    assert_same(polygon, PointGrid(0, 0, 5_003, 4_999, 41, 39))


@pytest.mark.parametrize(("columns", "rows"), [(0, 3), (3, 0), (0, 0)])
def test_a_grid_without_points(columns, rows):
    located = locate_points(np.array([[0, 0], [4, 0], [4, 4]]), PointGrid(0, 0, 1, 1, columns, rows))
    assert located.inside.shape == located.boundary.shape == (columns, rows)


def share_pixel_by_pixel(mask, downsample, x, y, side):
    """Paint the mask at level 0 (whole downsamples only) and count."""
    painted = np.kron(mask, np.ones((downsample[1], downsample[0])))
    padded = np.pad(painted, ((0, side), (0, side)))
    return np.array([[padded[top : top + side, left : left + side].mean() for top in y] for left in x])


@EACH
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 5), st.integers(1, 30))
def test_the_share_of_tissue_is_that_of_the_painted_mask(seed, across, down, side):
    mask = np.random.default_rng(seed).random((9, 7)) < 0.5
    x, y = np.arange(0, 7 * across, 3), np.arange(0, 9 * down, 2)
    found = tissue_share(mask, (float(across), float(down)), x, y, side)
    np.testing.assert_allclose(found, share_pixel_by_pixel(mask, (across, down), x, y, side), atol=1e-12)


def test_fractional_downsamples_share_a_mask_pixel():
    mask = np.array([[True, False]])
    found = tissue_share(mask, (2.5, 4.0), np.array([0, 1, 2]), np.array([0]), 2)
    np.testing.assert_allclose(found[:, 0], [1.0, 0.75, 0.25])


def test_one_grid_from_the_corner_column_by_column():
    mask = np.zeros((10, 10), dtype=bool)
    mask[0:5, 0:5] = True
    tiles = grid_tiles(mask, (10.0, 10.0), (100, 100), side=20, step=20, min_tissue=0.5)
    assert tiles.dtype == np.int64
    assert tiles.tolist() == [[0, 0], [0, 20], [0, 40], [20, 0], [20, 20], [20, 40], [40, 0], [40, 20]]


@pytest.mark.parametrize(("min_tissue", "count"), [(0.0, 9), (0.25, 9), (0.26, 8), (0.5, 8), (0.51, 4), (1.0, 4)])
def test_the_smallest_share_is_kept_and_none_never_is(min_tissue, count):
    mask = np.zeros((10, 10), dtype=bool)
    mask[0:5, 0:5] = True
    assert len(grid_tiles(mask, (10.0, 10.0), (100, 100), 20, 20, min_tissue)) == count


@pytest.mark.parametrize(
    ("width", "columns"), [(100, [0, 40, 80]), (110, [0, 40, 80]), (101, [0, 40, 80]), (99, [0, 40]), (3, [0])]
)
def test_a_tile_sticks_out_only_if_its_center_does_not(width, columns):
    tiles = grid_tiles(np.ones((4, 4), dtype=bool), (width / 4, 10.0), (width, 40), 40, 40, 0.0)
    expected = [x for x in columns if x + 20 < width or x == 0]
    assert sorted(set(tiles[:, 0].tolist())) == expected
    assert set(tiles[:, 1].tolist()) == {0}


def test_tiles_of_a_large_slide_are_placed_all_at_once():
    mask = np.ones((3125, 4000), dtype=bool)
    tiles = grid_tiles(mask, (32.0, 32.0), (128_000, 100_000), 256, 256, 0.25)
    assert len(tiles) == 500 * 391


@pytest.mark.parametrize("method", ["auto", "none"])
def test_place_tiles_takes_the_side_overlap_and_share_from_the_settings(method):
    image = LevelSlide(np.full((64, 96, 3), 255, dtype=np.uint8))
    mask = np.zeros((8, 12), dtype=bool)
    mask[:, :4] = True
    tissue = Tissue((), mask, (8.0, 8.0), 0.0)
    config = TissueConfig(method=method)
    tiles = place_tiles(image, tissue, config, TilingConfig(min_tissue=0.6), 32)
    assert tiles.tolist() == [[0, 0], [0, 32]]
    overlapping = place_tiles(image, tissue, config, TilingConfig(min_tissue=0.5, overlap=0.5), 32)
    assert overlapping[:, 0].tolist() == [0] * 3 + [16] * 3
    assert overlapping[:3, 1].tolist() == [0, 16, 32]


def test_place_tiles_in_clams_way_starts_at_each_outline():
    image = LevelSlide(np.full((100, 100, 3), 255, dtype=np.uint8))
    square = np.array([[13, 7], [13, 66], [72, 66], [72, 7]], dtype=np.int32)
    tissue = Tissue((Region(square), Region(square + 30)), np.ones((1, 1), dtype=bool), (100.0, 100.0), 8.0)
    config = TissueConfig(method="clam", clam={"padding": False})
    tiles = place_tiles(image, tissue, config, TilingConfig(), 30)
    # as in CLAM, a tile of two outlines is there twice
    assert tiles.tolist() == [[13, 7], [13, 37], [43, 7], [43, 37], [43, 37], [43, 67]]


@pytest.mark.parametrize(("mpp", "side"), [(0.5, 256), (0.25, 512), (0.2425, 528), (0.499, 257), (0.52, 246)])
def test_the_side_at_level_0(mpp, side):
    assert tile_side_level0(TilingConfig(), Resolution(mpp, mpp, "given"), "slide a") == side


def test_a_slide_coarser_than_its_tiles_is_refused_unless_allowed():
    coarse = Resolution(0.99, 1.01, "openslide")
    with pytest.raises(AsmilError, match=r"slide a: .*1 um/px.*tiling.tile_um=256.*enlarge=true"):
        tile_side_level0(TilingConfig(), coarse, "slide a")
    assert tile_side_level0(TilingConfig(enlarge=True), coarse, "slide a") == 128
    assert tile_side_level0(TilingConfig(tile_um=256), coarse, "slide a") == 256


def test_white_and_black_tiles_go_only_when_asked():
    tiles = np.stack([np.full((8, 8, 3), value, dtype=np.uint8) for value in (255, 0, 49, 51, 128)])
    tiles[4, :, :, 1] = 20
    tiles[4, :, :, 2] = 10
    assert keep_tiles(tiles, None, None).all()
    assert keep_tiles(tiles, 5, None).tolist() == [False, False, False, False, True]
    assert keep_tiles(tiles, None, 50).tolist() == [True, False, False, True, True]
    assert keep_tiles(tiles, None, 51).tolist() == [True, False, False, True, True]
    assert keep_tiles(tiles, 5, 140).tolist() == [False] * 5
    assert keep_tiles(tiles[:0], 5, 50).shape == (0,)


@EACH
@given(st.integers(0, 2**32))
def test_the_filters_are_means_over_a_tile(seed):
    random = np.random.default_rng(seed)
    tiles = random.integers(0, 256, (3, 6, 5, 3), dtype=np.uint8) // random.integers(1, 6, (3, 1, 1, 3), dtype=np.uint8)
    saturations = [cv2.cvtColor(tile, cv2.COLOR_RGB2HSV)[..., 1].mean() for tile in tiles]
    assert keep_tiles(tiles, saturations[0], None).tolist() == [s >= saturations[0] for s in saturations]
    black = float(tiles[1].mean(axis=(0, 1)).max())
    dark = [bool((tile.mean(axis=(0, 1)) < black).all()) for tile in tiles]
    assert keep_tiles(tiles, None, black).tolist() == [not one for one in dark]
