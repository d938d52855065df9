"""The whole slide as a small picture."""

import cv2
import numpy as np
import pytest

from asmil.errors import AsmilError
from asmil.slides import overview
from asmil.slides.opening import open_slide
from asmil.slides.overview import read_overview
from tiff_writers import noise_image, shrunk, smooth_image, write_slide


def test_an_average_of_all_pixels(tmp_path):
    pixels = noise_image(640, 480)
    for factors in ((1,), (1, 4), (1, 2, 32)):
        with open_slide(write_slide(tmp_path / "a.tif", pixels, mpp=0.5, factors=factors)) as image:
            found = read_overview(image, mpp=8.0)
        assert found.downsample == (16, 16)
        assert np.abs(found.pixels.astype(int) - shrunk(pixels, 16)).max() <= 2, "levels round"


@pytest.mark.parametrize("block_px", [100, 333])
@pytest.mark.parametrize("mpp", [3.0, 1.37, 0.6])
def test_pieces_are_those_of_the_whole(tmp_path, monkeypatch, block_px, mpp):
    pixels = smooth_image(1013, 771, 40)
    with open_slide(write_slide(tmp_path / "a.tif", pixels, mpp=0.5)) as image:
        whole = read_overview(image, mpp)
        monkeypatch.setattr(overview, "BLOCK_PX", block_px)
        pieces = read_overview(image, mpp)
    assert whole.downsample == pieces.downsample
    assert whole.downsample[0] == pytest.approx(mpp / 0.5, rel=0.01)
    columns, rows = round(1013 * 0.5 / mpp), round(771 * 0.5 / mpp)
    np.testing.assert_array_equal(whole.pixels, cv2.resize(pixels, (columns, rows), interpolation=cv2.INTER_AREA))
    steepest = 100 * 2 * np.pi / 40
    assert np.abs(whole.pixels.astype(int) - pieces.pixels).max() <= steepest / 2**0.5 + 1, "half a level pixel"


def test_sides_and_limits(tmp_path):
    pixels = smooth_image(640, 480)
    path = write_slide(tmp_path / "a.tif", pixels, mpp=0.5, factors=(1, 2, 4))
    with open_slide(path) as image:
        assert read_overview(image, max_side=100).pixels.shape == (75, 100, 3)
        assert read_overview(image, mpp=8.0, max_side=100).pixels.shape == (30, 40, 3)
        assert read_overview(image, mpp=1.0, max_side=100).pixels.shape == (75, 100, 3)
        np.testing.assert_array_equal(read_overview(image, max_side=5000).pixels, pixels)
        np.testing.assert_array_equal(read_overview(image, mpp=0.1).pixels, pixels)
    with open_slide(write_slide(tmp_path / "thin.tif", smooth_image(600, 3), tile_px=16)) as image:
        assert read_overview(image, max_side=20).pixels.shape == (1, 20, 3)


def test_mpp_needs_a_resolution(tmp_path):
    path = write_slide(tmp_path / "a.tif", smooth_image(200, 200), mpp=None)
    with open_slide(path) as image:
        assert read_overview(image, max_side=50).downsample == (4, 4)
        with pytest.raises(AsmilError, match="slide 'a'"):
            read_overview(image, mpp=8.0)
        with pytest.raises(ValueError, match="max_side"):
            read_overview(image)


def test_what_is_transparent_is_gray(tmp_path):
    rgba = np.zeros((200, 200, 4), np.uint8)
    rgba[:, 100:] = (10, 20, 30, 255)
    with open_slide(write_slide(tmp_path / "a.tif", rgba, extrasamples=["unassalpha"])) as image:
        found = read_overview(image, max_side=20, outside=77).pixels
    assert (found[:, :10] == 77).all()
    assert (found[:, 10:] == (10, 20, 30)).all()
