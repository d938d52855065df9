"""One vector per slide, as slide encoders write it: a bag of one tile without coordinates."""

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from asmil.cohort.check import check_cohort
from asmil.cohort.features import FeatureSource, inspect_features, read_bag
from asmil.errors import AsmilError
from feature_writers import WIDTH, grid, tiles, write_stamp, write_tensor


def vector(n):
    return np.random.default_rng(n).normal(n % 2, 0.3, WIDTH).astype(np.float32)


def write_trident_slide(path, values):
    with h5py.File(path, "w") as file:
        file["features"], file["coords"] = values, grid(9)
        file["features"].attrs.update({"name": path.stem, "encoder": "titan"})
        file["coords"].attrs.update({"patch_size_level0": 512, "target_magnification": 20})


WRITERS = {
    "trident.h5": write_trident_slide,
    "stamp.h5": lambda path, values: write_stamp(path, values[None], np.zeros((1, 2), np.float32), feat_type="slide"),
    "flat.pt": lambda path, values: write_tensor(path, torch.from_numpy(values)),
    "row.pt": lambda path, values: write_tensor(path, torch.from_numpy(values[None])),
    "a.npy": np.save,
    "a.npz": lambda path, values: np.savez(path, features=values),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_file_is_a_bag_of_one_tile(tmp_path, kind):
    path = tmp_path / kind
    WRITERS[kind](path, vector(0))
    info = inspect_features(FeatureSource(path))
    assert (info.n_tiles, info.width, info.coords_unit) == (1, WIDTH, None)
    assert info.may_be_slide_vector
    bag = read_bag(FeatureSource(path), "a")
    np.testing.assert_array_equal(bag.features.numpy(), vector(0)[None])
    assert bag.coords is None


@pytest.fixture
def cohort(tmp_path):
    (tmp_path / "features").mkdir()
    for n in range(24):
        np.save(tmp_path / "features" / f"s{n:02d}.npy", vector(n))
    rows = [{"slide": f"s{n:02d}", "label": "ab"[n % 2]} for n in range(24)]
    pd.DataFrame(rows).to_csv(tmp_path / "cohort.csv", index=False)
    return tmp_path / "cohort.csv"


def test_a_linear_probe_learns_from_slide_vectors(asmil_here, cohort, tmp_path):
    run, out = tmp_path / "run", tmp_path / "p.csv"
    options = ("--set", "training.epochs=30", "--set", "training.lr=0.01", "--quiet")
    done = asmil_here("train", cohort, "--method", "linear", "--out", run, *options)
    assert done.returncode == 0, done.stderr
    done = asmil_here("predict", run, cohort.parent / "features", "--out", out)
    assert done.returncode == 0, done.stderr
    found = pd.read_csv(out).set_index("slide")
    assert sum((found.loc[f"s{n:02d}", "prob_b"] > 0.5) == n % 2 for n in range(24)) >= 20
    write_tensor(tmp_path / "new" / "tiles.pt", torch.from_numpy(tiles()))
    refused = asmil_here("predict", run, tmp_path / "new", "--out", out)
    assert refused.returncode == 1
    assert "tiles.pt" in refused.stderr


def test_methods_with_attention_refuse_them_before_there_is_a_run(asmil_here, cohort, tmp_path):
    done = asmil_here("train", cohort, "--method", "abmil", "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "linear" in done.stderr
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_vectors_and_tiles_are_not_mixed(cohort):
    path = cohort.parent / "features" / "s03.npy"
    np.save(path, tiles())
    report = check_cohort(cohort)
    assert any("s03.npy" in problem.what for problem in report.errors)


def test_a_run_on_tiles_refuses_a_vector(asmil_here, small_cohort, tmp_path):
    run = tmp_path / "run"
    options = ("--method", "linear", "--out", run, "--set", "training.epochs=1", "--quiet")
    assert asmil_here("train", small_cohort, *options).returncode == 0
    (tmp_path / "new").mkdir()
    np.save(tmp_path / "new" / "v.npy", np.zeros(24, np.float32))
    done = asmil_here("predict", run, tmp_path / "new")
    assert done.returncode == 1
    assert "v.npy" in done.stderr


def test_several_vectors_of_stamp_in_one_file_are_refused(tmp_path):
    write_stamp(tmp_path / "a.h5", tiles(n=3), np.zeros((3, 2), np.float32), feat_type="patient")
    with pytest.raises(AsmilError, match="patient"):
        inspect_features(FeatureSource(tmp_path / "a.h5"))
