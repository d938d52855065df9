"""AnnData files as LazySlide writes them, with the real writer."""

import anndata
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from asmil.cohort.features import FeatureSource, inspect_features, read_bag
from asmil.cohort.manifest import cohort_from_features, load_cohort
from asmil.errors import AsmilError
from feature_writers import WIDTH, grid, tiles


def write(path, features, **slots):
    path.parent.mkdir(parents=True, exist_ok=True)
    adata = anndata.AnnData(X=features, obs=pd.DataFrame(index=[str(n) for n in range(features.shape[0])]), **slots)
    adata.write_h5ad(path)


def lazyslide(path, seed=0):
    """The slots of `wsi.fetch.features_anndata`."""
    spec = {"width": 256, "height": 256, "base_width": 512, "base_height": 512, "mpp": 0.5, "tissue_name": "tissues"}
    corners = grid().astype(np.float64)
    write(path, tiles(seed), obsm={"spatial": corners}, uns={"tile_spec": spec, "slide_properties": {"mpp": 0.25}})


def test_features_corners_and_tile_size_are_read(tmp_path):
    lazyslide(tmp_path / "a.h5ad")
    info = inspect_features(FeatureSource(tmp_path / "a.h5ad"))
    assert (info.layout, info.n_tiles, info.width, info.coords_unit) == ("anndata", 12, WIDTH, "px")
    assert (info.tile_px, info.tile_px_level0, info.tile_um) == (256, 512, 128.0)
    bag = read_bag(FeatureSource(tmp_path / "a.h5ad"), "a")
    np.testing.assert_array_equal(bag.features.numpy(), tiles())
    np.testing.assert_array_equal(bag.coords.numpy(), grid())


def test_a_folder_of_them_is_a_cohort(tmp_path):
    for n in range(4):
        lazyslide(tmp_path / "features" / f"s{n}.h5ad", n)
    pd.DataFrame({"slide": [f"s{n}.svs" for n in range(4)], "label": [0, 1] * 2}).to_csv(tmp_path / "c.csv")
    assert len(load_cohort(tmp_path / "c.csv")) == 4
    assert len(cohort_from_features(tmp_path / "features")) == 4


def test_without_coordinates_or_tile_size(tmp_path):
    write(tmp_path / "a.h5ad", tiles())
    info = inspect_features(FeatureSource(tmp_path / "a.h5ad"))
    assert (info.coords_unit, info.tile_px) == (None, None)


def test_sparse_features_are_refused(tmp_path):
    write(tmp_path / "a.h5ad", sparse.csr_matrix(tiles()))
    with pytest.raises(AsmilError, match=r"a\.h5ad.*sparse"):
        read_bag(FeatureSource(tmp_path / "a.h5ad"), "a")
