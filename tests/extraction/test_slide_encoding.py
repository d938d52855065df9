"""`asmil encode-slides`: vectors of slides from the features of their tiles."""

import json
import sys

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from asmil.cohort.features import FeatureSource, Provenance, inspect_features, read_bag, write_features

ENCODERS = """
import torch


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, features, coords, tile_px_level0, mpp):
        if len(features) == 3:
            raise ValueError("three tiles are not enough")
        place = torch.tensor([float(coords[:, 0].max()), tile_px_level0, mpp])
        return torch.cat([self.scale * features.mean(0), place])[None]


def mean():
    return lambda features, coords, tile_px_level0, mpp: features.mean(0)


def matrix():
    return lambda features, coords, tile_px_level0, mpp: features
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "slide_encoders_of_a_test", raising=False)
    (tmp_path / "slide_encoders_of_a_test.py").write_text(ENCODERS)
    draw = np.random.default_rng(2)
    known = Provenance(tile_px=8, tile_px_level0=16, mpp=0.5, tile_um=8.0, slide_width_px=100, slide_height_px=90)
    for number in range(12):
        tiles = 3 if number == 11 else 5
        coords = np.arange(2 * tiles).reshape(-1, 2) * 16
        write_features(
            tmp_path / "features" / f"s{number}.h5", draw.normal(size=(tiles, 4)) + number % 2, coords, known
        )
    return tmp_path


def test_vectors_resume_one_bad_slide_and_a_linear_probe(lab, asmil_here):
    command = ("encode-slides", "features", "--encoder", "slide_encoders_of_a_test:Weighted", "-o", "vectors", "-q")
    done = asmil_here(*command, "--workers", 0, "--device", "cpu")
    assert done.returncode == 1
    assert "s11" in done.stderr
    assert "s10" not in done.stderr
    assert sorted(path.stem for path in (lab / "vectors").glob("*.h5")) == sorted(f"s{n}" for n in range(11))

    bag = read_bag(FeatureSource(lab / "features" / "s3.h5"), "s3")
    found = read_bag(FeatureSource(lab / "vectors" / "s3.h5"), "s3", verify=True)
    assert found.coords is None
    wanted = torch.cat([2 * bag.features.float().mean(0), torch.tensor([128.0, 16.0, 0.5])])
    torch.testing.assert_close(found.features[0], wanted)
    assert inspect_features(FeatureSource(lab / "vectors" / "s3.h5")).may_be_slide_vector

    before = (lab / "vectors" / "s3.h5").stat().st_mtime_ns
    again = asmil_here(*command, "--workers", 0, "--device", "cpu")
    assert again.returncode == 1
    assert "10" not in again.stdout.split("already")[0].replace("11", "")
    assert (lab / "vectors" / "s3.h5").stat().st_mtime_ns == before

    table = pd.DataFrame({"slide": [f"s{n}" for n in range(11)], "label": [str(n % 2) for n in range(11)]})
    table["split"] = ["train"] * 5 + ["val"] * 2 + ["test"] * 4
    table.to_csv(lab / "cohort.csv", index=False)
    options = ("--features", "vectors", "--set", "training.epochs=2", "-o", "run", "-q", "--json")
    assert asmil_here("train", "cohort.csv", "-m", "linear", *options).returncode == 0


def test_an_encoder_that_is_none_is_refused(lab, asmil_here):
    for encoder, word in (
        ("titan", "titan"),
        ("no_such_module:f", "no_such_module"),
        ("slide_encoders_of_a_test:x", "x"),
    ):
        done = asmil_here("encode-slides", "features", "--encoder", encoder, "-o", "vectors", "--workers", 0)
        assert done.returncode == 1
        assert word in done.stderr
        assert not (lab / "vectors").exists()
    matrix = "slide_encoders_of_a_test:matrix"
    done = asmil_here("encode-slides", "features", "--encoder", matrix, "-o", "out", "--workers", 0, "--device", "cpu")
    assert done.returncode == 1
    assert "(5, 4)" in done.stderr
    assert not list((lab / "out").glob("*.h5"))


def test_vectors_of_another_encoder_are_not_mixed(lab, asmil_here):
    first = ("encode-slides", "features", "-o", "vectors", "--workers", 0, "--device", "cpu", "-q")
    asmil_here(*first, "--encoder", "slide_encoders_of_a_test:Weighted")
    done = asmil_here(*first, "--encoder", "slide_encoders_of_a_test:matrix")
    assert done.returncode == 1
    assert all(word in done.stderr for word in ("s0", "encoder", "--again"))


@pytest.mark.parametrize("noted", [{"slide_encoder", "weights_hash", "tiles"}, set()])
def test_vectors_without_a_record_of_the_code_are_not_reused(noted, lab, asmil_here):
    """As version 0.5.0 wrote them, and without any record."""
    command = ("encode-slides", "features", "-o", "vectors", "--workers", 0, "--device", "cpu", "-q")
    named = ("--encoder", "slide_encoders_of_a_test:mean")
    assert asmil_here(*command, *named).returncode == 0
    made = sorted((lab / "vectors").glob("*.h5"))
    for path in made:
        with h5py.File(path, "r+") as file:
            kept = {key: value for key, value in json.loads(file.attrs["extraction"]).items() if key in noted}
            file.attrs["extraction"] = np.bytes_(json.dumps(kept))
    before = [path.read_bytes() for path in made]
    done = asmil_here(*command, *named)
    assert done.returncode == 1
    assert all(word in done.stderr for word in ("s0", "recorded", "--again"))
    assert [path.read_bytes() for path in made] == before
    assert asmil_here(*command, *named, "--again").returncode == 0
    assert asmil_here(*command, *named).returncode == 0


def test_another_spelling_of_the_encoders_file_keeps_its_vectors(lab, asmil_here):
    command = ("encode-slides", "features", "-o", "vectors", "--workers", 0, "--device", "cpu", "-q", "--encoder")
    assert asmil_here(*command, "slide_encoders_of_a_test.py:mean").returncode == 0
    before = (lab / "vectors" / "s0.h5").read_bytes()
    assert asmil_here(*command, lab / "slide_encoders_of_a_test.py:mean").returncode == 0
    assert (lab / "vectors" / "s0.h5").read_bytes() == before


def test_feature_files_open_as_the_slide_encoders_of_trident_open_them(lab):
    with h5py.File(lab / "features" / "s0.h5", "r") as file:
        coords, features = file["coords"][:], file["features"][:]
        attributes = dict(file["coords"].attrs)
    batch = torch.from_numpy(features).float().unsqueeze(0)
    assert batch.shape == (1, 5, 4)
    assert torch.from_numpy(coords).to(torch.int64).unsqueeze(0).shape == (1, 5, 2)
    assert int(attributes["patch_size_level0"]) == 16
    assert int(attributes["patch_size"]) == 8
    assert (int(attributes["level0_width"]), int(attributes["level0_height"])) == (100, 90)
    assert inspect_features(FeatureSource(lab / "features" / "s0.h5")).layout == "asmil"
