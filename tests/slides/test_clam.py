import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from asmil.errors import AsmilError
from asmil.slides.clam_grid import clam_coordinates, write_clam_coords
from asmil.slides.settings import ClamConfig
from asmil.slides.tissue import clam
from asmil.slides.tissue.clam import PRESETS, ClamParameters, clam_tissue, resolve_clam, search_level, segment
from asmil.slides.tissue.contours import (
    fill_regions,
    keep_regions,
    polygon_area,
    tissue_areas,
    to_level0,
    trace_regions,
)
from level_slide import LevelSlide, pink_on_white
from plain_clam import CHECKS, plain_contours, plain_coordinates

EACH = settings(deadline=None, max_examples=40)
SMALL = ClamParameters(sthresh=8, mthresh=3, close=4, a_t=0, a_h=0, max_n_holes=8)


def rings():
    """A disk with a hole in which an island lies, and a square below with two small holes."""
    y, x = np.mgrid[:120, :100]
    away = np.hypot(x - 40, y - 40)
    mask = (away < 35) & ~((away > 12) & (away < 24))
    mask[90:115, 50:90] = True
    mask[95:99, 55:59] = False
    mask[100:110, 70:80] = False
    return mask


def random_slide(seed, shape=(60, 80), factor=1):
    random = np.random.default_rng(seed)
    blobs = ndimage.gaussian_filter(random.standard_normal(shape), 3)
    return LevelSlide(pink_on_white(np.kron(blobs > 0.02, np.ones((factor, factor)))))


def test_presets_and_what_a_user_gives_instead():
    assert resolve_clam(ClamConfig()) == PRESETS["default"]
    given_ = resolve_clam(ClamConfig(preset="bwh_biopsy", a_t=0, otsu=True, close=0))
    assert (given_.sthresh, given_.mthresh, given_.close, given_.a_t, given_.otsu) == (15, 11, 0, 0, True)
    assert PRESETS["default"].reference_area((64.0, 64.0)) == 64
    assert PRESETS["default"].reference_area((2.0004502476362, 2.0005608524957936)) == 65502


@pytest.mark.parametrize(("factors", "level"), [((), 0), ((4, 16, 64), 3), ((4, 16, 32), 3), ((4, 80), 1), ((80,), 0)])
def test_the_level_that_is_searched(factors, level):
    assert search_level(LevelSlide(np.zeros((640, 640, 3), dtype=np.uint8), factors)) == level


@EACH
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_closing_ignores_what_is_outside_and_moves_by_even_windows(seed, window):
    blobs = ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal((30, 40)), 1.5) > 0.05
    parameters = ClamParameters(8, 1, window, 0, 0, 8)
    stages = segment(blobs.astype(np.uint8) * 200, parameters)
    np.testing.assert_array_equal(stages.foreground, blobs)
    widened = ndimage.maximum_filter(stages.foreground, window, mode="constant", cval=0)
    np.testing.assert_array_equal(stages.closed, ndimage.minimum_filter(widened, window, mode="constant", cval=1))


def test_an_even_window_moves_a_square_right_and_down():
    seen = np.zeros((20, 20), dtype=np.uint8)
    seen[8:12, 6:10] = 100
    rows, columns = np.nonzero(segment(seen, ClamParameters(8, 1, 4, 0, 0, 8)).closed)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (9, 12, 7, 10)


def test_the_threshold_is_strict_and_otsu_finds_its_own():
    seen = np.full((10, 10), 8, dtype=np.uint8)
    seen[:5] = 9
    assert segment(seen, ClamParameters(8, 1, 0, 0, 0, 8)).foreground.sum() == 50
    seen[:5] = 200
    stages = segment(seen, ClamParameters(250, 1, 0, 0, 0, 8, otsu=True))
    assert stages.threshold == 8
    assert stages.foreground.sum() == 50


def test_an_island_in_a_hole_is_a_region_of_its_own():
    regions = trace_regions(rings().astype(np.uint8))
    assert sorted(len(region.holes) for region in regions) == [0, 1, 2]
    assert np.array_equal(fill_regions(regions[::-1], (120, 100)), fill_regions(regions, (120, 100)))
    mask = fill_regions(regions, (120, 100))
    assert mask[40, 40]
    assert not mask[40, 58]
    # a hole's line runs on the tissue's pixels beside it, which are therefore cut away
    assert (mask <= rings()).all()
    assert trace_regions(np.zeros((4, 4), dtype=np.uint8)) == []


def test_areas_decide_strictly_and_the_largest_holes_stay():
    regions = trace_regions(rings().astype(np.uint8))
    square = next(region for region in regions if len(region.holes) == 2)
    area = tissue_areas([square])[0]
    assert area == 24 * 39 - 5 * 5 - 11 * 11 + 2 * 2  # diagonal corners of the holes' lines
    assert len(keep_regions([square], area, 0, 8)) == 0
    (kept,) = keep_regions([square], area - 0.5, 0, 8)
    assert [polygon_area(hole) for hole in kept.holes] == sorted(map(polygon_area, square.holes), reverse=True)
    largest = polygon_area(kept.holes[0])
    assert len(keep_regions([square], 0, 0, 1)[0].holes) == 1
    assert keep_regions([square], 0, largest, 8)[0].holes == ()
    line = trace_regions(np.eye(9, dtype=np.uint8))
    assert keep_regions(line, -1, 0, 8) == ()


def test_points_are_truncated_on_the_way_to_level_0():
    region = trace_regions(rings().astype(np.uint8))[0]
    scaled = to_level0(region, (2.0004, 1.9999))
    assert scaled.outline.dtype == np.int32
    x, y = region.outline[5]
    assert scaled.outline[5].tolist() == [int(x * 2.0004), int(y * 1.9999)]


@EACH
@given(st.integers(0, 2**32), st.integers(2, 40), st.integers(1, 40), st.sampled_from(sorted(CHECKS)), st.booleans())
def test_tiles_are_those_of_the_plain_form(seed, side, step, check, padding):
    slide = random_slide(seed)
    config = ClamConfig(a_t=0.0002, a_h=0.00005, mthresh=3, max_n_holes=3, contour_check=check, padding=padding)
    tissue = clam_tissue(slide, config)
    plain = plain_contours(slide.levels[0], (1.0, 1.0), 8, 3, 4, 0.0002, 0.00005, 3)
    found = clam_coordinates(tissue, slide.size, (side, side), (step, step), check, padding)
    assert list(map(tuple, found.tolist())) == plain_coordinates(plain, slide.size, side, step, check, padding)


@pytest.mark.parametrize("factors", [(), (3,), (2, 7)])
def test_tissue_of_coarser_levels_is_that_of_the_plain_form(factors):
    slide = random_slide(3, factor=8)
    slide = LevelSlide(slide.levels[0][:477, :631], factors)
    config = ClamConfig(a_t=0.001, a_h=0.0001, mthresh=3)
    tissue = clam_tissue(slide, config)
    level = len(factors)
    plain = plain_contours(slide.levels[level], slide.level_downsamples[level], 8, 3, 4, 0.001, 0.0001)
    assert len(tissue.regions) == len(plain) > 1
    for region, (outline, holes) in zip(tissue.regions, plain, strict=True):
        np.testing.assert_array_equal(region.outline, outline.reshape(-1, 2))
        assert len(region.holes) == len(holes)
    assert tissue.mask.shape == slide.levels[level].shape[:2]
    assert tissue.downsample == slide.level_downsamples[level]
    assert tissue.notes == ()
    found = clam_coordinates(tissue, slide.size, (33, 33), (33, 33))
    assert list(map(tuple, found.tolist())) == plain_coordinates(plain, slide.size, 33, 33)


def test_sides_of_two_axes_may_differ():
    """int(1.9996) is 1, int(2.0004) is 2: CLAM's grid is then not square."""
    tissue = clam_tissue(random_slide(5), ClamConfig(a_t=0.0002, mthresh=3))
    found = clam_coordinates(tissue, (80, 60), (4, 8), (4, 8), "basic", padding=False)
    assert found[:, 1].max() <= 60 - 8
    assert found[:, 0].max() > 80 - 8


def test_a_blank_slide_has_no_tissue_and_says_why():
    slide = LevelSlide(np.full((50, 70, 3), 240, dtype=np.uint8))
    tissue = clam_tissue(slide)
    assert (tissue.regions, tissue.share) == ((), 0.0)
    assert "8 of 255" in tissue.notes[0]
    assert clam_coordinates(tissue, slide.size, (9, 9), (9, 9)).shape == (0, 2)


def test_when_all_is_too_small_the_note_says_what_would_keep_it():
    slide = LevelSlide(pink_on_white(rings()))
    tissue = clam_tissue(slide, ClamConfig(mthresh=3))
    assert tissue.regions == ()
    (note,) = tissue.notes
    assert "exceeds a_t 100" in note
    kept = clam_tissue(slide, ClamConfig(mthresh=3, a_t=float(note.split()[-1])))
    assert len(kept.regions) == 1
    assert kept.notes == ()


def test_lines_have_no_area_that_any_setting_keeps():
    slide = LevelSlide(pink_on_white(np.eye(30)))
    (note,) = clam_tissue(slide, ClamConfig(mthresh=1, close=0, a_t=0)).notes
    assert "which no a_t keeps" in note


def test_a_slide_full_of_tissue_is_doubted():
    slide = LevelSlide(pink_on_white(np.ones((60, 60))))
    assert "fluorescence" in clam_tissue(slide, ClamConfig(a_t=0)).notes[0]


def test_a_level_too_large_is_searched_on_a_smaller_picture(monkeypatch):
    mask = np.kron(rings(), np.ones((40, 40)))
    slide = LevelSlide(pink_on_white(mask))
    monkeypatch.setattr(clam, "MOST_PIXELS", 10**6)
    tissue = clam_tissue(slide, ClamConfig(a_t=1, a_h=0.1, mthresh=3, close=1))
    assert "4000 x 4800 pixels" in tissue.notes[0]
    assert tissue.downsample == pytest.approx((64, 64), rel=0.02)
    assert len(tissue.regions) == 3
    assert tissue.share == pytest.approx(mask.mean(), abs=0.05)


def test_a_level_that_is_not_there_is_refused():
    with pytest.raises(AsmilError, match=r"tissue.clam.level.*4.*0 to 1"):
        clam_tissue(LevelSlide(pink_on_white(rings()), (2,), name="pale"), ClamConfig(level=4))


def test_level_0_is_read_in_strips_that_do_not_show(monkeypatch):
    slide = random_slide(8)
    whole = clam.read_saturation(slide, 0)
    monkeypatch.setattr(clam, "STRIP_PX", 7 * 80)
    np.testing.assert_array_equal(clam.read_saturation(slide, 0), whole)


def test_clams_file_holds_corners_and_attributes(tmp_path):
    slide = LevelSlide(np.zeros((3567, 4443, 3), dtype=np.uint8), (2,), name="a.b")
    coords = np.array([[64, 70], [64, 326]])
    path = write_clam_coords(tmp_path / "patches" / "a.b.h5", slide, coords, patch_level=1, patch_px=256)
    with h5py.File(path) as file:
        assert file["coords"].dtype == np.int64
        assert file["coords"][:].tolist() == coords.tolist()
        attributes = dict(file["coords"].attrs)
    assert attributes["patch_size"] == 256
    assert attributes["patch_level"] == 1
    assert attributes["downsample"] == pytest.approx([2.0004502476362, 2.0005608524957936])
    assert attributes["downsampled_level_dim"].tolist() == [2221, 1783]
    assert attributes["level_dim"].tolist() == [2221, 1783]
    assert (attributes["name"], attributes["save_path"]) == ("a.b", str(tmp_path / "patches"))


def test_no_tiles_no_file(tmp_path):
    slide = LevelSlide(np.zeros((9, 9, 3), dtype=np.uint8))
    assert write_clam_coords(tmp_path / "a.h5", slide, np.zeros((0, 2), dtype=np.int64), 0, 256) is None
    assert list(tmp_path.iterdir()) == []
