"""Tissue without tuning: drawings whose tissue is known, and the real slides where they are."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from array_slide import EOSIN, NUCLEI, PALE_EOSIN, ArraySlide, as_jpeg, ellipse, glass
from asmil.slides.settings import ClamConfig, TissueConfig
from asmil.slides.tissue.auto import auto_tissue, drop_small, fill_small, mask_regions, otsu
from asmil.slides.tissue.finding import find_tissue
from asmil.slides.tissue.geojson import region_shape, tissue_geojson
from shared_data import REPOSITORY, SHARED_DATA, shared_file


def iou(found: np.ndarray, truth: np.ndarray) -> float:
    return float((found & truth).sum() / max(1, (found | truth).sum()))


def ellipse_truth(shape: tuple[int, ...], *ellipses: tuple[tuple[int, int], tuple[int, int]]) -> np.ndarray:
    truth = np.zeros(shape[:2], dtype=np.uint8)
    for center, axes in ellipses:
        cv2.ellipse(truth, center, axes, 0, 0, 360, 1, cv2.FILLED)
    return truth > 0


@pytest.mark.parametrize("stain", [EOSIN, PALE_EOSIN, NUCLEI, (200, 200, 230), (180, 130, 90)])
@pytest.mark.parametrize("color", [(243, 243, 243), (242, 236, 239), (236, 232, 214), (215, 217, 215)])
def test_finds_stain_on_any_glass(stain: tuple[int, int, int], color: tuple[int, int, int]) -> None:
    pixels = glass(color=color)
    stained = tuple(round(light * white / 243) for light, white in zip(stain, color, strict=True))
    ellipse(pixels, (240, 200), (150, 90), stained)
    found = auto_tissue(ArraySlide(as_jpeg(pixels)))
    assert iou(found.mask, ellipse_truth(pixels.shape, ((240, 200), (150, 90)))) > 0.95
    assert len(found.regions) == 1
    assert found.notes == ()


@pytest.mark.parametrize("noise", [0, 2, 6])
def test_empty_glass_is_not_split_in_two(noise: float) -> None:
    found = auto_tissue(ArraySlide(as_jpeg(glass(noise=noise), quality=30)))
    assert not found.mask.any()
    assert found.regions == ()
    assert found.notes == ("no tissue found",)


def test_a_little_tissue_on_much_glass() -> None:
    pixels = glass(1500, 900)
    ellipse(pixels, (400, 300), (25, 18), PALE_EOSIN)
    found = auto_tissue(ArraySlide(as_jpeg(pixels)))
    assert iou(found.mask, ellipse_truth(pixels.shape, ((400, 300), (25, 18)))) > 0.8


def test_all_tissue_stays_whole() -> None:
    random = np.random.default_rng(1)
    share = cv2.GaussianBlur(random.random((300, 300, 1)).astype(np.float32), (0, 0), 6)[..., None]
    share = (share - share.min()) / np.ptp(share)
    pixels = (np.asarray(EOSIN) * (1 - share) + np.asarray(NUCLEI) * share).astype(np.uint8)
    found = auto_tissue(ArraySlide(as_jpeg(pixels)))
    assert found.share == 1.0
    assert found.notes == ("tissue nearly everywhere (100.0%)",)


def test_stitched_gray_background_is_glass() -> None:
    pixels = np.full((400, 500, 3), 255, dtype=np.uint8)
    pixels[60:340, 80:420] = glass(340, 280, color=(242, 236, 239))
    ellipse(pixels, (250, 200), (120, 80))
    found = auto_tissue(ArraySlide(as_jpeg(pixels)))
    assert iou(found.mask, ellipse_truth(pixels.shape, ((250, 200), (120, 80)))) > 0.95


@pytest.mark.parametrize("ink", [(30, 60, 160), (20, 110, 80), (25, 22, 26), (200, 18, 20)])
def test_pen_marks_are_left_out(ink: tuple[int, int, int]) -> None:
    pixels = glass()
    ellipse(pixels, (200, 200), (150, 90))
    cv2.line(pixels, (430, 40), (430, 360), ink, 30)
    cv2.line(pixels, (200, 100), (200, 300), ink, 24)
    cv2.circle(pixels, (110, 200), 14, ink, cv2.FILLED)  # smaller than the holes that are filled
    pixels = as_jpeg(pixels)
    stroke = np.zeros(pixels.shape[:2], dtype=np.uint8)
    cv2.line(stroke, (430, 40), (430, 360), 1, 30)
    cv2.line(stroke, (200, 100), (200, 300), 1, 24)
    cv2.circle(stroke, (110, 200), 14, 1, cv2.FILLED)
    found = auto_tissue(ArraySlide(pixels))
    assert not (found.mask & (stroke > 0)).any()
    assert iou(found.mask, ellipse_truth(pixels.shape, ((200, 200), (150, 90))) & (stroke == 0)) > 0.85
    assert "pen marks" in found.notes[0]
    if max(ink) > 100:
        kept = auto_tissue(ArraySlide(pixels), TissueConfig(pen=False))
        assert (kept.mask & (stroke > 0)).sum() > 0.9 * stroke.sum()


def test_dense_nuclei_and_blood_are_not_ink() -> None:
    pixels = glass()
    ellipse(pixels, (150, 200), (100, 90), (42, 18, 54))
    ellipse(pixels, (370, 200), (100, 90), (217, 71, 95))
    found = auto_tissue(ArraySlide(as_jpeg(pixels)))
    assert found.notes == ()
    assert len(found.regions) == 2


def test_dense_tissue_at_the_border_is_no_frame() -> None:
    pixels = glass()
    pixels[150:400, 200:500] = (42, 18, 54)
    found = auto_tissue(ArraySlide(as_jpeg(pixels)))
    assert found.mask[155:, 205:].all()


def test_frames_and_cover_slip_lines_are_left_out() -> None:
    pixels = glass()
    ellipse(pixels, (250, 210), (120, 80))
    pixels[:25] = 20
    pixels[:, -30:] = (62, 58, 60)
    cv2.line(pixels, (40, 0), (55, 399), (150, 112, 120), 4)
    pixels = as_jpeg(pixels)
    truth = ellipse_truth(pixels.shape, ((250, 210), (120, 80)))
    found = auto_tissue(ArraySlide(pixels))
    assert iou(found.mask, truth) > 0.95
    assert found.notes == ()
    kept = auto_tissue(ArraySlide(pixels), TissueConfig(edges=False, pen=False))
    assert kept.mask[:, 40:56].any()


def test_a_slender_core_is_no_line() -> None:
    pixels = glass()
    cv2.line(pixels, (30, 100), (470, 130), EOSIN, 30)  # 240 um
    assert auto_tissue(ArraySlide(as_jpeg(pixels))).mask.sum() > 0.9 * 440 * 30


def test_sizes_are_microns_so_that_scans_of_20x_and_40x_agree() -> None:
    pixels = glass(600, 400)
    ellipse(pixels, (200, 200), (150, 120))
    ellipse(pixels, (200, 200), (12, 12), (243, 243, 243))  # 452 px of 64 um2: filled
    ellipse(pixels, (120, 200), (25, 25), (243, 243, 243))  # a hole
    ellipse(pixels, (450, 100), (12, 12))  # dropped
    ellipse(pixels, (450, 300), (25, 25))
    coarse = auto_tissue(ArraySlide(pixels, mpp=8.0))
    fine = auto_tissue(ArraySlide(cv2.resize(pixels, None, fx=4, fy=4, interpolation=cv2.INTER_CUBIC), mpp=2.0))
    for found in (coarse, fine):
        assert sorted(len(region.holes) for region in found.regions) == [0, 1]
    assert iou(coarse.mask, fine.mask) > 0.97
    everything = TissueConfig(min_area_um2=0, min_hole_um2=0)
    found = auto_tissue(ArraySlide(pixels, mpp=8.0), everything)
    assert sorted(len(region.holes) for region in found.regions) == [0, 0, 2]


def test_an_island_in_a_hole_is_a_piece_of_its_own() -> None:
    pixels = glass(600, 400)
    ellipse(pixels, (300, 200), (200, 160))
    ellipse(pixels, (300, 200), (120, 100), (243, 243, 243))
    ellipse(pixels, (300, 200), (50, 40))
    found = auto_tissue(ArraySlide(pixels))
    assert sorted(len(region.holes) for region in found.regions) == [0, 1]
    assert found.mask[200, 300]
    assert not found.mask[200, 200]


def test_without_resolution_sizes_are_relative_and_it_is_said() -> None:
    pixels = glass(3000, 1000)
    ellipse(pixels, (1500, 500), (600, 300))
    found = auto_tissue(ArraySlide(pixels, mpp=None))
    assert found.mask.shape == (683, 2048)
    (note,) = found.notes
    assert "resolution" in note
    assert len(found.regions) == 1


def test_fluorescence_is_said_to_be_none_of_ours() -> None:
    pixels = np.zeros((300, 300, 3), dtype=np.uint8)
    ellipse(pixels, (150, 150), (60, 60), (0, 10, 140))
    found = auto_tissue(ArraySlide(pixels))
    assert any("fluorescence" in note for note in found.notes)
    assert iou(found.mask, ellipse_truth(pixels.shape, ((150, 150), (60, 60)))) > 0.9


@pytest.mark.parametrize("side", [1, 2, 7])
@pytest.mark.parametrize("mpp", [None, 0.25, 8.0, 300.0])
def test_slides_of_a_few_pixels(side: int, mpp: float | None) -> None:
    pixels = np.full((side, side + 1, 3), EOSIN, dtype=np.uint8)
    found = auto_tissue(ArraySlide(pixels, mpp), TissueConfig(min_area_um2=0))
    assert found.mask.all()


def test_every_setting_is_documented() -> None:
    page = (REPOSITORY / "docs" / "tissue.md").read_text(encoding="utf-8")
    assert all(f"`tissue.{name}" in page for name in TissueConfig.model_fields)
    assert all(f"`{name}" in page for name in ClamConfig.model_fields if name not in ("preset", "level"))


def test_methods_none_and_clam() -> None:
    pixels = glass(1000, 600)
    ellipse(pixels, (500, 300), (300, 200))
    whole = find_tissue(ArraySlide(pixels), TissueConfig(method="none"))
    assert whole.share == 1.0
    assert whole.regions[0].outline.max(axis=0).tolist() == [1000, 600]
    clam = find_tissue(ArraySlide(pixels), TissueConfig(method="clam", clam=ClamConfig(a_t=0.1, sthresh=20)))
    assert len(clam.regions) == 1
    assert iou(clam.mask, ellipse_truth(pixels.shape, ((500, 300), (300, 200)))) > 0.95


masks = st.integers(0, 2**32 - 1).map(
    lambda seed: cv2.GaussianBlur(np.random.default_rng(seed).random((40, 50)).astype(np.float32), (0, 0), 2) > 0.5
)


@given(masks, st.integers(0, 60))
def test_small_pieces_and_holes(mask: np.ndarray, least: int) -> None:
    dropped, filled = drop_small(mask, least), fill_small(mask, least)
    assert not (dropped & ~mask).any()
    assert not (mask & ~filled).any()
    sizes = cv2.connectedComponentsWithStats(dropped.astype(np.uint8))[2][1:, cv2.CC_STAT_AREA]
    assert (sizes >= least).all()
    assert (drop_small(dropped, least) == dropped).all()
    assert (fill_small(filled, least) == filled).all()


@given(masks)
def test_outlines_are_those_of_the_mask(mask: np.ndarray) -> None:
    regions = mask_regions(mask, (1.0, 1.0))
    assert len(regions) == cv2.connectedComponents(mask.astype(np.uint8), connectivity=8)[0] - 1
    shapes = [shape for region in regions if (shape := region_shape(region)) is not None]
    assert all(shape.is_valid for shape in shapes)
    # Outlines run through pixel centers: about half of the boundary pixels' area is outside.
    boundary = mask & ~(cv2.erode(mask.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0)
    assert abs(mask.sum() - sum(shape.area for shape in shapes)) <= boundary.sum() + 1


@given(st.lists(st.integers(0, 50), min_size=2, max_size=40).filter(lambda counts: sum(counts) > 0))
def test_otsu_is_the_best_of_all_splits(numbers: list[int]) -> None:
    counts, values = np.asarray(numbers), np.arange(float(len(numbers)))
    chosen = otsu(counts, values)

    def between(split: int) -> float:
        low, high = counts[: split + 1], counts[split + 1 :]
        if not low.sum() or not high.sum():
            return 0.0
        gap = np.average(values[: split + 1], weights=low) - np.average(values[split + 1 :], weights=high)
        return float(low.sum() * high.sum() * gap**2)

    best = max(between(split) for split in range(len(counts)))
    assert between(chosen) == pytest.approx(best)


def test_geojson_is_what_qupath_opens() -> None:
    pixels = glass(600, 400)
    ellipse(pixels, (200, 200), (150, 120))
    ellipse(pixels, (200, 200), (50, 50), (243, 243, 243))
    found = auto_tissue(ArraySlide(pixels))
    collection = tissue_geojson(found)
    assert collection["type"] == "FeatureCollection"
    (feature,) = collection["features"]
    assert feature["properties"]["classification"]["name"] == "Tissue"
    assert feature["geometry"]["type"] == "Polygon"
    outline, hole = feature["geometry"]["coordinates"]
    assert outline[0] == outline[-1]
    assert hole[0] == hole[-1]
    assert all(isinstance(number, int) for point in outline for number in point)


@pytest.mark.parametrize(
    ("name", "low", "high", "pieces", "note"),
    [
        ("CMU-1-Small-Region.svs", 0.38, 0.45, 1, None),
        ("CMU-1-Small-Region_pyramid.tif", 0.38, 0.45, 1, None),
        ("TCGA-CR-7395-01A-01-TS1.svs", 0.60, 0.65, 2, "no resolution"),
        ("kidney-48-5.tif", 0.0, 0.005, 1, "no resolution"),
        ("synthetic-pyramid.tif", 0.48, 0.51, 4, "pen marks"),
        ("test3-DAPI-2-387.ndpi", 0.5, 0.9, 1, "dark background"),
    ],
)
def test_real_slides(name: str, low: float, high: float, pieces: int, note: str | None) -> None:
    from asmil.slides.opening import open_slide

    with open_slide(shared_file(SHARED_DATA / "slides" / name)) as image:
        found = auto_tissue(image)
    assert low <= found.share <= high
    assert len(found.regions) == pieces
    assert any(said.startswith(note) for said in found.notes) if note else found.notes == ()
