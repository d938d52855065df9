"""Features as plain arrays of torch and NumPy."""

import numpy as np
import pytest
import torch

from asmil.cohort.features import FeatureSource, fingerprint, inspect_features, read_bag
from asmil.errors import AsmilError
from feature_writers import grid, tiles, write_tensor


def read(path):
    return read_bag(FeatureSource(path), path.stem)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_trident_saves_arrays_of_numpy_with_torch(tmp_path, dtype, zipped):
    values = tiles(dtype=dtype)
    torch.save(values, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    assert torch.equal(read(tmp_path / "a.pt").features, torch.from_numpy(values))
    assert inspect_features(FeatureSource(tmp_path / "a.pt")).n_tiles == 12
    assert fingerprint(FeatureSource(tmp_path / "a.pt"))
    assert np.ndarray not in torch.serialization.get_safe_globals()


def test_arrays_that_older_numpy_pickled(tmp_path):
    """NumPy 1 called the module `numpy.core`."""
    torch.save(tiles(), tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    old = (tmp_path / "a.pt").read_bytes().replace(b"cnumpy._core.", b"cnumpy.core.")
    (tmp_path / "a.pt").write_bytes(old)
    assert torch.equal(read(tmp_path / "a.pt").features, torch.from_numpy(tiles()))


def test_a_tensor_that_requires_gradients(tmp_path):
    write_tensor(tmp_path / "a.pt", torch.from_numpy(tiles()).requires_grad_())
    write_tensor(tmp_path / "b.pt", torch.nn.Parameter(torch.from_numpy(tiles())))
    for name in ("a.pt", "b.pt"):
        assert fingerprint(FeatureSource(tmp_path / name))
        assert not read(tmp_path / name).features.requires_grad


@pytest.mark.parametrize("name", ["features", "feats"])
def test_named_tensors(tmp_path, name):
    write_tensor(tmp_path / "a.pt", {name: torch.from_numpy(tiles()), "coords": torch.from_numpy(grid()), "label": 1})
    bag = read(tmp_path / "a.pt")
    assert torch.equal(bag.features, torch.from_numpy(tiles()))
    assert torch.equal(bag.coords, torch.from_numpy(grid()))
    assert inspect_features(FeatureSource(tmp_path / "a.pt")).coords_unit == "px"


@pytest.mark.parametrize("held", [{"x": torch.ones(2, 2)}, {"features": 1}, {}, [1], torch.ones(3, 3).to_sparse()])
def test_other_content_is_named(tmp_path, held):
    write_tensor(tmp_path / "a.pt", held)
    with pytest.raises(AsmilError, match=r"a\.pt"):
        read(tmp_path / "a.pt")


def test_npy_and_npz(tmp_path):
    np.save(tmp_path / "a.npy", tiles())
    np.savez(tmp_path / "b.npz", features=tiles(), coords=grid())
    np.savez_compressed(tmp_path / "c.npz", features=tiles(dtype=np.dtype(">f4")))
    for name in ("a.npy", "b.npz", "c.npz"):
        source = FeatureSource(tmp_path / name)
        assert torch.equal(read_bag(source, name).features, torch.from_numpy(tiles()))
        assert (inspect_features(source).layout, inspect_features(source).n_tiles) == ("numpy", 12)
    assert len({fingerprint(FeatureSource(tmp_path / name)) for name in ("a.npy", "b.npz", "c.npz")}) == 1
    assert torch.equal(read(tmp_path / "b.npz").coords, torch.from_numpy(grid()))
    assert read(tmp_path / "a.npy").coords is None


def test_arrays_of_objects_and_texts_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "b.npy", np.array([["x", "y"]]))
    np.savez(tmp_path / "c.npz", bag=tiles())
    for name in ("a.npy", "b.npy", "c.npz"):
        with pytest.raises(AsmilError, match=name):
            read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_cut_numpy_files_are_one_sentence(tmp_path, name):
    path = tmp_path / name
    if name == "a.npy":
        np.save(path, tiles())
    else:
        np.savez(path, features=tiles(), coords=grid())
    whole = path.read_bytes()
    for kept in range(0, len(whole) - 1, 23):
        path.write_bytes(whole[:kept])
        with pytest.raises(AsmilError, match=name):
            read(path)
