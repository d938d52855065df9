"""Synthetic slides: the plan, the files, the truth, and that slides do not depend on each other."""

import json
from collections import Counter

import numpy as np
import openslide
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from shapely.geometry import shape

from asmil.errors import AsmilError
from asmil.settings.config import parse_settings
from asmil.synthetic.slides import SyntheticSlidesConfig, plan_slides, write_synthetic_slides
from asmil.synthetic.slides.folder import renderer
from asmil.synthetic.slides.layout import draw_layout, slide_truth
from asmil.synthetic.slides.rendering import BLOCK_PX, draw_light, draw_stain
from asmil.synthetic.slides.sprites import longest_um, sprite_bank

SMALL = SyntheticSlidesConfig(slides=4, mpp=1.0, side_mm_min=0.6, side_mm_max=0.8, seed=5)


def small(**changes: object) -> SyntheticSlidesConfig:
    return SMALL.model_copy(update=changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("synthetic") / "cohort"
    assert write_synthetic_slides(path, SMALL, workers=1) == path / "cohort.csv"
    return path


@given(st.integers(1, 80), st.floats(0.2, 0.8), st.integers(0, 2**32 - 1), st.integers(1, 5))
@settings(max_examples=40)
def test_the_plan_is_fair(slides, tumor, seed, sites):
    plans = plan_slides(small(slides=slides, tumor=tumor, seed=seed, sites=sites))
    table = pd.DataFrame([(p.slide, p.patient, p.split, p.site, p.label) for p in plans])
    table.columns = ["slide", "patient", "split", "site", "label"]
    assert table["slide"].is_unique
    for column in ("split", "site", "label"):
        assert (table.groupby("patient")[column].nunique() == 1).all()
    assert table.groupby("patient").size().max() <= 2
    assert set(table["site"]) <= set(range(sites))
    for _, part in table.groupby("split"):
        with_tumor = (part["label"] == "tumor").sum()
        assert len(part) * tumor - 1e-6 <= with_tumor < len(part) * tumor + 1
        assert len(part) < 5 or part["label"].nunique() == 2


def test_the_parts_have_the_stated_proportions_and_some_patients_two_slides():
    plans = plan_slides(small(slides=200))
    assert Counter(plan.split for plan in plans) == {"train": 100, "val": 40, "test": 60}
    slides_of = Counter(plan.patient for plan in plans)
    assert 0.08 < np.mean([count == 2 for count in slides_of.values()]) < 0.3


def test_every_part_of_a_cohort_of_ten_has_both_classes():
    parts = {(plan.split, plan.label) for plan in plan_slides(SyntheticSlidesConfig(slides=10))}
    assert len(parts) == 6


def test_a_longer_cohort_begins_with_the_shorter_one():
    assert plan_slides(small(slides=30))[:7] == plan_slides(small(slides=7))


def test_the_folder_holds_slides_annotations_manifest_and_truth(folder):
    cohort, truth = pd.read_csv(folder / "cohort.csv"), pd.read_csv(folder / "truth.csv")
    assert list(cohort.columns) == ["slide", "patient", "label", "split", "site", "image"]
    assert list(truth.columns) == ["slide", "tumor_mm2", "tissue_mm2", "foci"]
    assert list(cohort["slide"]) == list(truth["slide"])
    assert yaml.safe_load((folder / "synthetic_slides.yaml").read_text()) == SMALL.model_dump()
    has_tumor = cohort["label"] == "tumor"
    assert set(cohort["label"]) == {"normal", "tumor"}
    assert ((truth["tumor_mm2"] > 0) == has_tumor).all()
    assert ((truth["foci"] > 0) == has_tumor).all()
    assert (truth["tumor_mm2"] < truth["tissue_mm2"]).all()
    for ending in ("xml", "geojson"):
        assert {path.stem for path in (folder / "annotations").glob(f"*.{ending}")} == set(cohort["slide"][has_tumor])
    assert not list(folder.rglob("*.partial"))


def test_openslide_opens_every_slide(folder):
    for image in pd.read_csv(folder / "cohort.csv")["image"]:
        with openslide.OpenSlide(folder / image) as slide:
            assert float(slide.properties["openslide.mpp-x"]) == pytest.approx(1.0)
            assert slide.level_downsamples == (1, 4, 16)
            assert all(600 - 8 <= side <= 800 + 8 for side in slide.dimensions)


def test_annotations_outline_the_tumor_of_the_truth(folder):
    truth = pd.read_csv(folder / "truth.csv").query("foci > 0")
    assert len(truth)
    for row in truth.itertuples():
        features = json.loads((folder / "annotations" / f"{row.slide}.geojson").read_text())["features"]
        polygons = [shape(feature["geometry"]) for feature in features]
        assert len(polygons) == row.foci
        assert all(polygon.is_valid for polygon in polygons)
        area_mm2 = sum(polygon.area for polygon in polygons) * 1e-6
        assert area_mm2 == pytest.approx(row.tumor_mm2, rel=0.12)


def test_the_same_command_again_makes_only_what_is_missing(folder):
    slides = sorted((folder / "slides").glob("*.tif"))
    annotation = sorted((folder / "annotations").glob("*.xml"))[0]
    before = {path: path.stat().st_mtime_ns for path in slides}
    lost, text = slides[1].read_bytes(), annotation.read_text()
    slides[1].unlink()
    annotation.unlink()
    done = []
    write_synthetic_slides(folder, SMALL, progress=lambda *numbers: done.append(numbers), workers=1)
    assert done == [(count, 4) for count in (1, 2, 3, 4)]
    assert slides[1].read_bytes() == lost
    assert annotation.read_text() == text
    assert all(path.stat().st_mtime_ns == before[path] for path in slides if path != slides[1])
    done.clear()
    write_synthetic_slides(folder, SMALL, progress=lambda *numbers: done.append(numbers))
    assert done == []


def test_slides_do_not_depend_on_the_number_of_slides_or_processes(folder, tmp_path):
    write_synthetic_slides(tmp_path, small(slides=2), workers=2)
    for path in sorted((tmp_path / "slides").glob("*.tif")):
        assert path.read_bytes() == (folder / "slides" / path.name).read_bytes()
    assert (folder / "truth.csv").read_text().startswith((tmp_path / "truth.csv").read_text())


def test_other_settings_and_other_folders_are_refused(folder, tmp_path):
    with pytest.raises(AsmilError, match="seed: there 5, asked 6"):
        write_synthetic_slides(folder, small(seed=6))
    (tmp_path / "cohort.csv").write_text("slide,label\n")
    with pytest.raises(AsmilError, match=r"synthetic_slides.yaml"):
        write_synthetic_slides(tmp_path, SMALL)
    (tmp_path / "synthetic_slides.yaml").write_text("a: [")
    with pytest.raises(AsmilError, match=r"synthetic_slides\.yaml"):
        write_synthetic_slides(tmp_path, SMALL)


def test_sides_must_be_ordered():
    with pytest.raises(AsmilError, match=r"side_mm_min.*2\.0.*side_mm_max.*1\.0"):
        parse_settings(SyntheticSlidesConfig, {"side_mm_min": 2.0, "side_mm_max": 1.0})


@pytest.mark.parametrize("mpp", [0.23, 0.5, 2.0])
def test_truth_holds_on_many_slides(mpp):
    config = small(slides=24, mpp=mpp, side_mm_min=0.5, side_mm_max=1.2)
    for plan in plan_slides(config):
        layout = draw_layout(config, plan)
        truth = slide_truth(layout)
        assert (truth.tumor_mm2 > 0) == plan.has_tumor == bool(truth.regions)
        share = layout.tissue.mean()
        assert 0.1 < share < 0.95
        assert not (layout.tumor & ~layout.tissue).any()
        assert not (layout.nests & ~layout.tumor).any()
        assert layout.nests.sum() >= 0.5 * layout.tumor.sum()
        assert not (layout.glands & (layout.tumor | layout.lymphoid)).any()
        assert all(side % 16 == 0 for side in layout.size_px)
        for region in truth.regions:
            assert (region.outline >= 0).all()
            assert (region.outline <= layout.size_px).all()


def test_tissue_is_stained_where_the_layout_says():
    config = small(pen=0.0)
    for plan in plan_slides(config):
        layout = draw_layout(config, plan)
        pixels = np.concatenate(list(renderer(config, plan, layout).strips()))
        assert pixels.shape == (layout.size_px[1], layout.size_px[0], 3)
        tissue = layout.grid.enlarged(layout.grid.signed_distance(layout.tissue), 0, 0, *layout.size_px)
        light = layout.grid.enlarged(draw_light(config, plan, layout), 0, 0, *layout.size_px)
        darker = light.astype(int).sum(2) - pixels.astype(int).sum(2)
        assert np.mean(darker[tissue > 138] > 40) > 0.6
        assert np.mean(darker[tissue < 118] < 40) > 0.999


def test_blocks_meet_without_a_seam():
    config = small(slides=3, side_mm_min=1.1, side_mm_max=1.1, pen=0.0)
    ratios = []
    for plan in plan_slides(config):
        pixels = np.concatenate(list(renderer(config, plan, draw_layout(config, plan)).strips())).astype(int)
        for axis in (0, 1):
            step = np.abs(np.diff(pixels, axis=axis)).mean(axis=(1 - axis, 2))
            ratios.append(step[BLOCK_PX - 1] / step[BLOCK_PX - 16 : BLOCK_PX + 16].mean())
    assert 0.8 < np.mean(ratios) < 1.2


def test_sites_stain_differently_and_slides_a_little():
    def colors(plan):
        stain = draw_stain(0, plan)
        return np.concatenate([stain.hematoxylin[150, 0], stain.eosin[110, 0]]).astype(float)

    plans = plan_slides(SyntheticSlidesConfig(slides=200))
    table = np.stack([colors(plan) for plan in plans])
    sites = np.array([plan.site for plan in plans])
    medians = np.stack([np.median(table[sites == site], axis=0) for site in range(3)])
    assert len(np.unique(medians, axis=0)) == 3
    assert len(np.unique(table, axis=0)) > 150


def test_pen_marks_are_on_the_stated_share_of_slides():
    config, none = small(slides=60, pen=0.5), small(slides=60, pen=0.0)
    plans = plan_slides(config)
    layout = draw_layout(config, plans[0])
    marked = [(draw_light(config, plan, layout) != draw_light(none, plan, layout)).any() for plan in plans]
    assert 0.3 < np.mean(marked) < 0.7


def test_sprites_stay_within_their_reach():
    for mpp in (1.0, 2.0):
        bank = sprite_bank(mpp)
        assert all(sprite.shape[0] == sprite.shape[1] and sprite.shape[0] % 2 for sprite in bank)
        assert max(len(sprite) for sprite in bank) // 2 <= int(np.ceil(longest_um() / 2 / mpp)) + 2
        assert all(sprite.max() > 50 for sprite in bank)
