"""Several magnifications from slides to maps: extracted, joined, trained on, predicted, drawn."""

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml

import asmil
from asmil.cohort.features import inspect_features, read_bag
from asmil.cohort.locate import find_features
from asmil.cohort.source import FeatureSource
from asmil.explain.coarser_maps import mean_of_children
from asmil.models.abmil import ABMIL
from small_slides import write_slide

EXTRACTION_TESTS = Path(__file__).parents[1] / "extraction"
ENCODER = "tiny_encoder:Weighted"
TRUSTED = ("--workers", 0, "--encoder", ENCODER, "--quiet")
FINE, COARSE = "10x", "2.5x"


class OneMagnification(ABMIL):
    """A method of a user that reads only one magnification."""

    magnifications = "one"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Eight slides at 10x and 2.5x, and a run on both."""
    folder = tmp_path_factory.mktemp("lab")
    splits = ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    for number in range(8):
        write_slide(folder / "slides" / f"s{number}.tif", side_px=700 + 50 * (number % 3), seed=number)
    rows = [f"s{number},{'ab'[number % 2]},{split}" for number, split in enumerate(splits)]
    (folder / "cohort.csv").write_text("\n".join(["slide,label,split", *rows]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(EXTRACTION_TESTS)
        asmil.extract(
            folder / "slides", folder / "features", encoder=ENCODER, magnification=(2.5, 10), workers=0, progress=False
        )
    settings = {"training.epochs": 1}
    asmil.train(folder / "cohort.csv", folder / "run", method="abmil", settings=settings, progress=False)
    return folder


def test_tiles_are_nested_and_described(lab):
    assert yaml.safe_load((lab / "features" / "magnifications.yaml").read_text())["folders"] == [FINE, COARSE]
    fine, coarse = (inspect_features(FeatureSource(lab / "features" / name / "s0.h5")) for name in (FINE, COARSE))
    assert (fine.tile_px_level0, coarse.tile_px_level0) == (64, 256)
    assert (fine.tile_mpp, coarse.tile_mpp) == (1.0, 4.0)
    assert (fine.tile_px, fine.weights_hash) == (coarse.tile_px, coarse.weights_hash)
    parents = read_bag(coarse.source, "s0").coords.numpy()
    children = read_bag(fine.source, "s0").coords.numpy() // 256 * 256
    np.testing.assert_array_equal(parents, np.unique(children, axis=0))


def test_a_parent_has_the_colors_of_its_tiles(lab):
    """A parent whose sixteen tiles were all extracted; the first features are the mean colors."""
    bag = read_bag(find_features(lab / "features")["s0"], "s0")
    _, parent, counts = np.unique(bag.coords.numpy() // 256, axis=0, return_inverse=True, return_counts=True)
    whole = int(np.flatnonzero(counts == 16)[0])
    children = bag.features[np.flatnonzero(parent.ravel() == whole)].float().numpy()
    np.testing.assert_allclose(children[:, :3].mean(axis=0), children[0, 6:9], atol=0.01)


def test_only_slides_that_are_incomplete_are_extracted_again(lab, tmp_path, asmil_here, monkeypatch):
    monkeypatch.chdir(EXTRACTION_TESTS)
    for number in range(3):
        write_slide(tmp_path / "slides" / f"s{number}.tif", side_px=500, seed=number)
    out = tmp_path / "features"
    command = ("extract", tmp_path / "slides", "--out", out, "--no-qc", *TRUSTED)
    several = (*command, "--magnification", "2.5,10")
    (tmp_path / "slides" / "bad.tif").write_text("not a slide")
    done = asmil_here(*several)
    assert done.returncode == 1
    assert "bad" in done.stderr
    (tmp_path / "slides" / "bad.tif").unlink()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.h5")}
    assert len(before) == 6
    (out / FINE / "s0.h5").unlink()
    (out / COARSE / "s1.h5").write_bytes(b"half a file")
    done = asmil_here(*several)
    assert done.returncode == 0, done.stderr
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*.h5")}
    assert {path.stem for path in before if after[path] != before[path]} == {"s0", "s1"}
    assert "coarser" in asmil_here(*command, "--magnification", "10").stderr
    assert asmil_here(*command, "--magnification", "10", "--again").returncode == 0
    assert find_features(out)["s0"].coarser == ()


@pytest.mark.parametrize("given", ["3,10", "10,10", "0,10", "5,20,8", "5,x"])
def test_magnifications_that_are_not_nested_are_refused(given, lab, tmp_path, asmil_here, monkeypatch):
    monkeypatch.chdir(EXTRACTION_TESTS)
    done = asmil_here("extract", lab / "slides", "--out", tmp_path / "out", "--magnification", given, *TRUSTED)
    assert done.returncode == 1
    assert "magnification" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_new_slides_are_extracted_and_predicted_alike(lab, tmp_path, asmil_here, monkeypatch):
    monkeypatch.chdir(EXTRACTION_TESTS)
    expected = asmil.predict(lab / "run", lab / "features").set_index("slide")["prob_a"]
    out = tmp_path / "p.csv"
    done = asmil_here("predict", lab / "run", lab / "slides" / "s7.tif", "--out", out, *TRUSTED)
    assert done.returncode == 0, done.stderr
    assert pd.read_csv(out)["prob_a"].item() == pytest.approx(expected["s7"], abs=1e-3)
    assert {path.parent.name for path in (tmp_path / "p_features").rglob("*.h5")} == {FINE, COARSE}


def test_a_bundle_refuses_a_single_magnification(lab, tmp_path, asmil_here):
    assert asmil_here("export", lab / "run", "--out", tmp_path / "bundle").returncode == 0
    for folder in (FINE, COARSE):
        done = asmil_here("predict", tmp_path / "bundle", lab / "features" / folder, "--out", tmp_path / "p.csv")
        assert done.returncode == 1
        assert "s7.h5" in done.stderr
        assert "6 instead of 12" in done.stderr
    done = asmil_here("predict", tmp_path / "bundle", lab / "features", "--out", tmp_path / "p.csv", "--quiet")
    assert done.returncode == 0, done.stderr


def test_a_run_on_one_of_the_magnifications(lab, tmp_path, asmil_here, monkeypatch):
    monkeypatch.chdir(EXTRACTION_TESTS)
    for folder, predicts_slides in ((FINE, True), (COARSE, False)):
        run = tmp_path / folder
        settings = {"training.epochs": 1}
        features = lab / "features" / folder
        asmil.train(lab / "cohort.csv", run, method="abmil", features=features, settings=settings, progress=False)
        done = asmil_here("predict", run, lab / "slides" / "s7.tif", "--out", run / "p.csv", *TRUSTED)
        assert (done.returncode == 0) is predicts_slides, done.stderr


def test_a_method_may_read_one_magnification_only(lab, tmp_path):
    method = f"{Path(__file__)}:OneMagnification"
    with pytest.raises(asmil.AsmilError, match="OneMagnification"):
        asmil.train(lab / "cohort.csv", tmp_path / "run", method=method, progress=False)


def test_maps_of_coarser_tiles_are_means(lab, tmp_path, asmil_here):
    command = ("heatmap", lab / "run", "s7", "--workers", 0, "--device", "cpu", "--quiet")
    for magnification in ("10", "2.5"):
        done = asmil_here(*command, "--out", tmp_path / magnification, "--magnification", magnification, "--qupath")
        assert done.returncode == 0, done.stderr
    counts = {name: int(pd.read_csv(tmp_path / name / "heatmaps.csv")["tiles"].item()) for name in ("10", "2.5")}
    with h5py.File(lab / "features" / COARSE / "s7.h5") as file:
        assert counts["2.5"] == len(file["coords"]) < counts["10"]
    values, tiles = asmil.load_run(lab / "run").attention("s7").tile_map, (tmp_path / "2.5" / "s7_tiles.geojson")
    written = [
        tile["properties"]["measurements"]["attention"] for tile in yaml.safe_load(tiles.read_text())["features"]
    ]
    coords = read_bag(find_features(lab / "features")["s7"], "s7").coords.numpy()
    _, parents = np.unique(coords // 256, axis=0, return_inverse=True)
    np.testing.assert_allclose(written, mean_of_children(values, parents.ravel(), len(written)), rtol=1e-3)
    refused = asmil_here(*command, "--out", tmp_path / "5", "--magnification", "5")
    assert refused.returncode == 1
    assert "10, 2.5" in refused.stderr


def test_tiles_without_values_do_not_count_in_a_mean():
    values = np.array([1.0, np.nan, 5.0, np.nan])
    np.testing.assert_array_equal(mean_of_children(values, np.array([0, 0, 1, 2]), 4), [1.0, 5.0, np.nan, np.nan])
