"""Pictures of tissue and tiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from array_slide import ArraySlide, ellipse, glass
from asmil.errors import AsmilError
from asmil.slides.overview import read_overview
from asmil.slides.qc import HOLE_COLOR, TISSUE_COLOR, draw_tissue, read_picture, write_jpeg, write_mask
from asmil.slides.tissue.auto import auto_tissue
from asmil.slides.tissue.regions import Tissue


def drawn_slide() -> ArraySlide:
    pixels = glass(1600, 1200)
    ellipse(pixels, (800, 600), (500, 400))
    ellipse(pixels, (800, 600), (150, 120), (243, 243, 243))
    return ArraySlide(pixels, mpp=2.0)


def qc_picture(slide: ArraySlide, tissue: Tissue, coords: np.ndarray | None, side: int, side_px: int) -> np.ndarray:
    overview = read_overview(slide, max_side=side_px)
    return draw_tissue(overview.pixels, overview.downsample, tissue, coords, side)


def close_to(picture: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    return np.abs(picture.astype(int) - color).max(axis=2) < 40


def test_outlines_lie_where_the_tissue_ends() -> None:
    slide = drawn_slide()
    picture = qc_picture(slide, auto_tissue(slide), None, 0, side_px=800)
    assert picture.shape == (600, 800, 3)
    green, blue = close_to(picture, TISSUE_COLOR), close_to(picture, HOLE_COLOR)
    assert np.flatnonzero(green[300])[[0, -1]] == pytest.approx([150, 650], abs=5)
    assert np.flatnonzero(blue[300])[[0, -1]] == pytest.approx([325, 475], abs=5)
    assert not green[300, 200:300].any()


def test_tiles_are_tinted_and_the_rest_is_not() -> None:
    slide = drawn_slide()
    tissue = auto_tissue(slide)
    plain = qc_picture(slide, tissue, None, 0, side_px=800)
    coords = np.asarray([[400, 400], [464, 400], [1560, 1180]])
    tiled = qc_picture(slide, tissue, coords, 64, side_px=800)
    changed = (tiled != plain).any(axis=2)
    assert changed[200:232, 200:264].mean() > 0.9
    assert changed[590:, 780:].mean() > 0.9
    assert not changed[:190].any()
    no_tiles = qc_picture(slide, tissue, np.zeros((0, 2), dtype=np.int64), 64, side_px=800)
    assert (no_tiles == plain).all()


def test_files_are_read_back(tmp_path: Path) -> None:
    pixels = glass(40, 30, color=(200, 120, 160), noise=0)
    write_jpeg(tmp_path / "a.jpg", pixels)
    assert np.abs(read_picture(tmp_path / "a.jpg").astype(int) - pixels).max() < 6
    mask = np.eye(20, 30) > 0
    write_mask(tmp_path / "deep" / "m.png", mask)
    assert ((read_picture(tmp_path / "deep" / "m.png")[..., 0] == 255) == mask).all()
    (tmp_path / "empty.jpg").write_bytes(b"")
    with pytest.raises(AsmilError, match=r"empty\.jpg"):
        read_picture(tmp_path / "empty.jpg")
