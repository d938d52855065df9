"""Features in zarr stores of both versions of the format, and slideflow's index of tiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import shapely
import torch

from tests.campaigns.feature_kinds import read_features
from tests.campaigns.kinds import Kind
from tests.cohort.feature_writers import grid, tiles, write_tensor

STORE = "s7.zarr"
SIDE_PX = 512


def _open(folder: Path, version: int) -> Any:
    import zarr

    return zarr.open_group(str(folder / STORE), mode="w", zarr_format=version)


def _anndata(version: int, **layout: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        store = _open(folder, version)
        values = tiles()
        store.create_array("X", data=values, chunks=(4, values.shape[1]), **layout)
        store.create_array("obsm/spatial", data=grid() + 1, chunks=(len(values), 2))
        for name, value in (("width", 256), ("base_width", SIDE_PX), ("mpp", 0.5)):
            store.create_array(f"uns/tile_spec/{name}", data=np.array(value))

    return make


def _spatialdata(folder: Path) -> None:
    store, corners = _open(folder, 3), grid() * SIDE_PX
    store.attrs["tile_spec"] = {"tiles": {"width": 256, "base_width": SIDE_PX, "mpp": 0.5}}
    store.create_array("tables/uni_tiles/X", data=tiles())
    store.create_array("tables/uni_tiles/obs/tile_id", data=np.arange(len(corners)))
    shapes = folder / STORE / "shapes" / "tiles" / "shapes.parquet"
    shapes.parent.mkdir(parents=True)
    boxes = [shapely.to_wkb(shapely.box(x, y, x + SIDE_PX, y + SIDE_PX)) for x, y in corners.tolist()]
    pd.DataFrame({"tile_id": np.arange(len(corners)), "geometry": boxes}).to_parquet(shapes)


def _slideflow(folder: Path) -> None:
    write_tensor(folder / "s7.pt", torch.from_numpy(tiles()))
    np.savez(folder / "s7.index.npz", grid() + 128)


def _kind(name: str, file: str, form: str, make: Callable[[Path], None]) -> Kind:
    return Kind(f"zarr {name}", f"{STORE}/{file}", form, make, lambda folder: read_features(folder / STORE))


SHARDS = {"shards": (8, tiles().shape[1])}
KINDS = (
    _kind("2 chunk", "X/1.0", "chunk", _anndata(2)),
    _kind("2 chunk of coordinates", "obsm/spatial/0.0", "chunk", _anndata(2)),
    _kind("2 metadata", "X/.zarray", "zarr", _anndata(2)),
    _kind("2 root", ".zgroup", "json", _anndata(2)),
    _kind("3 chunk", "X/c/1/0", "chunk", _anndata(3)),
    _kind("3 metadata", "X/zarr.json", "zarr", _anndata(3)),
    _kind("3 metadata of coordinates", "obsm/spatial/zarr.json", "zarr", _anndata(3)),
    _kind("3 shard", "X/c/0/0", "chunk", _anndata(3, **SHARDS)),
    _kind("3 metadata of shards", "X/zarr.json", "zarr", _anndata(3, **SHARDS)),
    _kind("3 size of tiles", "uns/tile_spec/width/c", "chunk", _anndata(3)),
    _kind("3 attributes", "zarr.json", "json", _spatialdata),
    _kind("3 polygons", "shapes/tiles/shapes.parquet", "parquet", _spatialdata),
    Kind("slideflow index", "s7.index.npz", "npz", _slideflow, lambda folder: read_features(folder / "s7.pt")),
)
