import shutil

import h5py
import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def cohort(small_cohort, tmp_path):
    """A copy whose features may be spoiled and removed."""
    shutil.copytree(small_cohort.parent, tmp_path / "cohort")
    return tmp_path / "cohort" / "cohort.csv"


def test_a_pack_stands_for_features_that_are_gone(cohort, asmil_here, tmp_path):
    features, pack = cohort.parent / "features", tmp_path / "cohort.pack"
    plain = asmil_here("train", cohort, "--method", "abmil", "--out", tmp_path / "a", "--set", "training.epochs=1")
    assert plain.returncode == 0, plain.stderr
    done = asmil_here("pack", features, "--out", pack)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("24 packed, 0 ")
    assert "24 features as float16" in done.stdout
    shutil.rmtree(features)
    for words in (
        ("check", cohort, "--features", pack),
        ("affine", cohort, "--features", pack),
        (
            "train",
            cohort,
            "--features",
            pack,
            "--method",
            "abmil",
            "--out",
            tmp_path / "b",
            "--set",
            "training.epochs=1",
        ),
        ("predict", tmp_path / "b", pack, "--out", tmp_path / "p.csv"),
        ("predict", tmp_path / "b", f"{pack}::slide-0003", "--out", tmp_path / "one.csv"),
    ):
        done = asmil_here(*words)
        assert done.returncode == 0, done.stderr
    assert len(pd.read_csv(tmp_path / "p.csv")) == 24
    assert pd.read_csv(tmp_path / "one.csv")["slide"].tolist() == ["slide-0003"]
    one, other = (pd.read_parquet(tmp_path / run / "predictions.parquet") for run in "ab")
    pd.testing.assert_frame_equal(one, other)


def test_a_bad_file_is_named_and_the_same_command_goes_on(cohort, asmil_here, tmp_path):
    path, pack = cohort.parent / "features" / "slide-0003.h5", tmp_path / "cohort.pack"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    done = asmil_here("pack", cohort, "--out", pack)
    assert done.returncode == 1
    assert "23 packed, 0 already there" in done.stdout
    assert "1 error" in done.stderr
    assert "slide-0003.h5" in done.stderr
    assert "Traceback" not in done.stderr
    path.write_bytes(whole)
    done = asmil_here("pack", cohort, "--out", pack)
    assert (done.returncode, done.stdout[:26]) == (0, "1 packed, 23 already there")
    path.unlink()
    done = asmil_here("pack", path.parent, "--out", pack)
    assert (done.returncode, done.stdout[:26]) == (0, "0 packed, 23 already there")
    assert "not in" in done.stderr
    done = asmil_here("pack", cohort, "--out", pack)
    assert done.returncode == 1
    assert "'slide-0003'" in done.stderr


def test_mistakes_are_one_sentence(cohort, asmil_here, tmp_path):
    features = cohort.parent / "features"
    for words, told in (
        ((tmp_path / "nowhere", "--out", tmp_path / "p"), "nowhere: "),
        ((cohort, "--features", tmp_path / "no", "--out", tmp_path / "p"), "no: the folder"),
        ((features, "--features", features, "--out", tmp_path / "p"), "manifest"),
        ((features, "--out", features), str(features)),
        ((features, "--out", cohort), "this is a file"),
    ):
        done = asmil_here("pack", *words)
        assert done.returncode == 1
        assert told in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "p").exists()


def test_hdmil_trains_its_screening_network_from_a_pack(cohort, asmil_here, tmp_path):
    generator = np.random.default_rng(0)
    for path in (cohort.parent / "features").iterdir():
        with h5py.File(path, "a") as file:
            tiles = generator.integers(0, 256, (len(file["features"]), 16, 16, 3), dtype=np.uint8)
            file["lowres/tiles"] = tiles
    assert asmil_here("pack", cohort, "--out", tmp_path / "c.pack").returncode == 0
    shutil.rmtree(cohort.parent / "features")
    words = ("--method", "hdmil", "--set", "model.lipn=true", "--set", "training.epochs=1")
    done = asmil_here("train", cohort, "--features", tmp_path / "c.pack", "--out", tmp_path / "run", *words)
    assert done.returncode == 0, done.stderr
