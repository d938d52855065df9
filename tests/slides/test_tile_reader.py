"""Tiles: the right level, the right place, the same from every scan."""

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.errors import AsmilError
from asmil.slides.image import choose_level, true_downsamples
from asmil.slides.opening import open_slide
from asmil.slides.tiling import GROUP_TILES, TileReader
from shared_data import SHARED_DATA, shared_file
from tiff_writers import noise_image, shrunk, smooth_image, smooth_values, write_slide


def coords_of(*places):
    return np.array(places, dtype=np.int64).reshape(-1, 2)


def read_tiles(path, tile_px_level0, tile_px, coords):
    with open_slide(path) as image:
        reader = TileReader(image, tile_px_level0, tile_px)
        return reader.read(coords), reader.level


@pytest.mark.parametrize(
    ("downsamples", "wanted", "level"),
    [
        ((1, 4, 16), 1, 0),
        ((1, 4, 16), 2, 0),
        ((1, 4, 16), 4, 1),
        ((1, 4, 16), 100, 2),
        ((1, 4, 16), 0.5, 0),
        ((1, 2.0004, 4.002), 2, 1),
        ((1, 2.05, 4), 2, 0),
        ((1, 4, 2), 3, 2),
    ],
)
def test_the_level_is_the_coarsest_that_is_fine_enough(downsamples, wanted, level):
    assert choose_level([(each, each) for each in downsamples], wanted) == level


@given(
    width=st.integers(200, 100_000),
    height=st.integers(200, 100_000),
    factor=st.integers(2, 32),
    up=st.booleans(),
)
def test_cut_off_rests_do_not_change_the_downsample(width, height, factor, up):
    level = tuple(-(-length // factor) if up else length // factor for length in (width, height))
    found = true_downsamples([(width, height), level])[1]
    if width > 3 * factor**2 and height > 3 * factor**2:
        assert found == (factor, factor)


def test_tiles_are_cut_out_exactly(tmp_path):
    pixels = noise_image(700, 600)
    coords = coords_of((0, 0), (100, 37), (444, 344), (600, 500), (-20, 590))
    tiles, level = read_tiles(write_slide(tmp_path / "a.tif", pixels, factors=(1, 2, 4)), 128, 128, coords)
    assert level == 0
    padded = np.full((1000, 1000, 3), 255, np.uint8)
    padded[100:700, 100:800] = pixels
    for tile, (x, y) in zip(tiles, coords, strict=True):
        np.testing.assert_array_equal(tile, padded[100 + y : 228 + y, 100 + x : 228 + x])


def test_40x_and_20x_scans_of_a_slide_give_the_same_tiles(tmp_path):
    pixels = noise_image(1024, 768)
    fine = write_slide(tmp_path / "40x.tif", pixels, mpp=0.25)
    pyramid = write_slide(tmp_path / "levels.tif", pixels, mpp=0.25, factors=(1, 2))
    coarse = write_slide(tmp_path / "20x.tif", shrunk(pixels, 2), mpp=0.5)
    places = coords_of((0, 0), (256, 128), (700, 400))
    at_40x, level = read_tiles(fine, 256, 128, places)
    through_a_level, between = read_tiles(pyramid, 256, 128, places)
    at_20x, _ = read_tiles(coarse, 128, 128, places // 2)
    assert (level, between) == (0, 1)
    np.testing.assert_array_equal(at_40x, at_20x)
    np.testing.assert_array_equal(through_a_level, at_20x)


@pytest.mark.parametrize("factors", [(1,), (1, 2)])
def test_scans_of_other_resolution_within_interpolation(tmp_path, factors):
    """The same slide at 0.2425 and at 0.5 um/px: one place in microns, one tile."""
    period_um = 20.0
    fine = smooth_image(1200, 1000, period_um / 0.2425)
    coarse = smooth_image(582, 485, period_um / 0.5)
    tiles_fine, level = read_tiles(
        write_slide(tmp_path / "a.tif", fine, mpp=0.2425, factors=factors), 264, 128, coords_of((400, 600))
    )
    tiles_coarse, _ = read_tiles(write_slide(tmp_path / "b.tif", coarse, mpp=0.5), 128, 128, coords_of((194, 291)))
    assert level == len(factors) - 1
    difference = np.abs(tiles_fine.astype(int) - tiles_coarse)
    assert difference.mean() < 2, "a pixel of error in position makes 5"
    assert difference.max() < 8


@settings(max_examples=40, deadline=None)
@given(x=st.integers(0, 300), y=st.integers(0, 300), side=st.integers(130, 400), factor=st.sampled_from([2, 3, 4]))
def test_positions_are_exact_between_pixels(tmp_path_factory, x, y, side, factor):
    """Waves are shifted by what a wrong position would be: less than a tenth of an output pixel is found."""
    period_px, tile_px = 64.0, 64
    path = tmp_path_factory.getbasetemp() / f"waves-{factor}.tif"
    if not path.exists():
        write_slide(path, smooth_image(960, 960, period_px), factors=(1, factor))
    (tile,), _ = read_tiles(path, side, tile_px, coords_of((x, y)))
    step = side / tile_px
    columns, rows = np.meshgrid(x + (np.arange(tile_px) + 0.5) * step, y + (np.arange(tile_px) + 0.5) * step)

    def miss(dx, dy):
        wanted = smooth_values(columns + dx * step, rows + dy * step, period_px).astype(float) - 128
        return ((tile - 128.0) * wanted).mean() / np.sqrt((wanted**2).mean())

    shifts = (-0.1, 0, 0.1)
    best = max(((dx, dy) for dx in shifts for dy in shifts), key=lambda shift: miss(*shift))
    assert miss(0, 0) >= miss(*best) * 0.9995


def test_shrinking_is_an_average(tmp_path):
    pixels = noise_image(512, 512)
    (tile,), _ = read_tiles(write_slide(tmp_path / "a.tif", pixels), 256, 64, coords_of((100, 50)))
    average = pixels[50:306, 100:356].reshape(64, 4, 64, 4, 3).mean(axis=(1, 3))
    assert np.abs(tile - average).max() <= 0.5


def test_enlarging_is_smooth(tmp_path):
    pixels = smooth_image(300, 300)
    (tile,), level = read_tiles(write_slide(tmp_path / "a.tif", pixels, factors=(1, 2)), 64, 128, coords_of((50, 60)))
    assert level == 0
    wanted = cv2.resize(pixels[60:124, 50:114], (128, 128), interpolation=cv2.INTER_LINEAR)
    np.testing.assert_array_equal(tile, wanted)


@given(
    places=st.lists(st.tuples(st.integers(-500, 30_000), st.integers(-500, 30_000)), max_size=200),
    tile=st.sampled_from([128, 512, 5000]),
)
@settings(max_examples=50, deadline=None)
def test_groups_hold_every_tile_once(tmp_path_factory, places, tile):
    path = tmp_path_factory.getbasetemp() / "groups.tif"
    if not path.exists():
        write_slide(path, smooth_image(256, 256), factors=(1, 2))
    coords = coords_of(*places)
    with open_slide(path) as image:
        groups = TileReader(image, tile, 128).groups(coords)
    assert sorted(np.concatenate([*groups, np.empty(0, np.int64)]).tolist()) == list(range(len(places)))
    assert all(0 < len(group) <= GROUP_TILES for group in groups)


def test_groups_are_neighbors_and_decode_the_file_once(tmp_path, monkeypatch):
    pixels = smooth_image(2560, 2560)
    path = write_slide(tmp_path / "a.tif", pixels, tile_px=256)
    steps = np.arange(100, 2560 - 256, 256)
    coords = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
    decoded = []
    with open_slide(path) as image:
        reader = TileReader(image, 256, 256)
        groups = reader.groups(coords)
        put = image._cache.put
        monkeypatch.setattr(image._cache, "put", lambda key, value: (decoded.append(key), put(key, value)))
        with ThreadPoolExecutor(2) as pool:
            grouped = list(pool.map(lambda group: reader.read(coords[group]), groups))
        alone = [reader.read(coords[index : index + 1])[0] for index in np.concatenate(groups)]
    assert len(groups) == 4
    assert len(set(decoded)) == 100
    assert len(decoded) <= 130
    np.testing.assert_array_equal(np.concatenate(grouped), alone)


def test_no_tiles(tmp_path):
    path = write_slide(tmp_path / "a.tif", smooth_image(256, 256))
    with open_slide(path) as image:
        reader = TileReader(image, 128, 64)
        assert reader.groups(coords_of()) == []
        assert reader.read(coords_of()).shape == (0, 64, 64, 3)


def test_an_unreadable_tile_is_named(tmp_path):
    path = write_slide(tmp_path / "a.tif", smooth_image(512, 512), compression="jpeg")
    with tifffile.TiffFile(path) as tiff:
        start = tiff.pages[0].dataoffsets[0]
    content = bytearray(path.read_bytes())
    content[start : start + 300] = bytes(300)
    path.write_bytes(content)
    with open_slide(path) as image:
        reader = TileReader(image, 64, 64)
        reader.read(coords_of((200, 200)))
        with pytest.raises(AsmilError, match=r"a\.tif: .*\(10, 20\)"):
            reader.read(coords_of((200, 200), (10, 20)))


@pytest.mark.parametrize(("file", "side"), [("CMU-1-Small-Region.svs", 256), ("test3-DAPI-2-387.ndpi", 561)])
def test_real_tiles(file, side):
    path = shared_file(SHARED_DATA / "slides" / file)
    tiles, level = read_tiles(path, side, 256, coords_of((1000, 1000), (1256, 2900)))
    assert level == (file.endswith("ndpi") and 1)
    assert tiles.shape == (2, 256, 256, 3)
    assert 0 < tiles[0].mean() < 255


class WatchedPage:
    """A page that may read from its file only under the lock: tifffile reads some attributes when first asked."""

    def __init__(self, page, lock):
        self._page, self._lock = page, lock

    def __getattr__(self, name):
        if name in ("jpegtables", "decode", "dataoffsets", "databytecounts"):
            assert self._lock.locked(), f"{name} is read while another thread may move the file's position"
        return getattr(self._page, name)


@pytest.mark.parametrize("compression", ["jpeg", "zlib"])
def test_threads_do_not_move_the_file_under_each_other(tmp_path, compression):
    write_slide(tmp_path / "a.tif", noise_image(300, 200), tile_px=64, compression=compression)
    with open_slide(tmp_path / "a.tif") as image:
        image._pages = tuple(WatchedPage(page, image._file_lock) for page in image._pages)
        assert image.read(10, 10, 0, 150, 100).shape == (100, 150, 3)
        assert (image.stored_jpeg(0, 1, 1) is not None) == (compression == "jpeg")
