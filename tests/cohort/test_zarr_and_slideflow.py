"""Features of LazySlide's zarr stores, slideflow's bags and files with `coords_patching`."""

import re
import sys

import h5py
import numpy as np
import pandas as pd
import pytest
import shapely
import torch

from asmil import AsmilError
from asmil.cohort.features import FeatureSource, inspect_features, read_bag, write_features
from asmil.cohort.manifest import load_cohort
from asmil.cohort.source import Provenance
from shared_data import REPOSITORY

CORNERS = np.array([[0, 0], [0, 512], [512, 0], [512, 512], [512, 1024]])
FEATURES = np.arange(20, dtype=np.float32).reshape(5, 4)
SPEC = {"width": 256, "height": 256, "base_width": 512, "base_height": 512, "mpp": 0.5}


def anndata_store(path):
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(FEATURES, obsm={"spatial": CORNERS.astype(float)}, uns={"tile_spec": SPEC})
    adata.write_zarr(path)
    return path


def spatialdata_store(path, tables=("uni_tiles",), tiles=True):
    """A store as wsidata writes it: polygons of the tiles, tables of features that name their tiles by tile_id."""
    anndata, zarr = pytest.importorskip("anndata"), pytest.importorskip("zarr")
    store = zarr.open_group(str(path), mode="w", zarr_format=2)
    store.create_group("tables")
    store.attrs["tile_spec"] = {"tiles": SPEC}
    order = np.array([3, 1, 4, 0, 2])
    for name in tables:
        obs = pd.DataFrame({"tile_id": order, "library_id": "tiles"}, index=order.astype(str))
        uns = {"spatialdata_attrs": {"region": "tiles", "region_key": "library_id", "instance_key": "tile_id"}}
        anndata.AnnData(FEATURES[order], obs=obs, uns=uns).write_zarr(path / "tables" / name)
    if tiles:
        shapes = path / "shapes" / "tiles" / "shapes.parquet"
        shapes.parent.mkdir(parents=True)
        boxes = [shapely.to_wkb(shapely.box(x, y, x + 512, y + 512)) for x, y in CORNERS]
        pd.DataFrame({"tile_id": np.arange(5), "geometry": boxes}).to_parquet(shapes)
    return path


@pytest.mark.parametrize("make", [anndata_store, spatialdata_store])
def test_a_zarr_store_is_read_with_its_tiles(make, tmp_path):
    source = FeatureSource(make(tmp_path / "s1.zarr"))
    bag = read_bag(source, "s1")
    order = np.lexsort((bag.coords[:, 1], bag.coords[:, 0]))
    np.testing.assert_array_equal(bag.coords.numpy()[order], CORNERS)
    np.testing.assert_array_equal(bag.features.numpy()[order], FEATURES)
    info = inspect_features(source)
    assert (info.tile_px, info.tile_px_level0, info.tile_um) == (256, 512, 128.0)


def test_stores_are_found_by_the_names_of_slides(tmp_path):
    for name in ("a", "b"):
        anndata_store(tmp_path / "features" / f"{name}.zarr")
    (tmp_path / "cohort.csv").write_text("slide,label,features\na,0,features/a.zarr\nb,1,\n")
    cohort = load_cohort(tmp_path / "cohort.csv")
    assert [read_bag(slide.source, slide.slide).features.shape for slide in cohort.slides] == [(5, 4)] * 2


def test_stores_without_one_table_of_features_are_refused_in_one_sentence(tmp_path):
    zarr = pytest.importorskip("zarr")
    zarr.open_group(str(tmp_path / "empty.zarr"), mode="w")
    with pytest.raises(AsmilError, match=r"empty\.zarr"):
        read_bag(FeatureSource(tmp_path / "empty.zarr"), "s")
    several = spatialdata_store(tmp_path / "several.zarr", ("conch_tiles", "uni_tiles"))
    with pytest.raises(AsmilError, match="conch_tiles"):
        read_bag(FeatureSource(several), "s")
    assert len(read_bag(FeatureSource(several, "uni_tiles"), "s")) == 5
    assert read_bag(FeatureSource(spatialdata_store(tmp_path / "no.zarr", tiles=False)), "s").coords is None
    broken = tmp_path / "broken.zarr"
    broken.mkdir()
    with pytest.raises(AsmilError, match=r"broken\.zarr"):
        read_bag(FeatureSource(broken), "s")


def test_without_zarr_the_extra_is_named(tmp_path, monkeypatch):
    store = anndata_store(tmp_path / "s.zarr")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(AsmilError, match=r"asmil\[zarr\]"):
        read_bag(FeatureSource(store), "s")


def test_the_index_of_slideflow_gives_the_corners_of_the_tiles(tmp_path):
    torch.save(torch.from_numpy(FEATURES), tmp_path / "s.pt")
    np.savez(tmp_path / "s.index", CORNERS + 256)  # slideflow stores centers
    source = FeatureSource(tmp_path / "s.pt")
    np.testing.assert_array_equal(read_bag(source, "s").coords.numpy(), CORNERS)
    assert (inspect_features(source).tile_px_level0, inspect_features(source).tile_inferred) == (512, True)
    (tmp_path / "cohort.csv").write_text("slide,label\ns,0\n")
    assert load_cohort(tmp_path / "cohort.csv", tmp_path).slides[0].source == source
    np.savez(tmp_path / "s.index", CORNERS[:3])
    assert read_bag(source, "s").coords is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"nothing",
        lambda content: content[: len(content) // 2],
        lambda content: content[:60] + bytes(40) + content[100:],
    ],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_index_of_slideflow_is_named(damage, save, tmp_path):
    torch.save(torch.from_numpy(FEATURES), tmp_path / "s.pt")
    index = tmp_path / "s.index.npz"
    save(index, CORNERS + 256)
    index.write_bytes(damage(index.read_bytes()))
    with pytest.raises(AsmilError, match=r"s\.index\.npz"):
        read_bag(FeatureSource(tmp_path / "s.pt"), "s")


@pytest.mark.parametrize("wrong", [np.full((5, 2), np.nan), np.full((5, 2), b"x"), np.full((5, 2), 1j)])
def test_an_index_of_slideflow_without_finite_numbers_is_named(wrong, tmp_path):
    torch.save(torch.from_numpy(FEATURES), tmp_path / "s.pt")
    np.savez(tmp_path / "s.index", wrong)
    with pytest.raises(AsmilError, match=r"s\.index\.npz"):
        read_bag(FeatureSource(tmp_path / "s.pt"), "s")


def test_our_features_become_bags_of_slideflow_as_the_page_says(tmp_path, monkeypatch):
    page = (REPOSITORY / "docs" / "files.md").read_text(encoding="utf-8")
    code = re.search(r"```python slideflow\n(.*?)```", page, re.DOTALL)
    (tmp_path / "features").mkdir()
    provenance = Provenance(tile_px=256, tile_px_level0=512, mpp=0.25)
    write_features(tmp_path / "features" / "s.h5", FEATURES, CORNERS, provenance)
    monkeypatch.chdir(tmp_path)
    exec(compile(code[1], "docs/files.md", "exec"), {})
    source = FeatureSource(tmp_path / "bags" / "s.pt")
    np.testing.assert_array_equal(read_bag(source, "s").features.numpy(), FEATURES)
    np.testing.assert_array_equal(read_bag(source, "s").coords.numpy(), CORNERS)


def test_coords_patching_is_read_where_there_are_no_other_coordinates(tmp_path):
    for name, axes in (("both", True), ("alone", False)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["features"] = FEATURES[None]
            file["coords_patching"] = CORNERS
            if axes:
                file["coords"] = CORNERS[None]
        bag = read_bag(FeatureSource(tmp_path / f"{name}.h5"), name)
        np.testing.assert_array_equal(bag.coords.numpy(), CORNERS)
