"""LazySlide takes features of asmil: slide, feature file; prints how many tiles it has and pools them into a vector."""

import json
import sys

import h5py
import lazyslide
import numpy as np
from wsidata import TileSpec, open_wsi
from wsidata.io import add_features, add_tiles

slide, file = sys.argv[1:]
wsi = open_wsi(slide, store=None)
with h5py.File(file) as content:
    features, corners = content["features"][:].astype(np.float32), content["coords"][:]
    tile_px, mpp = int(content.attrs["tile_px"]), content.attrs["tile_um"] / content.attrs["tile_px"]
add_tiles(wsi, "tiles", corners, TileSpec.from_wsidata(wsi, tile_px=tile_px, mpp=mpp), np.zeros(len(corners), int))
add_features(wsi, "asmil_tiles", "tiles", features)
lazyslide.tl.feature_aggregation(wsi, "asmil", encoder="mean")
tiles = wsi.fetch.features_anndata("asmil")
print(
    json.dumps(
        {
            "shape": list(tiles.X.shape),
            "first": tiles.obsm["spatial"][0].tolist(),
            "base_width": int(wsi.tile_spec("tiles").base_width),
        }
    )
)
