"""No request reads more of a slide than it may, or holds more of it in memory."""

import subprocess
import sys

import cv2
import numpy as np
import pytest
import tifffile

from array_slide import ArraySlide
from asmil.errors import AsmilError
from asmil.slides.discovery import SlideFile
from asmil.slides.overview import BLOCK_PX, read_reduced
from asmil.slides.picture_image import picture_size
from asmil.viewer import open_slides
from asmil.viewer.open_slides import OpenSlides, open_pyramid
from asmil.viewer.pyramid import MOST_REGION_PX, MOST_TILE_PX, TilePyramid
from viewed_cohort import drawn_slide


class Counted(ArraySlide):
    """One level of any size, gray; counts what is read of it."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__(np.zeros((1, 1, 3), np.uint8), mpp=0.5)
        self.level_sizes = ((width, height),)
        self.largest = self.total = 0

    def read(self, x, y, level, width, height, outside=255):
        assert width * height <= 1 << 24, "a block of this size must not be read at once"
        self.largest, self.total = max(self.largest, width * height), self.total + width * height
        return np.full((height, width, 3), 128, np.uint8)


@pytest.mark.parametrize("px", [1, 100, 2048])
@pytest.mark.parametrize("size", [(700, 500), (8000, 8000)])
def test_a_region_is_read_in_blocks_and_only_inside_the_slide(size, px):
    image = Counted(*size)
    TilePyramid(image).region(-(1 << 15), -(1 << 15), 1 << 16, px)
    assert image.largest <= 2 * BLOCK_PX**2
    assert image.total <= (size[0] + 2 * BLOCK_PX) * (size[1] + 2 * BLOCK_PX)


def test_a_region_that_needs_too_many_pixels_is_refused():
    image = Counted(1 << 16, 1 << 16)
    pyramid = TilePyramid(image)
    with pytest.raises(AsmilError, match="drawn"):
        pyramid.region(0, 0, 1 << 16, 1)
    assert image.total == 0
    pyramid.region(0, 0, 1 << 13, 112)
    assert 0 < image.total <= MOST_REGION_PX


def test_a_region_in_blocks_is_the_average_of_its_pixels():
    pixels = drawn_slide(3, 5000, 4600)
    found = read_reduced(ArraySlide(pixels), (-100, 300), 0, (1, 1), (4500, 4500), (150, 150))
    whole = np.full((4500, 4500, 3), 255, np.uint8)
    whole[:4300, 100:] = pixels[300:, :4400]
    expected = cv2.resize(whole, (150, 150), interpolation=cv2.INTER_AREA)
    assert np.abs(found.astype(int) - expected).max() <= 1
    tiny = read_reduced(ArraySlide(pixels), (-100, 300), 0, (1, 1), (4500, 4500), (2, 2))
    assert np.abs(tiny - cv2.resize(whole, (2, 2), interpolation=cv2.INTER_AREA).astype(int)).max() <= 2


def test_the_whole_of_a_huge_slide_of_one_level_is_refused_and_its_parts_are_shown():
    image = Counted(1 << 18, 1 << 18)
    pyramid = TilePyramid(image)
    assert "drawn" in pyramid.unreachable
    for make in (lambda: pyramid.overview(128), lambda: pyramid.pixels(len(pyramid.levels) - 1, 0, 0)):
        with pytest.raises(AsmilError, match="drawn"):
            make()
    assert image.total <= MOST_TILE_PX
    assert pyramid.pixels(1, 100, 100).shape == (512, 512, 3)


def test_strips_that_would_be_decoded_again_and_again_count(monkeypatch):
    image = Counted(1 << 15, 1 << 15)
    assert not TilePyramid(image).unreachable
    monkeypatch.setattr(Counted, "decoded_at_once", lambda self, level: 1 << 15)  # one row
    assert TilePyramid(image).unreachable
    assert not TilePyramid(Counted(1 << 13, 1 << 13)).unreachable


def test_coarse_tiles_are_computed_once():
    image = Counted(1 << 14, 1 << 13)
    pyramid = TilePyramid(image)
    assert not pyramid.unreachable
    assert pyramid.overview(128).shape == (64, 128, 3)
    assert image.total == image.size[0] * image.size[1]
    for level in range(len(pyramid.levels) - 3, len(pyramid.levels)):
        pyramid.pixels(level, 0, 0)
    assert image.total == image.size[0] * image.size[1]


def test_a_huge_sparse_slide_is_answered_at_once(client, tmp_path):
    side, tile = 1 << 18, 1 << 12
    (tmp_path / "slides").mkdir()
    tifffile.imwrite(
        tmp_path / "slides" / "sparse.tif",
        (b"" for _ in range((side // tile) ** 2)),
        shape=(side, side, 3),
        dtype=np.uint8,
        tile=(tile, tile),
        compression="zlib",
        photometric="rgb",
        bigtiff=True,
    )
    server = client(tmp_path / "slides")
    about = server.get("/api/slides/0").json()
    assert about["size"] == [side, side]
    assert "sparse" in about["image_error"]
    last = len(about["image"]["levels"]) - 1
    for path in ("thumbnail.jpg", f"tiles/{last}/0_0.jpg", "region.jpg?x=0&y=0&side=65536&px=1"):
        refused = server.get(f"/api/slides/0/{path}")
        assert refused.status_code == 422
        assert "sparse" in refused.json()["error"]
    assert server.get("/api/slides/0/tiles/0/3_4.jpg").status_code == 200
    assert server.get("/api/slides/0/region.jpg?x=0&y=0&side=2048&px=112").status_code == 200


REQUEST = """
import resource, sys
from pathlib import Path
from starlette.testclient import TestClient
from asmil.viewer.app import build_app
from asmil.viewer.collection import Places, collect

slides = [Path(name) for name in sys.argv[1:]]
client = TestClient(build_app(collect(slides, Places())), base_url="http://127.0.0.1:8750")
for slide in range(len(slides)):
    assert client.get(f"/api/slides/{slide}/thumbnail.jpg").status_code == 200
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30), used + (3 << 30)))
for slide in range(len(slides)):
    answer = client.get(f"/api/slides/{slide}/region.jpg?x=0&y=0&side=65536&px=1")
    assert answer.status_code == 200, answer.text
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
"""


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_a_request_is_bounded(tmp_path):
    """A square of 65,536 pixels alone takes 12.9 GB; the process gets 3 GB and uses 0.2."""
    slides = [tmp_path / name for name in ("a.png", "b.jpg", "c.tif")]
    for slide in slides:
        cv2.imwrite(str(slide), drawn_slide(0, 3000, 2000))
    done = subprocess.run([sys.executable, "-c", REQUEST, *slides], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.bmp"])
def test_the_size_of_a_picture_is_in_its_header(tmp_path, name):
    cv2.imwrite(str(tmp_path / name), np.zeros((20, 30, 3), np.uint8))
    assert picture_size(tmp_path / name) == (30, 20)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:12])
    assert picture_size(tmp_path / name) is None


def test_a_picture_or_a_strip_that_takes_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(open_slides, "MODEST_BYTES", 1 << 20)
    monkeypatch.setattr(open_slides, "available_bytes", lambda: 1 << 22)
    pixels = drawn_slide(0, 700, 700)
    cv2.imwrite(str(tmp_path / "a.png"), pixels)
    tifffile.imwrite(tmp_path / "strip.tif", pixels, compression="zlib", rowsperstrip=700, photometric="rgb")
    tifffile.imwrite(tmp_path / "tiles.tif", pixels, compression="zlib", tile=(256, 256), photometric="rgb")
    for name in ("a.png", "strip.tif"):
        with pytest.raises(AsmilError, match=name):
            open_pyramid(SlideFile("a", tmp_path / name))
    open_pyramid(SlideFile("a", tmp_path / "tiles.tif")).close()


def test_open_pictures_are_closed_when_they_hold_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(open_slides, "MOST_HELD_BYTES", 3 << 20)
    slides = OpenSlides()
    opened = []
    for name in ("a.png", "b.png", "c.png"):
        cv2.imwrite(str(tmp_path / name), drawn_slide(0, 700, 700))
        with slides.use(SlideFile(name, tmp_path / name)) as pyramid:
            opened.append(pyramid.image)
    assert [image.held_bytes > 0 for image in opened] == [False, True, True]
    slides.close()
