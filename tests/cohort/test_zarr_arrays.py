"""Zarr stores with lost chunks, pickled objects and hand-written metadata of both versions of the format."""

import json
import os
import pickle

import numpy as np
import pytest

from asmil import AsmilError
from asmil.cohort.features import FeatureSource, read_bag

FEATURES = np.arange(1, 71, dtype=np.float32).reshape(7, 10)
CORNERS = np.array([[0, 0], [0, 512], [512, 0], [512, 512], [512, 1024], [1024, 0], [1024, 512]])
FORMATS = {
    "2": {"zarr_format": 2},
    "2 nested": {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "3": {"zarr_format": 3},
    "3 named as 2": {"zarr_format": 3, "chunk_key_encoding": {"name": "v2", "separator": "."}},
    "3 sharded": {"zarr_format": 3, "shards": (4, 8)},
}


def write_store(path, features=FEATURES, coords=CORNERS, write_empty_chunks=False, **layout):
    """Features in chunks of 2 x 4, coordinates in chunks of 3 x 2."""
    zarr = pytest.importorskip("zarr", minversion="3.0")
    store = zarr.open_group(str(path), mode="w", zarr_format=layout.pop("zarr_format"))
    settings = {"write_empty_chunks": write_empty_chunks}
    store.create_array("X", data=features, chunks=(2, 4), config=settings, **layout)
    store.create_array("obsm/spatial", data=coords, chunks=(3, 2), config=settings, **layout | {"shards": None})
    return path


def chunk_files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(("zarr", ".z")))


@pytest.mark.parametrize("layout", FORMATS.values(), ids=FORMATS)
def test_a_store_without_one_of_its_chunks_is_refused(layout, tmp_path):
    store = write_store(tmp_path / "s1.zarr", **layout)
    bag = read_bag(FeatureSource(store), "s1")
    np.testing.assert_array_equal(bag.features.numpy(), FEATURES)
    np.testing.assert_array_equal(bag.coords.numpy(), CORNERS)
    files = chunk_files(store)
    assert len(files) == (4 if "shards" in layout else 12) + 3
    for file in files:
        content = file.read_bytes()
        file.unlink()
        array = "X" if (store / "X") in file.parents else "obsm/spatial"
        key = file.relative_to(store / array)
        with pytest.raises(AsmilError, match=rf"s1\.zarr.*{key}.*'{array}'"):
            read_bag(FeatureSource(store), "s1")
        file.write_bytes(content)
    read_bag(FeatureSource(store), "s1")


@pytest.mark.parametrize("layout", FORMATS.values(), ids=FORMATS)
def test_a_chunk_of_zeros_must_be_written(layout, tmp_path):
    features = FEATURES.copy()
    features[4:6, 4:8] = 0
    with pytest.raises(AsmilError, match=r"2.1.*'X'.*write_empty_chunks"):
        read_bag(FeatureSource(write_store(tmp_path / "s1.zarr", features, **layout)), "s1")
    whole = write_store(tmp_path / "s2.zarr", features, write_empty_chunks=True, **layout)
    np.testing.assert_array_equal(read_bag(FeatureSource(whole), "s2").features.numpy(), features)


def write_by_hand(path, metadata=None, chunk=None, file="X/0.0"):
    """A store of version 2 with one uncompressed array, as any tool could write it."""
    usual = {"zarr_format": 2, "shape": [7, 10], "chunks": [7, 10], "dtype": "<f4", "fill_value": 0, "order": "C"}
    (path / file).parent.mkdir(parents=True)
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    (path / "X" / ".zarray").write_text(json.dumps(usual | {"compressor": None, "filters": None} | (metadata or {})))
    (path / file).write_bytes(FEATURES.tobytes() if chunk is None else chunk)
    return FeatureSource(path)


def test_hand_written_metadata_are_understood(tmp_path):
    pytest.importorskip("zarr")
    plain = write_by_hand(tmp_path / "plain.zarr")
    nested = write_by_hand(tmp_path / "nested.zarr", {"dimension_separator": "/"}, file="X/0/0")
    for source in (plain, nested):
        np.testing.assert_array_equal(read_bag(source, "s").features.numpy(), FEATURES)
    larger = write_by_hand(tmp_path / "larger.zarr", {"shape": [10**12, 10]})
    with pytest.raises(AsmilError, match=r"larger\.zarr.*1\.0"):
        read_bag(larger, "s")


@pytest.mark.parametrize("version", [2, 3])
def test_a_sparse_matrix_is_refused_as_such(version, tmp_path):
    zarr = pytest.importorskip("zarr", minversion="3.0")
    store = zarr.open_group(str(tmp_path / "s.zarr"), mode="w", zarr_format=version)
    store.create_array("X/data", data=FEATURES[0])
    store.create_array("uns/tile_spec/nested/width", data=FEATURES[0])
    with pytest.raises(AsmilError, match="sparse"):
        read_bag(FeatureSource(tmp_path / "s.zarr"), "s")


class Planted:
    """Unpickling it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    "metadata",
    [
        {"dtype": "|O", "filters": [{"id": "pickle", "protocol": 5}]},
        {"dtype": "|O", "filters": None},
        {"dtype": "|O", "filters": [{"id": "vlen-utf8"}]},
        {"dtype": [["a", "|O"]], "filters": None},
        {"compressor": {"id": "pickle"}},
        {"filters": [{"id": "pickle"}]},
    ],
)
@pytest.mark.parametrize("consolidated", [False, True])
def test_pickled_objects_are_never_read(metadata, consolidated, tmp_path):
    pytest.importorskip("zarr")
    mark = tmp_path / "unpickled"
    source = write_by_hand(tmp_path / "s7.zarr", metadata, pickle.dumps([Planted(mark), (7, 10)]))
    if consolidated:  # what zarr 3 would read instead of the array's own metadata
        own = json.loads((source.path / "X" / ".zarray").read_text())
        harmless = own | {"dtype": "<f4", "filters": None, "compressor": None}
        nodes = {".zgroup": {"zarr_format": 2}, "X/.zarray": harmless}
        (source.path / ".zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": nodes}))
    with pytest.raises(AsmilError, match=r"s7\.zarr.*'X'"):
        read_bag(source, "s7")
    assert not mark.exists()
