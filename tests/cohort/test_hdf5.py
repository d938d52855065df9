"""HDF5 files: damage that the library would hang or crash on is found before."""

import h5py
import numpy as np
import pytest

from asmil import AsmilError
from asmil.cohort.hdf5 import new_hdf5, reading_hdf5, refuse_altered
from asmil.cohort.inspection import inspect_slides
from asmil.cohort.manifest import cohort_from_features
from feature_writers import grid, tiles, write_clam, write_trident


def zero_heap(path):
    """Zero the heap of its texts, over which the library turns for ever."""
    content = bytearray(path.read_bytes())
    start = content.index(b"GCOL") + 16
    content[start : start + 1024] = bytes(1024)
    path.write_bytes(content)


def test_a_zeroed_heap_is_an_error_that_names_the_file(tmp_path):
    for seed, name in enumerate("abc"):
        write_trident(tmp_path / f"{name}.h5", tiles(seed, n=3000), grid(3000))
    zero_heap(tmp_path / "b.h5")
    found = {slide.slide: result for slide, result in inspect_slides(cohort_from_features(tmp_path).slides)}
    assert isinstance(found["b"], AsmilError)
    assert "b.h5" in str(found["b"])
    assert not isinstance(found["a"], AsmilError)
    assert not isinstance(found["c"], AsmilError)


def test_values_that_look_like_a_heap_are_no_damage(tmp_path):
    spoiled = b"GCOL" + bytes([1, 0, 0, 0]) + (4096).to_bytes(8, "little") + bytes(4080)
    values = np.frombuffer(spoiled, dtype=np.float32).reshape(2, -1)
    for chunks in (None, (1, 256)):
        path = tmp_path / f"{chunks is None}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("features", data=values, chunks=chunks)
            file.attrs["text"] = "of variable length"
        with reading_hdf5(path) as file:
            assert file.attrs["text"] == "of variable length"
            np.testing.assert_array_equal(file["features"], values)


def test_files_of_other_tools_are_read(tmp_path):
    write_clam(tmp_path / "a.h5", tiles(), grid(), level="0")
    with reading_hdf5(tmp_path / "a.h5") as file:
        assert "features" in file


def test_a_file_with_its_checksum_opens_and_any_changed_byte_is_noticed(tmp_path):
    path = tmp_path / "a.h5"
    with new_hdf5(path) as file:
        file["values"] = np.arange(1000)
    refuse_altered(path)
    with h5py.File(path, "r") as file:
        assert file["values"][999] == 999
    whole = path.read_bytes()
    draw = np.random.default_rng(0)
    for place in draw.integers(len(whole) - 16, size=20):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(draw.integers(8))
        altered = tmp_path / f"{place}.h5"
        altered.write_bytes(changed)
        with pytest.raises(OSError, match="changed"):
            refuse_altered(altered)


def test_a_file_without_checksum_is_left_to_the_library(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["values"] = np.arange(10)
    refuse_altered(tmp_path / "a.h5")
