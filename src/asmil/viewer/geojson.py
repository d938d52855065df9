"""The tiles of a map as GeoJSON that QuPath imports: one object per tile, in level-0 pixels."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

from asmil.viewer.places import TilePlaces
from asmil.viewer.tile_values import HIGHEST, Bytes


def tiles_geojson(
    places: TilePlaces, kind: str, values: npt.NDArray[np.float32], ranks: Bytes, least_percentile: float = 0.0
) -> bytes:
    """The tiles from a percentile on, with their value and percentile as measurements.

    values, ranks: N each; ranks from 0 to 255
    """
    percentile = ranks.astype(np.float64) * (100 / HIGHEST)
    chosen = np.flatnonzero(percentile >= least_percentile)
    side = places.tile_px
    corners = places.coords[chosen].astype(np.float64)
    features = [
        {
            "type": "Feature",
            "geometry": {
                "type": "Polygon",
                "coordinates": [[[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]],
            },
            "properties": {
                "objectType": "tile",
                "measurements": {kind: float(value), f"{kind} percentile": round(rank, 1)},
            },
        }
        for (x, y), value, rank in zip(
            corners.tolist(), values[chosen].tolist(), percentile[chosen].tolist(), strict=True
        )
    ]
    return json.dumps({"type": "FeatureCollection", "features": features}).encode()
