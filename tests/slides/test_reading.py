"""Opening and reading slides: what is read, and what is said of files that are none."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import cv2
import numpy as np
import openslide
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.errors import AsmilError
from asmil.slides.byte_cache import ByteCache
from asmil.slides.opening import open_slide, require_resolution
from asmil.slides.openslide_image import OpenSlideImage
from asmil.slides.overview import read_overview
from asmil.slides.tiff_image import segments_meeting
from shared_data import SHARED_DATA, shared_file
from tiff_writers import noise_image, shrunk, smooth_image, write_ome_slide, write_slide

SLIDES = SHARED_DATA / "slides"
WIDTH, HEIGHT = 501, 389


def by_openslide(path):
    return OpenSlideImage(path, openslide.OpenSlide(path), None)


@pytest.fixture(scope="module")
def noise():
    return noise_image(WIDTH, HEIGHT)


REAL = {
    "CMU-1-Small-Region.svs": ("tifffile", "aperio", (2220, 2967), 1, 0.499),
    "CMU-1-Small-Region_dicom/1.dcm": ("openslide", "dicom", (2220, 2967), 1, 0.499),
    "CMU-1-Small-Region_pyramid.tif": ("tifffile", "generic-tiff", (2220, 2967), 5, 0.499),
    "TCGA-CR-7395-01A-01-TS1.svs": ("tifffile", "aperio", (4443, 3567), 2, None),
    "kidney-48-5.tif": ("tifffile", None, (1493, 901), 1, None),
    "test3-DAPI-2-387.ndpi": ("openslide", "hamamatsu", (3968, 4864), 7, 0.22818),
    "synthetic-pyramid.tif": ("tifffile", "generic-tiff", (12288, 8192), 4, 0.25),
}


@pytest.mark.parametrize("file", REAL)
def test_real_slides(file):
    path = shared_file(SLIDES / file)
    reader, vendor, size, levels, mpp = REAL[file]
    with open_slide(path) as image:
        assert (image.reader, image.vendor, image.size, len(image.level_sizes)) == (reader, vendor, size, levels)
        assert (image.resolution and image.resolution.mpp) == (mpp and pytest.approx(mpp, abs=1e-5))
        assert image.read(1000, 700, 0, 64, 32).shape == (32, 64, 3)


JPEG_2000 = ("TCGA-CR-7395-01A-01-TS1.svs",)


@pytest.mark.parametrize(
    "file", ["CMU-1-Small-Region.svs", "CMU-1-Small-Region_pyramid.tif", "TCGA-CR-7395-01A-01-TS1.svs"]
)
def test_the_fast_reader_gives_the_pixels_of_openslide(file):
    path = shared_file(SLIDES / file)
    with open_slide(path) as ours, by_openslide(path) as theirs:
        assert ours.reader == "tifffile"
        for x, y in ((0, 0), (1234, 901), (2000, 2800)):
            assert_same_pixels(ours.read(x, y, 0, 333, 222), theirs.read(x, y, 0, 333, 222), file)
        for level, (width, height) in enumerate(ours.level_sizes[1:], start=1):
            assert_same_pixels(*(image.read(0, 0, level, width, height) for image in (ours, theirs)), file)


def assert_same_pixels(ours, theirs, file):
    """Bit by bit, but for JPEG 2000, whose wavelets are rounded as the CPU likes."""
    differ = np.abs(ours.astype(int) - theirs)
    if file in JPEG_2000:
        assert differ.max() <= 1
        assert np.count_nonzero(differ) <= 1e-5 * differ.size
    else:
        assert differ.max() == 0


def test_a_folder_of_dicom_is_one_slide(tmp_path):
    folder = shared_file(SLIDES / "CMU-1-Small-Region_dicom" / "1.dcm").parent
    with open_slide(folder) as image, open_slide(folder / "2.dcm") as same:
        assert image.name == same.name == folder.name
        assert image.size == same.size == (2220, 2967)
    both = tmp_path / "both"
    both.mkdir()
    for file in folder.iterdir():
        (both / file.name).write_bytes(file.read_bytes())  # the data may be read-only, and copies keep that
    tag = b"\x20\x00\x0e\x00UI"
    content = (folder / "1.dcm").read_bytes()
    at = content.index(tag) + len(tag) + 6
    (both / "other.dcm").write_bytes(content[:at] + b"7" + content[at + 1 :])
    with pytest.raises(AsmilError, match=r"both: .*2 DICOM slides"):
        open_slide(both)


KINDS = {
    "tiles": {"factors": (1, 2, 4)},
    "deflate": {"compression": "deflate", "predictor": True},
    "lzw strips": {"tile_px": None, "compression": "lzw", "rowsperstrip": 16, "factors": (1, 2)},
    "one strip": {"tile_px": None},
    "strips": {"tile_px": None, "rowsperstrip": 50},
    "large tiles": {"tile_px": 1024},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_read(tmp_path, noise, kind):
    path = write_slide(tmp_path / "a.tif", noise, **KINDS[kind])
    with open_slide(path) as image:
        assert image.reader == "tifffile"
        assert image.resolution.mpp == pytest.approx(0.25)
        for level, factor in enumerate(KINDS[kind].get("factors", (1,))):
            wanted = shrunk(noise, factor) if factor > 1 else noise
            height, width = wanted.shape[:2]
            assert image.level_sizes[level] == (width, height)
            np.testing.assert_array_equal(image.read(0, 0, level, width, height), wanted)
        beyond = image.read(-7, HEIGHT - 20, 0, 30, 40, outside=9)
        np.testing.assert_array_equal(beyond[:20, 7:], noise[-20:, :23])
        assert (beyond[20:] == 9).all()
        assert (beyond[:, :7] == 9).all()


def test_gray_alpha_and_planes_of_color(tmp_path, noise):
    gray = noise[..., 0]
    alpha = np.where(gray > 128, 255, 0).astype(np.uint8)
    made = {
        "gray": (gray, {"photometric": "minisblack"}, np.stack([gray] * 3, axis=-1)),
        "inverse": (gray, {"photometric": "miniswhite"}, np.stack([255 - gray] * 3, axis=-1)),
        "alpha": (
            np.dstack([noise, alpha]),
            {"extrasamples": ["unassalpha"]},
            np.where(alpha[..., None] > 0, noise, 255),
        ),
        "planes": (np.ascontiguousarray(noise.transpose(2, 0, 1)), {"planarconfig": "separate"}, noise),
    }
    for name, (pixels, options, wanted) in made.items():
        for tile_px in (128, None):
            path = write_slide(tmp_path / f"{name}-{tile_px}.tif", pixels, tile_px=tile_px, **options)
            with open_slide(path) as image:
                np.testing.assert_array_equal(image.read(0, 0, 0, WIDTH, HEIGHT), wanted, err_msg=path.name)


def test_ome_pyramids_lie_in_subifds(tmp_path, noise):
    with open_slide(write_ome_slide(tmp_path / "a.ome.tif", noise, mpp=0.3)) as image:
        assert image.name == "a"
        assert image.resolution.source == "ome"
        assert (image.resolution.mpp_x, image.resolution.mpp_y) == pytest.approx((0.3, 0.3))
        assert [size[0] for size in image.level_sizes] == [501, 250, 125]
        np.testing.assert_array_equal(image.read(0, 0, 2, 125, 97), shrunk(noise, 4))


def test_positions_between_pixels(tmp_path):
    pixels = smooth_image(801, 603)
    path = write_slide(tmp_path / "a.tif", pixels, factors=(1, 2, 4))
    with open_slide(path) as ours, by_openslide(path) as theirs:
        for level, x, y in ((1, 101, 51), (1, -9, 4), (2, 102, 51), (2, 101, -7)):
            one, other = (image.read(x, y, level, 90, 80).astype(int) for image in (ours, theirs))
            assert np.abs(one - other)[4:, 5:].max() <= 3, "both interpolate"


def test_pictures(tmp_path, noise):
    for suffix in ("png", "bmp"):
        cv2.imwrite(str(tmp_path / f"a.{suffix}"), noise[..., ::-1])
        with open_slide(tmp_path / f"a.{suffix}", mpp=0.5) as image:
            assert image.level_sizes == ((WIDTH, HEIGHT),)
            np.testing.assert_array_equal(image.read(10, -1, 0, 20, 11)[1:], noise[:10, 10:30])
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:20])
    with pytest.raises(AsmilError, match=r"b\.png"):
        open_slide(tmp_path / "b.png")


def test_a_small_region_meets_few_segments(tmp_path, noise):
    with tifffile.TiffFile(write_slide(tmp_path / "a.tif", noise)) as tiff:
        places = list(segments_meeting(tiff.pages[0], 120, 130, 10, 10))
    assert [(place.number, place.x, place.y) for place in places] == [(4, 0, 128), (5, 128, 128)]


def test_the_cache_is_bounded():
    cache = ByteCache(100)
    for key in range(5):
        cache.put(key, np.zeros(40, np.uint8))
        assert cache.get(3 if key > 3 else key) is not None
    assert [key for key in range(5) if cache.get(key) is not None] == [3, 4]
    cache.put("large", np.zeros(1000, np.uint8))
    assert cache.get("large") is not None
    assert cache.get(4) is None


def test_threads_read_what_one_reads(tmp_path):
    pixels = smooth_image(1024, 1024)
    path = write_slide(tmp_path / "a.tif", pixels, compression="jpeg", tile_px=128)
    places = [(x, y) for x in range(0, 900, 90) for y in range(0, 900, 130)]
    for opened in (open_slide, by_openslide):
        with opened(path) as image, ThreadPoolExecutor(8) as pool:
            alone = [image.read(x, y, 0, 150, 140) for x, y in places]
        with opened(path) as image, ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda place, image=image: image.read(*place, 0, 150, 140), places))
        np.testing.assert_array_equal(alone, together)


def refusal(path, **options):
    with pytest.raises(AsmilError) as caught:
        open_slide(path, **options)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_what_is_no_slide(tmp_path, noise):
    (tmp_path / "empty.svs").touch()
    (tmp_path / "text.svs").write_text("slides are in the other folder\n")
    (tmp_path / "folder").mkdir()
    assert "empty" in refusal(tmp_path / "empty.svs")
    assert ".svs" in refusal(tmp_path / "text.svs")
    assert "folder" in refusal(tmp_path / "folder")
    assert "'empty.svs'" in refusal(tmp_path / "emty.svs")
    assert "folder" in refusal(tmp_path / "nowhere" / "a.svs")
    assert "mpp -1" in refusal(tmp_path / "text.svs", mpp=-1)


def test_images_that_are_not_8_bit_rgb(tmp_path, noise):
    for tile_px in (128, None):
        deep = write_slide(tmp_path / "deep.tif", noise.astype(np.uint16), tile_px=tile_px)
        assert "16 bits" in refusal(deep)
        five = write_slide(
            tmp_path / "five.tif",
            np.dstack([noise, noise[..., :2]]),
            tile_px=tile_px,
            photometric="minisblack",
            planarconfig="contig",
        )
        assert "5 channels" in refusal(five)
    tifffile.imwrite(
        tmp_path / "stack.ome.tif",
        np.ascontiguousarray(noise.transpose(2, 0, 1)),
        photometric="minisblack",
        metadata={"axes": "CYX"},
    )
    assert "3 planes" in refusal(tmp_path / "stack.ome.tif")


def read_all(path):
    with open_slide(path) as image:
        read_overview(image, max_side=100)
        for level, (width, height) in enumerate(image.level_sizes):
            image.read(0, 0, level, min(width, 4000), min(height, 4000))


@pytest.mark.parametrize("file", ["CMU-1-Small-Region.svs", "TCGA-CR-7395-01A-01-TS1.svs", "test3-DAPI-2-387.ndpi"])
@pytest.mark.parametrize("share", [0.001, 0.3, 0.6, 0.7, 0.95])
def test_a_real_slide_cut_off(tmp_path, file, share):
    content = shared_file(SLIDES / file).read_bytes()
    path = tmp_path / file
    path.write_bytes(content[: int(share * len(content))])
    assert "copy" in refusal(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_made_slide_cut_off(tmp_path, noise, kind):
    path = write_slide(tmp_path / "a.tif", noise[:200, :200], **KINDS[kind])
    content = path.read_bytes()
    for length in range(len(content) // 9, len(content), len(content) // 9):
        path.write_bytes(content[:length])
        assert "copy" in refusal(path)


@pytest.mark.parametrize(("tag", "value"), [("ImageWidth", 13_631_638), ("TileWidth", 1_660_944_448)])
def test_a_damaged_width_is_not_believed(tmp_path, tag, value):
    path = write_slide(tmp_path / "a.tif", smooth_image(150, 140), compression="deflate", tile_px=64)
    with tifffile.TiffFile(path, mode="r+") as tiff:
        tiff.pages[0].tags[tag].overwrite(value)
    assert "damaged" in refusal(path)


def test_a_damaged_tile_is_named(tmp_path):
    path = write_slide(tmp_path / "a.tif", smooth_image(512, 512), compression="jpeg")
    with tifffile.TiffFile(path) as tiff:
        start, length = tiff.pages[0].dataoffsets[5], tiff.pages[0].databytecounts[5]
    content = bytearray(path.read_bytes())
    content[start : start + length] = bytes(length)
    path.write_bytes(content)
    for opened in (open_slide, by_openslide):
        with opened(path) as image:
            image.read(0, 0, 0, 100, 100)
            with pytest.raises(AsmilError, match=r"a\.tif: .*\(130, 140\).*level 0"):
                image.read(130, 140, 0, 100, 100)


@pytest.mark.parametrize("compression", ["jpeg", "deflate", None])
@settings(max_examples=40, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_bytes_never_end_in_a_traceback(tmp_path_factory, compression, changes):
    path = tmp_path_factory.getbasetemp() / f"damaged-{compression}.tif"
    write_slide(path, smooth_image(150, 140), compression=compression, tile_px=64, factors=(1, 2))
    content = bytearray(path.read_bytes())
    for place, value in changes:
        # Headers are a small part of the file, and most of what can go wrong.
        content[place % (len(content) if place % 2 else min(len(content), 600))] = value
    path.write_bytes(content)
    with suppress(AsmilError):
        read_all(path)


def test_a_missing_resolution_names_the_ways_to_give_it(tmp_path, noise):
    path = write_slide(tmp_path / "a.tif", noise, mpp=None)
    with open_slide(path) as image:
        assert image.resolution is None
        with pytest.raises(AsmilError, match=r"'a'.*--mpp.*'mpp'"):
            require_resolution(image)
    with open_slide(path, mpp=0.5) as image:
        assert require_resolution(image).source == "given"
