"""The parts below the server: pyramids, stored tiles, open slides, grids, and what becomes of values."""

import threading

import cv2
import numpy as np
import pytest
import tifffile

from array_slide import ArraySlide
from asmil.explain.color_scale import value_range
from asmil.slides.byte_cache import ByteCache
from asmil.slides.discovery import SlideFile
from asmil.slides.opening import open_slide
from asmil.slides.tiff_image import whole_jpeg
from asmil.viewer.open_slides import OpenSlides
from asmil.viewer.packing import pack
from asmil.viewer.pyramid import TilePyramid, encode, served_levels
from asmil.viewer.tile_values import linear_bytes, percentile_bytes
from packed import unpack
from shared_data import SHARED_DATA
from viewed_cohort import drawn_slide


def decoded(content: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)


@pytest.mark.parametrize(("photometric", "subsampling"), [("ycbcr", (2, 2)), ("ycbcr", (1, 1)), ("rgb", None)])
def test_a_stored_tile_is_passed_on_with_its_tables_and_colors(tmp_path, photometric, subsampling):
    path = tmp_path / "a.tif"
    pixels = drawn_slide(1, 700, 500)
    options = {"subsampling": subsampling} if subsampling else {}
    tifffile.imwrite(path, pixels, tile=(256, 256), compression="jpeg", photometric=photometric, **options)
    with open_slide(path, mpp=0.5) as image:
        for column, row in ((0, 0), (2, 1)):
            stored = image.stored_jpeg(0, column, row)
            assert stored is not None
            part = image.read(256 * column, 256 * row, 0, min(256, 700 - 256 * column), min(256, 500 - 256 * row))
            np.testing.assert_array_equal(decoded(stored)[: part.shape[0], : part.shape[1]], part)
        assert image.stored_jpeg(0, 3, 0) is None


def test_tiles_of_another_compression_are_not_passed_on(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", drawn_slide(1, 512, 512), tile=(256, 256), compression="zlib")
    with open_slide(tmp_path / "a.tif", mpp=0.5) as image:
        assert image.stored_tile_size(0) == (256, 256)
        assert image.stored_jpeg(0, 0, 0) is None


@pytest.mark.parametrize("damaged", [b"", b"no jpeg", b"\xff\xd8\xff\xdb\xff\xff", b"\xff\xd8abcd"])
def test_bytes_that_are_no_jpeg_are_refused(damaged):
    with pytest.raises(ValueError, match="JPEG"):
        whole_jpeg(damaged, None, False)


def test_a_jpeg_without_a_frame_is_not_passed_on():
    assert whole_jpeg(b"\xff\xd8", None, False) is None


@pytest.mark.parametrize("name", ["CMU-1-Small-Region.svs", "CMU-1-Small-Region_pyramid.tif"])
def test_stored_tiles_of_real_slides(name):
    path = SHARED_DATA / "slides" / name
    if not path.exists():
        pytest.skip(f"needs {path}")
    with open_slide(path) as image:
        width, height = image.stored_tile_size(0)
        stored = image.stored_jpeg(0, 1, 2)
        np.testing.assert_array_equal(decoded(stored), image.read(width, 2 * height, 0, width, height))


def test_a_slide_of_one_level_gets_coarser_ones():
    pixels = drawn_slide(2, 2300, 1500)
    pyramid = TilePyramid(ArraySlide(pixels, mpp=0.5))
    assert [(level.width, level.height) for level in pyramid.levels] == [
        (2300, 1500),
        (1150, 750),
        (575, 375),
        (288, 188),
    ]
    last = len(pyramid.levels) - 1
    coarse = pyramid.pixels(last, 0, 0)
    expected = cv2.resize(pixels, (288, 188), interpolation=cv2.INTER_AREA)
    assert coarse.shape == expected.shape
    assert np.abs(coarse.astype(int) - expected).mean() < 3
    whole = np.zeros_like(pixels[::2, ::2])
    for row in range(pyramid.levels[1].down):
        for column in range(pyramid.levels[1].across):
            tile = pyramid.pixels(1, column, row)
            whole[row * 512 : row * 512 + tile.shape[0], column * 512 : column * 512 + tile.shape[1]] = tile
    assert np.abs(whole.astype(int) - cv2.resize(pixels, (1150, 750), interpolation=cv2.INTER_AREA)).max() <= 1


def test_a_tiny_slide_has_one_level():
    (level,) = served_levels(ArraySlide(drawn_slide(0, 3, 2)))
    assert (level.across, level.down) == (1, 1)
    assert decoded(encode(TilePyramid(ArraySlide(drawn_slide(0, 3, 2))).pixels(0, 0, 0))).shape == (2, 3, 3)


class Closable(ArraySlide):
    closed = 0

    def close(self) -> None:
        type(self).closed += 1


def test_slides_stay_open_within_a_number_and_are_closed_when_unused(tmp_path):
    Closable.closed = 0
    slides = OpenSlides(2, lambda file: TilePyramid(Closable(drawn_slide(0, 8, 8), name=file.name)))
    files = [SlideFile(name, tmp_path / name) for name in "abcd"]
    with slides.use(files[0]) as held:
        for file in files[1:]:
            with slides.use(file):
                pass
        assert held.image.name == "a"
        assert Closable.closed == 1  # b; a is in use
    assert Closable.closed == 2
    slides.close()
    assert Closable.closed == 4


def test_a_slide_is_opened_once_by_many_threads(tmp_path):
    opened = []

    def opener(file: SlideFile) -> TilePyramid:
        opened.append(file.name)
        return TilePyramid(ArraySlide(drawn_slide(0, 8, 8)))

    slides = OpenSlides(2, opener)
    file = SlideFile("a", tmp_path / "a")

    def read() -> None:
        with slides.use(file) as pyramid:
            pyramid.pixels(0, 0, 0)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == ["a"]


def test_a_slide_that_cannot_be_opened_is_tried_again(tmp_path):
    attempts = []

    def opener(file: SlideFile) -> TilePyramid:
        attempts.append(file.name)
        if len(attempts) == 1:
            raise OSError("busy")
        return TilePyramid(ArraySlide(drawn_slide(0, 8, 8)))

    slides = OpenSlides(2, opener)
    file = SlideFile("a", tmp_path / "a")
    with pytest.raises(OSError, match="busy"), slides.use(file):
        pass
    with slides.use(file) as pyramid:
        assert pyramid.image.size == (8, 8)


def test_the_cache_keeps_within_its_bytes():
    cache = ByteCache(10)
    made = []

    def make(size: int) -> bytes:
        made.append(size)
        return b"x" * size

    for key, size in (("a", 6), ("b", 6), ("b", 6), ("a", 6)):
        assert len(cache.get_or_make((key,), lambda size=size: make(size))) == size
    assert len(made) == 3


def test_arrays_arrive_as_they_are():
    arrays = {"a": np.arange(5, dtype=np.uint8), "b": np.array([[1, -2]], dtype=np.int32), "c": np.ones(3, np.float32)}
    found = unpack(pack({"name": "x"}, arrays))
    assert found.pop("name") == "x"
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values.ravel())


def test_values_become_bytes():
    values = np.array([[0.0, 0.5, 1.0], [2.0, 2.0, 2.0]], dtype=np.float32)
    assert percentile_bytes(values).tolist() == [[0, 128, 255], [128, 128, 128]]
    assert value_range(values) == (0.0, 2.0)
    assert linear_bytes(values, 0.0, 2.0).tolist() == [[0, 64, 128], [255, 255, 255]]
    signed = np.array([[-1.0, 3.0]])
    assert value_range(signed) == (-3.0, 3.0)
    assert value_range(values, "leave_one_out") == (-2.0, 2.0)
    assert value_range(values / 4, "probability") == (0.0, 1.0)
    assert percentile_bytes(np.ones((1, 1))).tolist() == [[128]]
    assert linear_bytes(np.zeros((1, 2)), 0.0, 0.0).tolist() == [[0, 0]]
