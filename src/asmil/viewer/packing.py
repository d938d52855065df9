"""Arrays for the browser: a JSON header with their names, types and lengths, then their bytes.

4 bytes      length of the header, little-endian
header       JSON, padded with blanks so that the arrays begin at a multiple of 8
arrays       little-endian, one after another, each padded to a multiple of 8
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 8
TYPES = {"uint8": "|u1", "int32": "<i4", "float32": "<f4"}


def pack(about: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """One answer of a header and arrays."""
    entries = [{"name": name, "type": str(values.dtype), "length": int(values.size)} for name, values in arrays.items()]
    header = json.dumps({**about, "arrays": entries}, allow_nan=False).encode()
    header += b" " * (-(4 + len(header)) % ALIGNMENT)
    parts = [len(header).to_bytes(4, "little"), header]
    for values in arrays.values():
        data = np.ascontiguousarray(values, dtype=TYPES[str(values.dtype)]).tobytes()
        parts += [data, b"\0" * (-len(data) % ALIGNMENT)]
    return b"".join(parts)
