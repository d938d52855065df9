"""Every slide is judged by models that were not trained on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from asmil.cohort.features import read_bag
from asmil.cohort.manifest import load_cohort
from asmil.cohort.splits import Splits
from asmil.errors import AsmilError
from asmil.evaluation.localization.evaluated_maps import EvaluatedMaps
from asmil.evaluation.localization.localize import LocalizeSettings, localize_run
from asmil.models.inference import infer
from asmil.runs.config import resolve
from asmil.runs.prediction import open_models
from asmil.training.run import train_run


@pytest.fixture(scope="module")
def cross_validated(small_cohort, tmp_path_factory):
    """A run of two folds with two seeds, and its cohort."""
    place = tmp_path_factory.mktemp("folds")
    table = pd.read_csv(small_cohort).drop(columns="split")
    table["features"] = [str(small_cohort.parent / "features" / f"{slide}.h5") for slide in table["slide"]]
    table.to_csv(place / "cohort.csv", index=False)
    train_run(
        place / "cohort.csv",
        place / "run",
        resolve("abmil", changes={"training": {"epochs": 1}, "folds": 2, "seeds": 2}),
    )
    return place / "run", load_cohort(place / "cohort.csv"), small_cohort.parent / "tile_truth.parquet"


def maps_by_hand(run, slide, folds):
    trained_run = open_models(run, "cpu")
    bag = read_bag(slide.source, slide.slide)
    models = [one.model for one in trained_run.trained if one.fold in folds]
    return np.mean([one.tile_map(infer(one, bag)).numpy() for one in models], axis=0)


@pytest.mark.parametrize("role", ["test", "val"])
def test_the_folds_of_the_role_judge_a_slide_averaged_over_seeds(cross_validated, role):
    run, cohort, _ = cross_validated
    maps = EvaluatedMaps(run, role, device="cpu")
    table = Splits.load(run / "splits.csv").table
    for slide in list(cohort.slides)[:6]:
        folds = set(table.loc[(table["slide"] == slide.slide) & (table["role"] == role), "fold"])
        assert maps.may_evaluate(slide) == bool(folds)
        if folds:
            one = maps.map_of(slide)
            assert one.n_models == 2 * len(folds)
            np.testing.assert_allclose(one.heat, maps_by_hand(run, slide, folds), rtol=1e-5)
            assert one.heat.sum() == pytest.approx(1)
            assert one.probabilities.sum() == pytest.approx(1)


def test_new_slides_are_judged_by_all_models_unless_their_patient_is_known(cross_validated):
    run, cohort, _ = cross_validated
    maps = EvaluatedMaps(run, device="cpu")
    new = replace(cohort.slides[0], slide="new", patient="nobody")
    assert maps.map_of(new).n_models == 4
    assert not EvaluatedMaps(run, "train", device="cpu").may_evaluate(new)
    relative = replace(cohort.slides[0], slide="new")
    assert maps.map_of(relative).n_models == 2
    np.testing.assert_array_equal(maps.map_of(relative).heat, maps.map_of(cohort.slides[0]).heat)


def test_slides_that_were_trained_on_are_left_out_unless_asked_for(small_cohort, tmp_path):
    train_run(small_cohort, tmp_path / "run", resolve("abmil", changes={"training": {"epochs": 1}}))
    truth = small_cohort.parent / "tile_truth.parquet"
    parts = pd.read_csv(small_cohort).groupby("split")["slide"].apply(set)
    settings = LocalizeSettings(truth=truth, resamples=20, device="cpu")
    found = localize_run(tmp_path / "run", settings)
    assert {one.name for one in found.slides} == parts["test"]
    assert not found.problems
    trained = localize_run(tmp_path / "run", replace(settings, role="train"))
    assert {one.name for one in trained.slides} == parts["train"]
    assert any("train" in note for note in trained.notes)
    other = localize_run(tmp_path / "run", replace(settings, cohort=small_cohort))
    assert {one.name for one in other.slides} == parts["test"]
    left_out = len(pd.read_csv(small_cohort)) - len(parts["test"])
    assert any(str(small_cohort) in note and str(left_out) in note for note in other.notes)


def test_a_cross_validated_run_is_judged_on_all_its_slides(cross_validated):
    run, cohort, truth = cross_validated
    found = localize_run(run, LocalizeSettings(truth=truth, resamples=20, device="cpu"), n_masks=1)
    assert {one.name for one in found.slides} == {slide.slide for slide in cohort.slides}
    assert found.n_seeds == 2
    assert len(found.masks) == 1
    assert any("2 seeds" in note for note in found.notes)
    table = pd.read_parquet(truth)
    for one in found.slides:
        tumor = table.loc[table["slide"] == one.name, "tumor"].to_numpy()
        np.testing.assert_array_equal(one.tumor, tumor)
        assert one.is_normal == (not tumor.any())


def test_what_cannot_be_asked_for(cross_validated, tmp_path):
    run, _, truth = cross_validated
    with pytest.raises(AsmilError, match=r"'scores'.*attention"):
        EvaluatedMaps(run, heatmap="scores", device="cpu")
    with pytest.raises(AsmilError, match="--annotations"):
        localize_run(run, LocalizeSettings())
    with pytest.raises(AsmilError, match="preset"):
        localize_run(run, LocalizeSettings(truth=truth, preset="camelyon"))
    nothing = tmp_path / "truth.csv"
    nothing.write_text("slide,x,y,tumor\nother,0,0,1\n")
    with pytest.raises(AsmilError, match=r"slide-.*tumor.*--skip-list"):
        localize_run(run, LocalizeSettings(truth=nothing, normal=("normal",), skip_list=_all_normal(run, tmp_path)))


def _all_normal(run, folder):
    table = pd.read_parquet(run / "predictions.parquet")
    (folder / "skip.txt").write_text("\n".join(sorted(set(table.loc[table["target"] == "normal", "slide"]))))
    return folder / "skip.txt"
