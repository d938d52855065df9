"""Answers for the browser: outlines of annotations, and arrays behind a JSON header.

The header has the names, types and lengths of the arrays; then come their bytes:

4 bytes      length of the header, little-endian
header       JSON, padded with blanks so that the arrays begin at a multiple of 8
arrays       little-endian, one after another, each padded to a multiple of 8
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from shapely import MultiPolygon, get_coordinates, get_parts, get_rings

from asmil.slides.annotations import regions_on_slide

ALIGNMENT = 8
TYPES = {"uint8": "|u1", "int32": "<i4", "float32": "<f4"}


def pack(about: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """An answer with a header and arrays."""
    entries = [{"name": name, "type": str(values.dtype), "length": int(values.size)} for name, values in arrays.items()]
    header = json.dumps({**about, "arrays": entries}, allow_nan=False).encode()
    header += b" " * (-(4 + len(header)) % ALIGNMENT)
    parts = [len(header).to_bytes(4, "little"), header]
    for values in arrays.values():
        data = np.ascontiguousarray(values, dtype=TYPES[str(values.dtype)]).tobytes()
        parts += [data, b"\0" * (-len(data) % ALIGNMENT)]
    return b"".join(parts)


def outlines_of(
    path: Path, size: tuple[int, int], origin: tuple[int, int] = (0, 0), mask_value: int | None = None
) -> list[dict[str, Any]]:
    """Regions with their class and rings (lists of x, y in level-0 pixels); holes are rings of their own.

    Arguments as for `regions_on_slide`.
    """
    regions = regions_on_slide(path, size, origin, mask_value)
    return [{"group": region.group, "cut_out": region.cut_out, "rings": _rings(region.shape)} for region in regions]


def _rings(shape: MultiPolygon) -> list[list[float]]:
    return [np.round(get_coordinates(ring), 1).ravel().tolist() for ring in get_rings(get_parts(shape))]
