"""Tiles as pictures: every pixel of a map is the color of the tile that lies there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shapely.geometry import MultiPolygon, box

from array_slide import ArraySlide
from asmil import AsmilError
from asmil.cohort.source import FeatureInfo, FeatureSource
from asmil.explain.canvas import boxes_of, boxes_text, nice_length, on_any_ground, shortened, text_width
from asmil.explain.color_scale import color_scale, lookup_table, percentiles
from asmil.explain.contact_sheet import bottom_tiles, contact_sheet, extreme_tiles, top_tiles
from asmil.explain.figure import (
    Panel,
    View,
    arrange,
    draw_contours,
    draw_map,
    map_panels,
    panel_with_legend,
    tissue_view,
)
from asmil.explain.overlay_tiff import write_overlay
from asmil.explain.tile_map import TileMap, checked_values, slide_frame
from asmil.explain.tile_raster import NO_TILE, tile_raster
from asmil.slides.opening import open_slide


def grid(columns: int, rows: int, step: float, start: tuple[float, float] = (0, 0)) -> np.ndarray:
    x, y = np.meshgrid(np.arange(columns) * step + start[0], np.arange(rows) * step + start[1])
    return np.rint(np.stack([x.ravel(), y.ravel()], axis=1)).astype(np.int64)


@pytest.mark.parametrize("step", [256, 225.4])
def test_tiles_of_a_grid_are_one_pixel_each(step):
    coords = grid(40, 25, step, (512, 100))
    raster = tile_raster(coords, step)
    assert raster.index.shape == (25, 40)
    assert sorted(raster.index.ravel().tolist()) == list(range(1000))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40), st.sampled_from([1.0, 0.5]))
def test_the_center_of_every_tile_shows_that_tile(seed, count, overlap):
    draw = np.random.default_rng(seed)
    places = draw.choice(400, size=count, replace=False)
    tile = 100
    coords = np.stack([places % 20, places // 20], axis=1) * int(tile * overlap) + draw.integers(0, 5000, 2)
    raster = tile_raster(coords, tile)
    for number, (x, y) in enumerate(coords):
        assert raster.at([x + tile / 2], [y + tile / 2])[0, 0] == number


def test_tiles_on_grids_of_their_own_and_beyond_the_tiles():
    coords = np.concatenate([grid(5, 4, 256), grid(3, 3, 256, (2011, 77))])
    raster = tile_raster(coords, 256)
    for number, (x, y) in enumerate(coords):
        assert raster.at([x + 128], [y + 128])[0, 0] == number
    assert raster.at([-5, 1500, 9999], [-5])[0].tolist() == [NO_TILE] * 3
    assert tile_raster([[7, 9]], 64).at([7, 70.5], [9, 72.5]).tolist() == [[0, 0], [0, 0]]


def test_nothing_to_draw_is_refused():
    with pytest.raises(AsmilError):
        tile_raster(np.zeros((0, 2)), 256)
    with pytest.raises(AsmilError, match="tile-px"):
        tile_raster([[0, 0]], 0)


def test_a_map_has_the_colors_of_its_values_whatever_the_opacity_of_others():
    coords = grid(4, 2, 10)
    values = np.array([0.0, 1, 2, 3, 4, 5, 6, np.nan])
    scale = color_scale(values, "absolute", limits=(0, 6))
    frame = slide_frame("s", coords, tile_px=10.0)
    plain = draw_map(tissue_view(frame, None, 40), tile_raster(coords, 10), values, scale)
    assert plain.shape == (20, 40, 3)
    expected = lookup_table("viridis")[np.rint(np.arange(7) / 6 * 255).astype(int)]
    for number, color in enumerate(expected):
        row, column = divmod(number, 4)
        assert (plain[row * 10 : row * 10 + 10, column * 10 : column * 10 + 10] == color).all()
    assert len(np.unique(plain[10:, 30:])) == 1, "a tile without a value is not drawn"
    ground = View(np.full((20, 40, 3), 200, np.uint8), 40, 20, 0.0, 0.0, (1.0, 1.0))
    half = draw_map(ground, tile_raster(coords, 10), values, scale, 0.5).astype(int)
    under = int(half[15, 35, 0])
    assert abs(half[5, 5] - (expected[0].astype(int) + under) / 2).max() <= 1
    assert abs(half[5, 35] - (expected[3].astype(int) + under) / 2).max() <= 1


def test_scales_show_their_numbers():
    values = np.linspace(0, 10, 101)
    ranks = color_scale(values, "percentile")
    assert [text.split()[-1] for _, text in ranks.ticks()] == ["0.0", "2.5", "5.0", "7.5", "10.0"]
    signed = color_scale(values - 4)
    assert signed.kind == "absolute"
    assert signed.low == -signed.high
    assert signed.positions(0.0) == 0.5
    clipped = color_scale(values, "absolute", limits=(2, 8)).ticks()
    assert clipped[0][1].startswith("≤")
    assert clipped[-1][1].startswith("≥")
    assert len(color_scale(np.ones(5), "absolute").ticks()) == 1
    assert percentiles([2.0], np.array([2.0])).tolist() == [0.5]
    assert percentiles(np.ones(3), np.ones(3)).tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    "arguments",
    [
        {"values": [np.nan]},
        {"values": [np.inf, 1.0]},
        {"values": [1.0, 2.0], "color_map": "jet"},
        {"values": [1.0, 2.0], "kind": "percentile", "limits": (0, 1)},
        {"values": [1.0, 2.0], "limits": (1, 0)},
    ],
)
def test_scales_that_cannot_be_are_refused(arguments):
    with pytest.raises(AsmilError):
        color_scale(**arguments)


def info(**known) -> FeatureInfo:
    return FeatureInfo(
        source=FeatureSource("f.h5"), layout="asmil", n_tiles=1, width=4, dtype="float32", n_bytes=1, **known
    )


def test_frames_refuse_what_does_not_fit():
    image = ArraySlide(np.full((90, 120, 3), 255, np.uint8))
    coords = grid(3, 2, 32)
    good = slide_frame("s", coords, info(tile_px_level0=32, slide_width_px=120, slide_height_px=90), image)
    assert good.size_px == (120, 90)
    with pytest.raises(AsmilError, match=r"s: .*coordinates"):
        slide_frame("s", None, info(tile_px_level0=32), image)
    with pytest.raises(AsmilError, match="tile-px"):
        slide_frame("s", coords, info(), image)
    with pytest.raises(AsmilError, match="240 x 180"):
        slide_frame("s", coords, info(tile_px_level0=32, slide_width_px=240, slide_height_px=180), image)
    with pytest.raises(AsmilError, match="outside"):
        slide_frame("s", coords * 10, info(tile_px_level0=32), image)
    without_image = slide_frame("s", coords, info(tile_um=16.0, tile_px=32), None, mpp=0.5)
    assert (without_image.tile_px, without_image.size_px) == (32, (96, 64))
    with pytest.raises(AsmilError, match="5 scores for 6 tiles"):
        checked_values("s", np.zeros(5), 6)
    with pytest.raises(AsmilError, match="not numbers"):
        checked_values("s", np.array(["a"] * 6), 6)


def test_a_figure_with_annotations_and_the_contact_sheet():
    draw = np.random.default_rng(0)
    image = ArraySlide(draw.integers(0, 255, (200, 300, 3), dtype=np.uint8))
    frame = slide_frame("slide-1", grid(9, 6, 32), image=image, tile_px=32.0)
    values = draw.random(54)
    scale = color_scale(values)
    view = tissue_view(frame, image, 300)
    shapes = [MultiPolygon([box(64, 64, 128, 160)])]
    shown = TileMap(values, "attention")
    panels = map_panels(frame, view, [shown], [scale], shapes)
    assert len(panels) == 3
    assert (draw_contours(view.pixels, view, shapes) != view.pixels).any()
    figure, pictures = arrange("slide-1", "about", panels)
    assert figure.shape[1] > 3 * 300
    shown_at = boxes_of(boxes_text(pictures))
    assert [box.height for box in shown_at].count(view.height) == 3
    assert (figure[shown_at[0].pixels] == panels[0].pixels).all()
    drawn = on_any_ground(figure, shown_at)
    assert all((drawn[box.pixels][..., 3] == 255).all() for box in shown_at)
    assert (drawn[..., 3] == 0).any(), "paper is left out"
    sheet = contact_sheet(frame, image, shown, scale, "about", 4)
    assert sheet.dtype == np.uint8
    assert (sheet != 255).any()
    assert top_tiles(np.array([1.0, np.nan, 3.0, 3.0]), 2).tolist() == [2, 3]
    assert bottom_tiles(np.array([1.0, np.nan, 3.0, 0.5]), 9).tolist() == [3, 0, 2]


@pytest.mark.parametrize("tiles", [1, 2, 3, 9, 18, 19, 40])
def test_no_tile_is_among_the_highest_and_the_lowest(tiles):
    values = np.append(np.arange(tiles, dtype=float), np.nan)
    highest, lowest = extreme_tiles(values, 9)
    assert not set(highest) & set(lowest)
    assert len(highest) + len(lowest) == min(tiles, 18)
    assert highest[0] == tiles - 1


@pytest.mark.parametrize("with_slide", [True, False])
def test_the_overlay_tiff_has_the_map_on_every_level(tmp_path, with_slide):
    image = ArraySlide(np.full((700, 900, 3), 255, np.uint8)) if with_slide else None
    coords = grid(7, 5, 128)
    values = np.arange(35.0)
    frame = slide_frame("s", coords, image=image, mpp=0.5, tile_px=128.0)
    write_overlay(tmp_path / "o.tif", frame, image, values, color_scale(values))
    with open_slide(tmp_path / "o.tif") as written:
        assert len(written.level_sizes) == 3
        assert written.resolution.mpp == pytest.approx(0.5)
        low, high = written.read(40, 40, 0, 20, 20).mean(), written.read(800, 560, 0, 20, 20)
        assert high[..., 1].mean() > high[..., 2].mean() + 40, "yellow where values are high"
        assert low < high.mean()
    write_overlay(tmp_path / "coarse.tif", frame, image, values, color_scale(values), mpp=2.0)
    with open_slide(tmp_path / "coarse.tif") as written:
        assert written.size == (round(frame.size_px[0] / 4), round(frame.size_px[1] / 4))


def test_words_fit_into_their_room():
    assert text_width(shortened("slide-name" * 12, 200), 14) <= 200
    assert shortened("short", 200) == "short"
    assert nice_length(1234) == 1000


@pytest.mark.parametrize("scaled", [True, False])
def test_a_panel_for_pages_has_no_paper(scaled: bool) -> None:
    pixels = np.full((200, 340, 3), 90, dtype=np.uint8)
    scale = color_scale(np.linspace(0.0, 1.0, 50)) if scaled else None
    drawn = panel_with_legend(Panel("map", pixels, scale, "attention"))
    assert drawn.shape[1:] == (340, 4)
    assert (drawn[:200, :, :3] == 90).all()
    assert (drawn[:200, :, 3] == 255).all()
    below = drawn[200:, :, 3]
    assert (len(below) > 0) == scaled
    if scaled:
        assert (below == 0).mean() > 0.5
        assert (below == 255).any()
