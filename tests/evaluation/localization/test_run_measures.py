"""Slides with maps that are known: what is measured of them, and of all of them together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asmil.cohort.manifest import Slide
from asmil.cohort.source import FeatureInfo, FeatureSource
from asmil.errors import AsmilError
from asmil.evaluation.localization import PRESETS, RankedTiles
from asmil.evaluation.localization.evaluated_maps import SlideMap
from asmil.evaluation.localization.localize import known_scalings, read_skip_list, summarize
from asmil.evaluation.localization.slide_evaluator import (
    LocalizationProtocol,
    SlideMeasures,
    limits_of,
    measure_slide,
    scaled_map,
)
from asmil.evaluation.localization.tile_maps import MaskFrame, frame_of
from asmil.evaluation.localization.tile_ranking import resampled_ranking
from asmil.tasks.classification import normal_labels

SIDE, TILE_PX = 12, 256
COORDS = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE)), axis=-1).reshape(-1, 2) * TILE_PX
FRAME = MaskFrame("s", COORDS, TILE_PX, (SIDE * TILE_PX, SIDE * TILE_PX), 0.25, True, 32)
SOURCE = FeatureSource("s.h5")
JUDGING = LocalizationProtocol(("minmax", "gated"), PRESETS["asmil_text"])


def slide_map(name: str, heat: np.ndarray, patient: str | None = None) -> SlideMap:
    slide = Slide(name, patient or name, "any", SOURCE)
    return SlideMap(slide, heat.astype(np.float64), np.array([0.5, 0.5]), 1, FRAME)


def measured(name: str, heat: np.ndarray, truth: np.ndarray | None, probability: float, patient=None) -> SlideMeasures:
    one = slide_map(name, heat, patient)
    scores = {name: scaled_map(one.heat, name, probability, None, True) for name in JUDGING.scalings}
    return measure_slide(one, truth, probability, scores, JUDGING)


def mask_of(tumor: np.ndarray) -> np.ndarray:
    """A mask whose tumor are whole tiles."""
    return np.kron(tumor.reshape(SIDE, SIDE), np.ones((TILE_PX // 32, TILE_PX // 32))).astype(bool)


@pytest.fixture
def tumor() -> np.ndarray:
    """Two regions far apart, 5 x 4 tiles and 4 x 4 tiles: large enough not to be isolated tumor cells."""
    tiles = np.zeros((SIDE, SIDE), dtype=bool)
    tiles[1:6, 1:5] = tiles[8:12, 7:11] = True
    return tiles.ravel()


def test_a_map_of_the_truth_is_perfect(tumor):
    one = measured("t", tumor, mask_of(tumor), 1.0)
    assert (one.n_regions, one.n_lesions, one.n_itc) == (2, 2, 0)
    assert one.tumor_mm2 == pytest.approx(36 * (TILE_PX * 0.25 / 1000) ** 2)
    assert (one.tile_auc, one.tile_ap) == (1.0, 1.0)
    for scaled in one.scaled.values():
        assert (scaled.dice, scaled.regions_found) == (1.0, 2.0)
        assert (scaled.without_missed_region, scaled.without_missed_tile) == (1.0, 1.0)
        assert scaled.hits.lesion_scores.tolist() == [1.0, 1.0]
        assert len(scaled.hits.false_positives) == 0
        assert np.isnan(scaled.specificity)


def test_one_tile_of_a_region_finds_it_but_misses_tiles(tumor):
    heat = np.zeros(SIDE * SIDE)
    heat[1 * SIDE + 1] = 1.0
    one = measured("t", heat, mask_of(tumor), 1.0).scaled["minmax"]
    assert one.dice == pytest.approx(2 / (1 + 36))
    assert (one.regions_found, one.without_missed_region, one.without_missed_tile) == (1.0, 0.0, 0.0)


def test_a_normal_slide_cannot_be_clean_under_minmax_but_when_gated(tumor):
    heat = np.random.default_rng(0).random(SIDE * SIDE)
    one = measured("n", heat, None, 0.2)
    assert one.is_normal
    assert one.best_specificity == 1 - 1 / SIDE**2
    assert one.scaled["minmax"].specificity == np.mean((heat - heat.min()) / np.ptp(heat) < 0.5)
    assert one.scaled["minmax"].hits.false_positives.max() == 1.0
    assert one.scaled["gated"].specificity == 1.0
    assert one.scaled["gated"].n_detections == 0
    assert np.isnan(one.scaled["gated"].dice)


def test_the_scale_of_the_cohort_is_that_of_fair_shares():
    flat = np.full(SIDE * SIDE, 1 / SIDE**2)
    peaked = np.zeros(SIDE * SIDE)
    peaked[5] = 1.0
    limits = limits_of([slide_map("a", flat), slide_map("b", peaked)], True)
    assert limits == (0.0, SIDE**2)
    assert scaled_map(flat, "cohort", 1.0, limits, True) == pytest.approx(np.full(SIDE**2, 1 / SIDE**2))
    assert limits_of([slide_map("a", flat - 3)], False) == pytest.approx((1 / SIDE**2 - 3, 1 / SIDE**2 - 3))


def test_numbers_of_all_slides_with_intervals_by_patient(tumor):
    noise = np.random.default_rng(1).random(SIDE * SIDE)
    half = tumor * (np.arange(SIDE * SIDE) < SIDE * SIDE // 2)
    slides = [
        measured("t1", tumor, mask_of(tumor), 0.9, "p1"),
        measured("t2", half, mask_of(tumor), 0.8, "p1"),
        measured("t3", 1 - tumor, mask_of(tumor), 0.9, "p2"),
        measured("n1", noise, None, 0.1, "p3"),
        measured("n2", noise, None, 0.1, "p4"),
    ]
    summary = summarize(slides, JUDGING.options, resamples=200, seed=0)
    assert (summary.n_tumor, summary.n_normal, summary.n_patients) == (3, 2, 4)
    assert (summary.n_tumor_patients, summary.n_normal_patients) == (2, 2)
    gated, minmax = summary.scaled["gated"].numbers, summary.scaled["minmax"].numbers
    dices = [1.0, 2 * 20 / (20 + 36), 0.0]
    assert gated["dice"].value == pytest.approx(np.mean(dices))
    assert gated["dice"].n == 3
    # patients are drawn, not slides: with p1 both of its slides come, so no draw of tumor slides beats their mean
    assert gated["dice"].interval == pytest.approx((0.0, np.mean(dices[:2])))
    assert gated["region_recall"].value == pytest.approx(3 / 6)
    assert gated["no_miss_regions"].value == pytest.approx(1 / 3)
    assert gated["specificity"].value == 1.0
    assert minmax["specificity"].value == pytest.approx(np.mean((noise - noise.min()) / np.ptp(noise) < 0.5))
    assert minmax["froc"].value < gated["froc"].value
    assert summary.unscaled["tile_auc"].value == pytest.approx(np.mean([1.0, 20 / 36 + 16 / 36 / 2, 0.0]))
    assert summary.unscaled["tile_auc"].n == 3


def test_measures_of_absent_kinds_are_undefined(tumor):
    summary = summarize([measured("t1", tumor, mask_of(tumor), 0.9)], JUDGING.options, 20, 0)
    assert np.isnan(summary.scaled["minmax"].numbers["specificity"].value)
    assert np.isnan(summary.scaled["minmax"].numbers["specificity"].interval.low)
    summary = summarize([measured("n", np.arange(144.0), None, 0.9)], JUDGING.options, 20, 0)
    assert np.isnan(summary.scaled["minmax"].numbers["froc"].value)
    assert "lesion" in summary.scaled["minmax"].froc.reason


@pytest.mark.parametrize(("n_slides", "n_tiles", "tolerance"), [(6, 40, 1e-12), (5, 4000, 1e-3)])
def test_resampled_rankings_are_those_of_the_exact_ones(n_slides, n_tiles, tolerance):
    rng = np.random.default_rng(0)
    tumor = [rng.random(n_tiles) < 0.2 * (slide % 3) for slide in range(n_slides)]
    scores = [np.round(rng.random(n_tiles) + 0.3 * part, 6 if n_tiles > 100 else 1) for part in tumor]
    counts = np.vstack([rng.integers(0, 3, (300, n_slides)), np.eye(n_slides)[0]])
    aucs, precisions = resampled_ranking(tumor, scores, counts.astype(float))
    exact = RankedTiles(tumor, scores)
    expected = [exact.measure(row) for row in counts]
    np.testing.assert_allclose(aucs, [one.auc for one in expected], atol=tolerance)
    np.testing.assert_allclose(precisions, [one.ap for one in expected], atol=tolerance)
    assert np.isnan(aucs[-1])


def info(**known: object) -> FeatureInfo:
    shape = {"layout": "asmil", "n_tiles": 4, "width": 8, "dtype": "float16", "n_bytes": 64}
    return FeatureInfo(source=SOURCE, **shape, **known)


@pytest.mark.parametrize(
    ("mpp", "tile_px", "downsample", "um"),
    [
        (0.243, 256, 32, 7.776),
        (0.25, 256, 32, 8.0),
        (0.5, 256, 16, 8.0),
        (1.0, 64, 8, 8.0),
        (None, 256, 32, 7.776),
        (0.25, 20, 16, 4.0),
    ],
)
def test_a_mask_pixel_is_about_as_large_as_in_camelyon(mpp, tile_px, downsample, um):
    frame = frame_of("s", info(tile_px_level0=tile_px, mpp=mpp), COORDS, None)
    assert frame.downsample == downsample
    assert frame.um_per_pixel == pytest.approx(um)
    assert not frame.size_is_stated
    assert frame.size_px == (11 * 256 + tile_px, 11 * 256 + tile_px)
    assert frame.shape[0] == -(-frame.size_px[1] // downsample)


def test_sizes_come_from_wherever_they_are_known():
    stated = frame_of("s", info(tile_px_level0=256, slide_width_px=5000, slide_height_px=4000), COORDS, 0.5)
    assert (stated.size_px, stated.size_is_stated, stated.mpp) == ((5000, 4000), True, 0.5)
    assert frame_of("s", info(tile_um=128.0, mpp=0.5), COORDS, None).tile_px == 256
    assert frame_of("s", info(tile_um=128.0, tile_px_level0=512), COORDS, None).mpp == 0.25
    with pytest.raises(AsmilError, match=r"^s: "):
        frame_of("s", info(), COORDS, None)


def test_which_labels_are_normal():
    assert normal_labels(["Normal", "tumor"]) == {"Normal"}
    assert normal_labels(["0", "1"]) == {"0"}
    assert normal_labels(["non_tumor", "benign", "luad"]) == {"non_tumor", "benign"}
    assert normal_labels(["luad", "lusc"]) == frozenset()
    assert normal_labels(["a", "b"], ["b"]) == {"b"}
    with pytest.raises(AsmilError, match="--normal c: "):
        normal_labels(["a", "b"], ["c"])


def test_a_list_of_slides_to_leave_out(tmp_path):
    (tmp_path / "skip.txt").write_text("# partly annotated\ntest_114, only in part\n\ntest_049  # a duplicate\n")
    assert read_skip_list(tmp_path / "skip.txt") == ("test_114", "test_049")
    with pytest.raises(AsmilError, match=r"no\.txt: "):
        read_skip_list(tmp_path / "no.txt")


def test_unknown_scalings_are_refused():
    assert known_scalings(["rank", "cohort"]) == ("rank", "cohort")
    with pytest.raises(AsmilError, match=r"--scaling gate: .*'gated'"):
        known_scalings(["gate"])


def test_a_frame_can_grow():
    assert replace(FRAME, size_px=(33, 65)).shape == (3, 2)
