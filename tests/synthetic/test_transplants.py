"""Transplants: real vectors, known witnesses, and no source slide on both sides of any split."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from asmil.cohort.features import read_bag
from asmil.cohort.manifest import load_cohort
from asmil.cohort.splits import make_splits
from asmil.errors import AsmilError
from asmil.synthetic.transplants import TransplantConfig, write_transplants
from small_tissues import write_tissue

SMALL = {"slides": 60, "tiles_min": 5, "tiles_max": 15, "witnesses": 2}


@pytest.fixture(scope="module")
def tissues(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tissues")
    return write_tissue(folder / "a", "breast", 0.0), write_tissue(folder / "b", "lung", 5.0, sites=8)


def made(folder, tissues, **settings):
    manifest = write_transplants(folder, *tissues, TransplantConfig(**{**SMALL, **settings}))
    return pd.read_csv(manifest), pd.read_parquet(folder / "tile_truth.parquet"), manifest


@pytest.fixture(scope="module")
def cohort(tissues, tmp_path_factory):
    return made(tmp_path_factory.mktemp("made"), tissues)


def test_no_source_slide_is_in_two_patients_or_in_two_roles_of_any_fold(cohort):
    table, truth, manifest = cohort
    of_source = truth.merge(table, on="slide").groupby("source")
    assert (of_source["patient"].nunique() == 1).all()
    assert (of_source["split"].nunique() == 1).all()
    for folds in (1, 3):
        splits = make_splits(load_cohort(manifest), folds, seed=1).table
        roles = truth.merge(splits, on="slide").groupby(["fold", "source"])["role"].nunique()
        assert (roles == 1).all()


def test_bags_are_vectors_of_one_site_and_a_few_witnesses_with_their_truth(cohort, tissues):
    _, truth, manifest = cohort
    sources = {
        slide.slide: {row.tobytes() for row in read_bag(slide.source, slide.slide).features.numpy()}
        for tissue in tissues
        for slide in load_cohort(tissue, kind=None).slides
    }
    for slide in load_cohort(manifest).slides:
        rows = truth[truth["slide"] == slide.slide]
        bag = read_bag(slide.source, slide.slide)
        features = [row.tobytes() for row in bag.features.numpy()]
        assert len(set(features)) == len(features)
        assert all(row in sources[name] for row, name in zip(features, rows["source"], strict=True))
        assert (bag.coords.numpy() == rows[["x", "y"]].to_numpy()).all()
        assert rows["tumor"].sum() == (2 if slide.label == "tumor" else 0)
        assert rows.loc[rows["tumor"], "source"].str.startswith("lung").all()
        assert set(rows.loc[~rows["tumor"], "source"].str.split("-").str[1]) == {slide.site.rsplit("-")[-1]}
        assert 5 <= len(rows) <= 15


def test_prevalence_noise_and_site_bias_are_as_asked(tissues, tmp_path):
    table, truth, _ = made(tmp_path / "rare", tissues, slides=200, prevalence=0.2, label_noise=0.3, site_bias=1.0)
    positive = table["slide"].map(truth.groupby("slide")["tumor"].any())
    assert abs(positive.mean() - 0.2) < 0.02
    wrong = positive != (table["label"] == "tumor")
    assert not wrong[table["split"] == "test"].any()
    assert 0.15 < wrong[table["split"] == "train"].mean() < 0.45
    train = table["split"] == "train"
    assert (positive[train].groupby(table["site"]).nunique() == 1).all()


def test_a_bag_is_the_same_in_a_longer_cohort_and_missing_files_are_made_again(tissues, tmp_path, cohort):
    table, truth, _ = made(tmp_path / "short", tissues, slides=20)
    pd.testing.assert_frame_equal(truth, cohort[1][cohort[1]["slide"].isin(table["slide"])].reset_index(drop=True))
    path = tmp_path / "short" / "features" / "slide-0003.h5"
    before = path.read_bytes()
    path.unlink()
    made(tmp_path / "short", tissues, slides=20)
    assert path.read_bytes() == before
    with pytest.raises(AsmilError, match="--again"):
        made(tmp_path / "short", tissues, slides=20, witnesses=1)


def test_cohorts_that_cannot_be_transplanted_are_refused(tissues, tmp_path):
    with pytest.raises(AsmilError, match="breast-0-0"):
        made(tmp_path / "same", (tissues[0], tissues[0]))
    with pytest.raises(AsmilError, match="sites"):
        made(tmp_path / "few", (tissues[0], write_tissue(tmp_path / "c", "few", 1.0, sites=2)))
    with pytest.raises(AsmilError, match="--witnesses 20"):
        made(tmp_path / "many", tissues, witnesses=20, tiles_min=30, tiles_max=40)
    table = pd.read_csv(write_tissue(tmp_path / "d", "nowhere", 1.0)).drop(columns="site")
    table.to_csv(tmp_path / "d" / "cohort.csv", index=False)
    with pytest.raises(AsmilError, match="nowhere-0-0"):
        made(tmp_path / "unknown", (tissues[0], tmp_path / "d" / "cohort.csv"))


def test_bags_have_different_sizes(cohort):
    assert np.unique(cohort[1].groupby("slide").size()).size > 3
