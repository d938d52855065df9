"""Blurred and folded tiles, on drawn tissue and on a real slide with known damage."""

import cv2
import numpy as np
import pytest

from array_slide import ArraySlide, texture
from asmil.slides.opening import open_slide
from asmil.slides.overview import read_overview
from asmil.slides.quality import Stain, TileQuality, measure_quality, tile_focus, tile_fold, tissue_stain
from asmil.slides.settings import QualityConfig, TilingConfig, TissueConfig
from asmil.slides.tiling import TileReader, place_tiles
from asmil.slides.tissue.auto import auto_tissue
from shared_data import SHARED_DATA, shared_file

CONFIG = QualityConfig()
WHITE = 243


def blurred(pixels: np.ndarray, sigma_px: float) -> np.ndarray:
    """A blurred copy, compressed as a scanner does."""
    _, encoded = cv2.imencode(".jpg", cv2.GaussianBlur(pixels, (0, 0), sigma_px))
    return np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR))


def test_focus_falls_with_blur_whatever_the_contrast():
    tile = texture(256)
    pale = np.rint(WHITE - (WHITE - tile.astype(float)) / 2).astype(np.uint8)
    sharp, soft, lost = (tile_focus(blurred(tile, sigma), 0.5) for sigma in (0.3, 1.0, 4.0))
    assert sharp > soft > CONFIG.min_focus > lost
    assert tile_focus(pale, 0.5) > CONFIG.min_focus > tile_focus(blurred(pale, 4.0), 0.5)


def test_focus_is_that_of_the_tissue_and_not_of_the_scanner():
    fine = cv2.GaussianBlur(texture(512), (0, 0), 3.0)
    coarse = cv2.resize(fine, (256, 256), interpolation=cv2.INTER_AREA)
    assert tile_focus(fine, 0.25) == pytest.approx(tile_focus(coarse, 0.5), rel=0.05)


def test_tiles_without_detail_and_small_tiles_are_not_called_blurred():
    assert tile_focus(np.full((256, 256, 3), WHITE, np.uint8), 0.5) == pytest.approx(1.0)
    assert np.isfinite(tile_focus(texture(16), 0.5))
    assert tile_fold(texture(16), 0.5, Stain(0.2, 0.2)) == 0


def test_a_fold_is_darker_and_more_colorful_than_the_tissue_and_nuclei_only_darker():
    slide = ArraySlide(texture(1024), mpp=2.0)
    stain = tissue_stain(read_overview(slide, max_side=512), slide.resolution, auto_tissue(slide))
    tile = texture(256, seed=1)
    fold, nuclei = tile.copy(), tile.copy()
    layer = texture(256, seed=2)[:, :64] / WHITE
    fold[:, 64:128] = fold[:, 64:128] * layer**2
    nuclei[:, 64:128] = (60, 50, 80)
    plain, folded, dense = (tile_fold(pixels, 0.5, stain) for pixels in (tile, fold, nuclei))
    assert plain == 0
    assert folded == pytest.approx(0.25, abs=0.03)
    assert dense < CONFIG.max_fold


def test_no_tissue_has_no_folds():
    slide = ArraySlide(np.full((300, 300, 3), WHITE, np.uint8))
    stain = tissue_stain(read_overview(slide, max_side=300), slide.resolution, auto_tissue(slide))
    assert tile_fold(texture(256), 0.5, stain) == 0


def test_a_real_slide_and_damaged_copies_of_it():
    with open_slide(shared_file(SHARED_DATA / "slides" / "CMU-1-Small-Region.svs")) as image:
        tissue = auto_tissue(image)
        coords = place_tiles(image, tissue, TissueConfig(), TilingConfig(), 257)
        tiles = TileReader(image, 257, 256).read(coords)
        stain = tissue_stain(read_overview(image, max_side=1024), image.resolution, tissue)

    def shares(pixels: np.ndarray) -> dict[str, float]:
        flags = measure_quality(pixels, 0.5, stain).flags(CONFIG)
        return {name: float(flagged.mean()) for name, flagged in flags.items()}

    assert max(shares(tiles).values()) < 0.03
    for sigma_um in (1.5, 3.0):
        assert shares(np.stack([blurred(tile, sigma_um / 0.5) for tile in tiles]))["blurred"] > 0.95
    full = tiles[(tiles < 230).any(axis=3).mean(axis=(1, 2)) > 0.95]
    mirrored = (full[:, :, ::-1] / WHITE) * (full[:, ::-1] / WHITE)
    assert shares((full * mirrored).astype(np.uint8))["folded"] > 0.9


def test_values_of_tiles_are_entered_by_row():
    quality = TileQuality.unmeasured(3)
    tiles = np.stack([texture(64), blurred(texture(64), 6.0)])
    quality.put(np.array([2, 0]), measure_quality(tiles, 0.5, Stain(0.2, 0.2)))
    assert quality.focus[2] > quality.focus[0]
    assert np.isnan(quality.focus[1])
    assert not quality.flags(CONFIG)["blurred"][1]
