"""Pyramids that OpenSlide and tifffile read back."""

import cv2
import numpy as np
import openslide
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.slides.pyramid_tiff import write_pyramid


def picture(width: int, height: int) -> np.ndarray:
    coarse = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def levels(path) -> list[np.ndarray]:
    with tifffile.TiffFile(path) as file:
        return [page.asarray() for page in file.pages]


def test_openslide_finds_levels_resolution_and_pixels(tmp_path):
    pixels = picture(1056, 720)
    write_pyramid(tmp_path / "slide.tif", pixels, mpp=0.25)
    with openslide.OpenSlide(tmp_path / "slide.tif") as slide:
        assert slide.properties["openslide.vendor"] == "generic-tiff"
        assert slide.level_dimensions == ((1056, 720), (264, 180), (66, 45))
        assert slide.level_downsamples == pytest.approx((1, 4, 16))
        for axis in "xy":
            assert float(slide.properties[f"openslide.mpp-{axis}"]) == pytest.approx(0.25, rel=1e-6)
        for level, size in enumerate(slide.level_dimensions):
            read = np.asarray(slide.read_region((0, 0), level, size))[..., :3]
            wanted = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
            assert np.abs(read.astype(int) - wanted).mean() < 3


def test_coarser_pages_are_reduced_images_with_their_own_resolution(tmp_path):
    write_pyramid(tmp_path / "slide.tif", picture(512, 512), mpp=0.5, downsamples=(2, 8))
    with tifffile.TiffFile(tmp_path / "slide.tif") as file:
        assert [page.is_reduced for page in file.pages] == [False, True, True]
        microns = [10_000 * below / above for above, below in (page.tags["XResolution"].value for page in file.pages)]
        assert microns == pytest.approx([0.5, 1, 4])
        assert all(page.is_tiled and page.tile == (256, 256) for page in file.pages)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=6), st.integers(1, 600))
@settings(max_examples=25)
def test_strips_of_any_heights_make_the_same_file(tmp_path_factory, heights, width):
    folder = tmp_path_factory.mktemp("strips")
    pixels = picture(width, sum(heights))
    write_pyramid(folder / "whole.tif", pixels, mpp=0.5)
    tops = np.cumsum([0, *heights])
    strips = (pixels[top : top + height] for top, height in zip(tops, heights, strict=False))
    write_pyramid(folder / "strips.tif", strips, mpp=0.5, size=(width, sum(heights)))
    assert (folder / "whole.tif").read_bytes() == (folder / "strips.tif").read_bytes()
    finest, *coarser = levels(folder / "strips.tif")
    assert finest.shape == pixels.shape
    assert [level.shape[:2] for level in coarser] == [
        (-(-sum(heights) // factor), -(-width // factor)) for factor in (4, 16)
    ]


def test_one_level_is_enough(tmp_path):
    write_pyramid(tmp_path / "slide.tif", picture(300, 200), mpp=1.0, downsamples=())
    assert [level.shape for level in levels(tmp_path / "slide.tif")] == [(200, 300, 3)]


def test_strips_that_fail_leave_no_file(tmp_path):
    def strips():
        yield picture(300, 256)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_pyramid(tmp_path / "slide.tif", strips(), mpp=0.5, size=(300, 600))
    assert list(tmp_path.iterdir()) == []


def test_strips_need_a_size(tmp_path):
    with pytest.raises(ValueError, match="size"):
        write_pyramid(tmp_path / "slide.tif", iter([picture(300, 256)]), mpp=0.5)
