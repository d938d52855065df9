"""Read features from zarr stores of LazySlide: an AnnData object, or the tables of a SpatialData store.

    STORE/X, obsm/spatial, uns/tile_spec            AnnData (`adata.write_zarr`)
    STORE/tables/KEY/X, obs/tile_id                 SpatialData; KEY is `MODEL_TILES`
    STORE/shapes/TILES/shapes.parquet               its tiles as polygons in level-0 pixels

Tables without tiles have no coordinates; a store without a feature table is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asmil.cohort.array_files import first_line
from asmil.cohort.open_features import OpenFeatures, opened
from asmil.cohort.problems import fail, listed
from asmil.cohort.source import FeatureSource, tile_spec_provenance
from asmil.cohort.zarr_arrays import read_array, refuse_objects
from asmil.errors import AsmilError

SUFFIX = ".zarr"
ARRAYS = ("X", "obsm/spatial", "obs/tile_id", "uns/tile_spec/*", "uns/spatialdata_attrs/*")
"""What is read of a store or a table."""


def is_zarr_store(path: Path) -> bool:
    """Whether a path is a folder with the name of a zarr store."""
    return path.suffix == SUFFIX and path.is_dir()


def read_zarr(source: FeatureSource) -> OpenFeatures:
    """Read the features of a store, or of one of its tables (`STORE::KEY`)."""
    try:
        import zarr
    except ImportError:
        fail(source, "zarr stores need the package zarr", "install asmil[zarr]")
    try:
        refuse_objects(source, [f"{table}{array}" for table in ("", "tables/*/") for array in ARRAYS])
        # each array's own metadata, which are checked before it is read; below version 3, zarr takes no others
        options: dict[str, Any] = {} if zarr.__version__.startswith("2.") else {"use_consolidated": False}
        store: Any = zarr.open_group(str(source.path), mode="r", **options)
        if "X" in store and source.group is None:
            return _of_anndata(store, source)
        return _of_spatialdata(store, source)
    except AsmilError:
        raise
    except Exception as error:  # noqa: BLE001 - zarr and its codecs raise any exception on damaged stores
        return fail(source, f"the zarr store is damaged ({first_line(error)})", "copy it again or write it again")


def _of_anndata(store: Any, source: FeatureSource) -> OpenFeatures:
    coords = read_array(store, "obsm/spatial", source) if "obsm/spatial" in store else None
    spec = store.get("uns/tile_spec", {})
    known = {name: read_array(spec, name, source) for name in ("width", "base_width", "mpp") if name in spec}
    return opened(source, "anndata", _features(store, source), coords, tile_spec_provenance(known))


def _of_spatialdata(store: Any, source: FeatureSource) -> OpenFeatures:
    tables = store.get("tables", {})
    filled = [name for name in tables if "X" in tables[name] and np.prod(getattr(tables[name]["X"], "shape", 1)) > 0]
    names = sorted(filled)
    if not names:
        what = "the store has no tile features (no table with X)"
        fail(source, what, "extract features with LazySlide first, and write the store again")
    if source.group is None and len(names) > 1:
        what = f"the store has several tables of features: {listed(names)}"
        fail(source, what, f"choose one in the manifest's column 'features', e.g. {source.path.name}::{names[0]}")
    name = source.group or names[0]
    if name not in names:
        fail(source, f"the store has no table {name!r}", f"it has {listed(names)}")
    table = tables[name]
    region = "tiles"
    if "uns/spatialdata_attrs/region" in table:
        region = _text(read_array(table, "uns/spatialdata_attrs/region", source, text=True))
    features = _features(table, source)
    spec = dict(store.attrs).get("tile_spec") or {}
    known = spec.get(region) if isinstance(spec, Mapping) else None
    coords = _corners(source.path / "shapes" / region / "shapes.parquet", table, len(features), source)
    provenance = tile_spec_provenance(known if isinstance(known, Mapping) else {})
    return opened(source, "anndata", features, coords, provenance)


def _corners(shapes: Path, table: Any, n_tiles: int, source: FeatureSource) -> NDArray[Any] | None:
    """The upper left corners of the tiles, in the order of the table's rows."""
    if not shapes.is_file():
        return None
    import pyarrow.parquet as pq
    import shapely

    tiles = pq.read_table(shapes).to_pandas()
    if "geometry" not in tiles.columns:
        return None
    corners = shapely.bounds(shapely.from_wkb(tiles["geometry"].to_numpy()))[:, :2]
    if "tile_id" in tiles.columns and "obs/tile_id" in table:
        row_of = {int(number): row for row, number in enumerate(tiles["tile_id"])}
        wanted = [row_of.get(int(number), -1) for number in read_array(table, "obs/tile_id", source)]
        if min(wanted, default=0) < 0:
            what = f"{sum(row < 0 for row in wanted)} feature rows do not belong to any tile of {shapes.parent.name}"
            fail(source, what, "extract the features of the tiles again")
        corners = corners[wanted]
    if len(corners) != n_tiles:
        fail(source, f"the store has {n_tiles} rows of features and {len(corners)} tiles", "extract the features again")
    return np.asarray(corners)


def _features(node: Any, source: FeatureSource) -> NDArray[Any]:
    if not hasattr(node["X"], "dtype"):
        fail(source, "the features (X) are a sparse matrix", "write them as a dense array: adata.X = adata.X.toarray()")
    return read_array(node, "X", source)


def _text(value: Any) -> str:
    plain = np.asarray(value).ravel()[0]
    return plain.decode() if isinstance(plain, bytes) else str(plain)
