"""Outlines and mask files become the same masks."""

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from shapely import contains_xy
from shapely.geometry import MultiPolygon, Point, Polygon

from asmil.errors import AsmilError
from asmil.slides.annotations import mask_outlines, rasterize, read_mask

SLIDE_PX = (1600, 1200)
SHAPE, DOWNSAMPLE = (75, 100), 16.0


def disk(x: float, y: float, radius: float) -> Polygon:
    return Point(x, y).buffer(radius)


@pytest.fixture(scope="module")
def tumor() -> MultiPolygon:
    ring = disk(500, 500, 300) - disk(520, 480, 120)
    return MultiPolygon([ring, disk(1300, 900, 200)])


@given(st.lists(st.tuples(st.floats(-50, 350), st.floats(-50, 250)), min_size=3, max_size=8), st.floats(3, 40))
@settings(max_examples=60, deadline=None)
def test_a_pixel_is_in_if_its_center_is(points, downsample):
    polygon = Polygon(points)
    if not polygon.is_valid or polygon.area < 1:
        return
    rows, columns = 12, 17
    mask = rasterize(MultiPolygon([polygon]), (rows, columns), downsample)
    y, x = (np.mgrid[:rows, :columns] + 0.5) * downsample
    inside = contains_xy(polygon.buffer(-0.01 * downsample), x, y)
    outside = ~contains_xy(polygon.buffer(0.01 * downsample), x, y)
    assert mask[inside].all()
    assert not mask[outside].any()


def test_holes_stay_empty_and_shapes_beyond_the_slide_are_cut_off(tumor):
    mask = rasterize(tumor, SHAPE, DOWNSAMPLE)
    assert not mask[int(480 / 16), int(520 / 16)]
    assert mask.sum() * DOWNSAMPLE**2 == pytest.approx(tumor.area, rel=0.02)
    assert not rasterize(MultiPolygon([disk(5000, 5000, 50)]), SHAPE, DOWNSAMPLE).any()
    assert rasterize(MultiPolygon([disk(0, 0, 1e5)]), SHAPE, DOWNSAMPLE).all()


@pytest.mark.parametrize(
    "options", [{}, {"tile": (128, 128), "compression": "zlib"}, {"rowsperstrip": 7, "compression": "lzw"}]
)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", ">u2"])
def test_a_mask_of_level_0_gives_the_mask_of_the_outlines(tmp_path, tumor, options, dtype):
    full = rasterize(tumor, SLIDE_PX[::-1], 1.0)
    tifffile.imwrite(
        tmp_path / "m.tif",
        np.where(full, 255, 0).astype(dtype),
        **options,
        byteorder=dtype[0] if dtype[0] == ">" else None,
    )
    read = read_mask(tmp_path / "m.tif", SLIDE_PX, SHAPE, DOWNSAMPLE)
    expected = rasterize(tumor, SHAPE, DOWNSAMPLE)
    # the center of a mask pixel lies on the corner of four level-0 pixels, one of which is taken
    assert (read != expected).mean() < 0.01
    assert (read == full[8::16, 8::16]).all()


def test_a_pyramid_is_read_at_the_level_that_is_fine_enough(tmp_path, tumor):
    """The levels are given contents of their own, so that it shows which was read."""
    levels = [
        rasterize(tumor, (1200 // f, 1600 // f), f).astype(np.uint8) * value for f, value in ((1, 1), (4, 2), (16, 3))
    ]
    with tifffile.TiffWriter(tmp_path / "m.tif") as tiff:
        for number, level in enumerate(levels):
            tiff.write(level, tile=(64, 64), compression="zlib", subfiletype=int(number > 0))
    for downsample, value in ((2.0, 1), (8.0, 2), (16.0, 3), (40.0, 3)):
        shape = (int(1200 / downsample), int(1600 / downsample))
        read = read_mask(tmp_path / "m.tif", SLIDE_PX, shape, downsample, value)
        assert (read == rasterize(tumor, shape, downsample)).mean() > 0.97
        assert read.any()


def test_a_coarse_mask_of_an_odd_factor_is_fitted_to_the_slide(tmp_path, tumor):
    coarse = rasterize(tumor, (1200 // 5, 1600 // 5), 5.0)
    tifffile.imwrite(tmp_path / "m.tif", coarse.astype(np.uint8))
    read = read_mask(tmp_path / "m.tif", SLIDE_PX, SHAPE, DOWNSAMPLE)
    assert (read == rasterize(tumor, SHAPE, DOWNSAMPLE)).mean() > 0.97


def test_label_masks_need_the_value_of_tumor(tmp_path):
    labels = np.ones((120, 160), np.uint8)
    labels[:60] = 2
    labels[:, :20] = 0
    tifffile.imwrite(tmp_path / "m.tif", labels)
    with pytest.raises(AsmilError, match=r"values 0, 1, 2, .*--mask-value"):
        read_mask(tmp_path / "m.tif", SLIDE_PX, SHAPE, DOWNSAMPLE)
    read = read_mask(tmp_path / "m.tif", SLIDE_PX, SHAPE, DOWNSAMPLE, value=2)
    assert read[:37, 13:].all()
    assert not read[38:].any()
    assert not read_mask(tmp_path / "m.tif", SLIDE_PX, SHAPE, DOWNSAMPLE, value=7).any()


def test_masks_that_do_not_fit_are_refused(tmp_path):
    tifffile.imwrite(tmp_path / "wide.tif", np.zeros((100, 400), np.uint8))
    with pytest.raises(AsmilError, match=r"wide\.tif.*400.*100.*1600.*1200"):
        read_mask(tmp_path / "wide.tif", SLIDE_PX, SHAPE, DOWNSAMPLE)
    tifffile.imwrite(tmp_path / "rgb.tif", np.zeros((120, 160, 3), np.uint8), photometric="rgb")
    with pytest.raises(AsmilError, match="3 channels"):
        read_mask(tmp_path / "rgb.tif", SLIDE_PX, SHAPE, DOWNSAMPLE)
    (tmp_path / "no.tif").write_bytes(b"not a tiff")
    with pytest.raises(AsmilError, match=r"no\.tif"):
        read_mask(tmp_path / "no.tif", SLIDE_PX, SHAPE, DOWNSAMPLE)


def test_a_mask_has_outlines_where_it_changes(tmp_path):
    mask = np.zeros((300, 400), dtype=np.uint8)
    mask[50:150, 100:300] = 2
    mask[80:120, 180:220] = 1
    mask[250, 10] = 2
    tifffile.imwrite(tmp_path / "m.tif", mask)
    shape = mask_outlines(tmp_path / "m.tif", SLIDE_PX, value=2)
    bounds = sorted(polygon.bounds for polygon in shape.geoms)
    # the downsample of the file is 4, and an outline is at most half a mask pixel beside the edge
    expected = [(40, 1000, 44, 1004), (400, 200, 1200, 600), (720, 320, 880, 480)]
    np.testing.assert_allclose(bounds, expected, atol=2)
    with pytest.raises(AsmilError, match=r"m\.tif.*--mask-value"):
        mask_outlines(tmp_path / "m.tif", SLIDE_PX)
