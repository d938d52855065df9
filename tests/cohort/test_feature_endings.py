"""What a feature file is: one list of endings, by which every part of asmil tells features from images."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import asmil
from asmil.api.new_slides import are_images, feature_slides
from asmil.cohort.features import Provenance, read_bag, write_features
from asmil.cohort.locate import find_features
from asmil.tables.names import FEATURE_SUFFIXES, is_feature_file, without_extension
from asmil.viewer.collection import Places, collect

FILES = [suffix for suffix in FEATURE_SUFFIXES if suffix not in (".h5ad", ".zarr")]
"""Written here; the tests of AnnData and zarr write the others."""


def write(path):
    features = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    if path.suffix in (".h5", ".hdf5"):
        coords = np.arange(10).reshape(5, 2) * 256
        write_features(path, features, coords, Provenance(), dtype="float32")
    elif path.suffix in (".pt", ".pth"):
        torch.save(torch.from_numpy(features), path)
    elif path.suffix == ".npy":
        np.save(path, features)
    else:
        np.savez(path, features=features)
    return features


@pytest.mark.parametrize("suffix", FILES)
def test_every_ending_is_read_as_features(tmp_path, suffix):
    path = tmp_path / f"slide{suffix}"
    features = write(path)
    assert np.array_equal(read_bag(find_features(tmp_path)["slide"], "slide").features.numpy(), features)
    assert not are_images(path)
    assert [slide.slide for slide in feature_slides(path).slides] == ["slide"]
    assert [slide.name for slide in collect([path], Places()).slides] == ["slide"]


@pytest.mark.parametrize("suffix", FEATURE_SUFFIXES)
def test_every_ending_is_known_by_name(suffix):
    assert is_feature_file(Path(f"a.1{suffix.upper()}"))
    assert without_extension(f"a.1{suffix}") == "a.1"


def test_the_preferred_file_of_a_slide_is_taken(tmp_path):
    for suffix in FILES:
        write(tmp_path / f"slide{suffix}")
    assert find_features(tmp_path)["slide"].path.suffix == FEATURE_SUFFIXES[0]


def test_no_other_module_lists_endings_of_features():
    package = Path(asmil.__file__).parent
    elsewhere = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Tuple | ast.List | ast.Set)
        and {".h5", ".pt"} <= {item.value for item in node.elts if isinstance(item, ast.Constant)}
    }
    assert elsewhere == {"tables/names.py"}
